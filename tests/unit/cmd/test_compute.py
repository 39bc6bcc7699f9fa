# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import signal

import pytest
from oslo_config import cfg

from migrator import exception, executors
from migrator.cmd import compute
from migrator.conf.service import COMPUTE_OPTS
from migrator.runtime import process
from migrator.testing.fake_world.server import WorldServer
from tests.unit.cmd.processes import configure, refused, running


def test_every_driver_that_can_be_chosen_is_known():
    choices = next(option for option in COMPUTE_OPTS if option.name == 'driver').type.choices
    assert set(compute.DRIVERS) == set(choices)


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


def test_compute_waits_for_the_fake_world_and_logs_it_once(tmp_path):
    world = str(tmp_path / 'world')
    with running(tmp_path, 'compute', *configure(tmp_path, f'[fake]\nworld = {world}', schema=False)) as service:
        service.wait_for('The world of fake hypervisors is not reachable')
        server = WorldServer(world, executors.NativeThreads())
        server.start()
        service.wait_for('Started service')
        assert server.look()['hosts']['h1']['lives'] == 1
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


def test_missing_libvirt_module_names_the_extra_to_install(monkeypatch):
    there: set[str] = set()
    monkeypatch.setattr('importlib.util.find_spec', lambda name: name in there or None)
    with pytest.raises(exception.ConfigurationError, match='install the extra "libvirt"'):
        compute.check_driver('libvirt')
    there.add('libvirt')
    compute.check_driver('libvirt')
    there.clear()
    compute.check_driver('fake')


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
