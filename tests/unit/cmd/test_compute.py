# SPDX-License-Identifier: Apache-2.0


import pathlib
import signal
import sys

import pytest
import requests
from oslo_config import cfg

from migrator import exception, executors
from migrator.cmd import compute
from migrator.runtime import process
from migrator.testing.fake_world.server import WorldServer
from tests.unit.cmd.processes import configure, eventually, refused, running

ROOT = pathlib.Path(__file__).resolve().parents[3]


def test_compute_starts_reloads_its_limit_on_sighup_and_exits_0_on_sigterm(tmp_path):
    with running(tmp_path, 'compute', *configure(tmp_path, schema=False), fresh=True) as service:
        service.wait_for('Started service')
        service.wait_for('this hypervisor ends with the service')
        configure(tmp_path, 'max_concurrent_live_migrations = 3', schema=False)
        service.signal(signal.SIGHUP)
        assert '[DEFAULT] max_concurrent_live_migrations = 3' in service.wait_for('was reloaded')
        service.signal(signal.SIGTERM)
        assert service.status() == 0
        assert 'Traceback' not in service.text()


def test_compute_without_a_conductor_is_not_ready(tmp_path):
    arguments = configure(tmp_path, '[compute]\nmetrics_port = 0', schema=False)
    with running(tmp_path, 'compute', *arguments) as service:
        url = service.wait_for('The metrics are at').split()[-1]
        service.wait_for('Started service')
        health = url.removesuffix('metrics') + 'healthcheck'
        body = eventually(
            lambda: requests.get(health, timeout=30).json(),
            lambda found: found['checks']['hypervisor']['result'] == 'ok',
        )
        assert (body['ready'], body['checks']['registration']['result']) == (False, 'away')
        text = requests.get(url, timeout=30).text
        assert 'migrator_check_ok{what="registration"} 0.0' in text
        assert 'migrator_live_migrations_limit 1.0' in text
        assert 'migrator_live_migrations_oldest_wait_seconds 0.0' in text


def test_compute_waits_for_the_fake_world_and_logs_it_once(tmp_path):
    world = str(tmp_path / 'world')
    text = f'[fake]\nworld = {world}\n[compute]\nmetrics_port = 0'
    with running(tmp_path, 'compute', *configure(tmp_path, text, schema=False)) as service:
        service.wait_for('The world of fake hypervisors is not reachable')
        metrics = service.wait_for('The metrics are at').split()[-1]
        health = metrics.replace('metrics', 'healthcheck')
        body = eventually(
            lambda: requests.get(health, timeout=30).json(),
            lambda found: {one['result'] for one in found['checks'].values()} == {'away'},
        )
        assert (body['started'], set(body['checks'])) == (False, {'hypervisor', 'registration'})
        assert requests.get(health, timeout=30).status_code == 503
        assert 'migrator_started 0.0' in requests.get(metrics, timeout=30).text
        server = WorldServer(world, executors.NativeThreads())
        server.start()
        service.wait_for('Started service')
        assert server.look()['hosts']['h1']['starts'] == 1
        service.signal(signal.SIGTERM)
        assert service.status() == 0
        assert service.text().count('The world of fake hypervisors is not reachable') == 1
        server.stop()


def test_driver_that_is_not_installed_exits_2(tmp_path):
    import importlib.util

    if importlib.util.find_spec('libvirt'):
        return
    status, line = refused(tmp_path, 'compute', *configure(tmp_path, '[compute]\ndriver = libvirt', schema=False))
    assert status == 2
    assert "Option [compute] driver is 'libvirt'" in line


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a distribution with entry points of drivers, as pip would."""

    def add(name, **drivers):
        folder = tmp_path / name
        metadata = folder / f'{name}-1.dist-info'
        metadata.mkdir(parents=True)
        (metadata / 'METADATA').write_text(f'Name: {name}\nVersion: 1\n')
        lines = [f'{driver} = {target}\n' for driver, target in drivers.items()]
        (metadata / 'entry_points.txt').write_text(f'[{compute.NAMESPACE}]\n{"".join(lines)}')
        (folder / f'{name}_driver.py').write_text('def make(conf, threads):\n    return conf, threads\n')
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setattr('stevedore.ExtensionManager.ENTRY_POINT_CACHE', {})

    return add


def test_driver_of_another_package_is_found_by_its_name(install):
    install('acme', acme='acme_driver:make')
    assert compute.find_driver('acme')('conf', 'threads') == ('conf', 'threads')
    assert callable(compute.find_driver('fake'))


def test_unknown_driver_is_refused_with_the_names_of_those_that_are_installed(install):
    install('acme', acme='acme_driver:make')
    with pytest.raises(exception.ConfigurationError, match='no such driver is installed: give acme or fake or libvirt'):
        compute.find_driver('xen')


def test_driver_that_two_packages_have_is_refused(install):
    install('one', acme='one_driver:make')
    install('two', acme='two_driver:make')
    with pytest.raises(exception.ConfigurationError, match='several packages have this driver'):
        compute.find_driver('acme')


@pytest.mark.parametrize(
    ('target', 'message'),
    [
        ('nowhere:make', 'the module nowhere cannot be imported: install what the driver needs'),
        ('acme_driver:other', r'acme_driver:other cannot be imported \(AttributeError: .*other'),
    ],
)
def test_driver_that_cannot_be_imported_is_refused(install, target, message):
    install('acme', acme=target)
    with pytest.raises(exception.ConfigurationError, match=message):
        compute.find_driver('acme')


def test_missing_libvirt_module_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, 'libvirt', None)
    monkeypatch.delitem(sys.modules, 'migrator.virt.libvirt.driver', raising=False)
    with pytest.raises(exception.ConfigurationError, match='module libvirt cannot be imported: install the extra "lib'):
        compute.find_driver('libvirt')


class Events:
    """A conductor that gives the answers of a test in order."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def compute_answers(self, host, timeout):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def starting():
    conf = cfg.ConfigOpts()
    compute.register(conf)
    conf([], project='migrator', default_config_files=[], default_config_dirs=[])
    conf.set_override('host', 'h1')
    return process.Process('migrator-compute', conf, executors.NativeThreads())


NO_ANSWER = exception.RPCTimeout(target='conductor', method='compute_answers', timeout=4)


def test_host_name_in_use_is_refused_before_the_start(starting):
    with pytest.raises(exception.ConfigurationError) as caught:
        compute.check_name(starting, Events(NO_ANSWER, True))
    assert caught.value.kwargs['option'] == '[DEFAULT] host'
    assert caught.value.kwargs['value'] == 'h1'


@pytest.mark.parametrize(
    'answers',
    [
        [False],
        [NO_ANSWER, False],
        # No conductor is there: this may be the first service of all.
        [NO_ANSWER, NO_ANSWER],
        # One of an older release, which does not know the question.
        [exception.RemoteError(target='conductor', method='compute_answers', kind='NoSuchMethod', reason='')],
    ],
)
def test_free_host_name_is_accepted(starting, answers):
    events = Events(*answers)
    compute.check_name(starting, events)
    assert events.answers == []


def test_stop_before_the_name_check_starts_nothing(starting):
    starting.stopping.set()
    with pytest.raises(process.Stopping):
        compute.check_name(starting, Events())


def test_stop_during_the_name_check_starts_nothing(starting):
    class Unreachable(Events):
        def compute_answers(self, host, timeout):
            starting.stopping.set()
            return super().compute_answers(host, timeout)

    with pytest.raises(process.Stopping):
        compute.check_name(starting, Unreachable(NO_ANSWER))
