# SPDX-License-Identifier: Apache-2.0

"""The facts of a host, from libvirt's own test driver, with file systems that hang or fail."""

import os

import pytest

libvirt = pytest.importorskip('libvirt')

from oslo_config import cfg  # noqa: E402 -- what is tested needs libvirt

from migrator import exception, executors  # noqa: E402 -- as above
from migrator.conf import compute  # noqa: E402 -- as above
from migrator.conf import libvirt as libvirt_conf  # noqa: E402 -- as above
from migrator.testing import driver_contract  # noqa: E402 -- as above
from migrator.virt.libvirt import connection as connections  # noqa: E402 -- as above
from migrator.virt.libvirt import host  # noqa: E402 -- as above
from migrator.virt.libvirt.driver import LibvirtDriver  # noqa: E402 -- as above
from tests.unit.virt.libvirt import native  # noqa: E402 -- as above


class FileSystem:
    """A file system whose server goes away and comes back.

    :ivar queries: the number of queries that wait for it.
    """

    def __init__(self, path):
        self.path, self.queries = path, 0
        self._answers, self._statvfs = native.event(), os.statvfs
        self._answers.set()

    def statvfs(self, path):
        if str(path).startswith(str(self.path)):
            self.queries += 1
            self._answers.wait(60)
            self.queries -= 1
        return self._statvfs(path)

    def go_away(self):
        self._answers.clear()

    def come_back(self):
        self._answers.set()


@pytest.fixture
def files(tmp_path, monkeypatch):
    made = FileSystem(tmp_path / 'instances')
    made.path.mkdir()
    monkeypatch.setattr(os, 'statvfs', made.statvfs)
    yield made
    made.come_back()


@pytest.fixture
def driver(tmp_path, files, monkeypatch):
    conf = cfg.ConfigOpts()
    compute.register_opts(conf)
    libvirt_conf.register_opts(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    conf.set_override('host', 'alpha')
    conf.set_override('state_path', str(tmp_path / 'state'))
    conf.set_override('instances_path', str(files.path))
    conf.set_override('connection_uri', 'test:///default', group='libvirt')
    monkeypatch.setattr(connections, 'POOL_SIZE', 3)
    # Keepalive needs a daemon, and the loop would process events.
    monkeypatch.setattr(libvirt.virConnect, 'setKeepAlive', lambda *_: 0)
    monkeypatch.setattr(connections._LOOP, 'start', lambda _threads: None)
    return LibvirtDriver(conf, executors.NativeThreads(), deadline=2)


def test_node_has_the_resources_that_libvirt_and_the_file_system_report(driver, files):
    size = os.statvfs(files.path)
    node = driver.get_node()
    assert (node.hypervisor_type, node.total('VCPU'), node.total('MEMORY_MB')) == ('TEST', 16, 3072)
    assert node.total('DISK_GB') == size.f_blocks * size.f_frsize // 2**30


def test_diagnostics_of_a_guest_are_those_that_libvirt_has(driver):
    guest = driver_contract.an_instance().replace(uuid='6695eb01-f6a4-8304-79aa-97f2502e193f')
    found = driver.get_diagnostics(guest)
    assert (found['hypervisor'], found['memory_details']['maximum'], len(found['cpu_details'])) == ('test', 8192, 2)
    assert driver.get_diagnostics(driver_contract.an_instance()) is None


def test_uptime_is_what_the_command_prints_and_none_without_it(driver, monkeypatch, tmp_path):
    command = tmp_path / 'uptime'
    command.write_text('#!/bin/sh\necho " up 1 min, $LC_ALL"\n')
    command.chmod(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
    assert driver.get_host_uptime() == ' up 1 min, C\n'
    command.write_text('#!/bin/sh\nexit 1\n')
    with pytest.raises(exception.DriverError, match='get_host_uptime'):
        driver.get_host_uptime()
    monkeypatch.setenv('PATH', str(tmp_path / 'none'))
    assert driver.get_host_uptime() is None


def test_missing_instances_path_uses_the_size_of_the_directory_above(driver, files, tmp_path):
    driver.conf.set_override('instances_path', str(tmp_path / 'none' / 'yet'))
    assert driver.get_node().total('DISK_GB') == driver.get_node().total('DISK_GB') > 0


def test_hanging_file_system_blocks_one_query_and_no_libvirt_thread(driver, files, monkeypatch):
    monkeypatch.setattr(host, 'DISK_DEADLINE', 0.1)
    files.go_away()
    for _ in range(8):
        with pytest.raises(exception.ServiceUnreachable):
            driver.get_node()
    assert driver.connection.call('ask', lambda connection: connection.getType()) == 'TEST'
    native.until(lambda: files.queries)
    assert files.queries == 1
    with pytest.raises(exception.ServiceUnreachable, match=f'instances_path of alpha .{files.path}.*size') as caught:
        driver.get_node()
    assert 'libvirt' not in str(caught.value)
    files.come_back()
    monkeypatch.undo()
    native.until(host._PROBES[str(files.path)]._ended.is_set)
    assert files.queries == 0
    assert driver.get_node().total('DISK_GB')


def test_failing_file_system_raises_a_driver_error(driver, files, monkeypatch):
    def fail(_path):
        raise OSError(116, 'Stale file handle')

    monkeypatch.setattr(os, 'statvfs', fail)
    with pytest.raises(exception.DriverError, match=f'(?s)alpha.*{files.path}.*Stale file handle'):
        driver.get_node()


# --- processors for guests -------------------------------------------------------------------------------------------


def inventory(driver, **sets):
    for name, value in sets.items():
        driver.conf.set_override(name, value, group='compute')
    found = driver.get_node().providers[0].inventory
    return {name: found[name]['total'] for name in ('VCPU', 'PCPU') if name in found}


def test_dedicated_processors_are_those_that_the_operator_names(driver):
    _count, states, _online = driver.connection.call('test', lambda connection: connection.getCPUMap())
    first, *others = [number for number, is_online in enumerate(states) if is_online]
    assert inventory(driver) == {'VCPU': 16}
    assert inventory(driver, cpu_dedicated_set=str(first)) == {'PCPU': 1}
    shared = ','.join(map(str, others))
    assert inventory(driver, cpu_dedicated_set=str(first), cpu_shared_set=shared) == {'VCPU': len(others), 'PCPU': 1}


@pytest.mark.parametrize(
    ('sets', 'words'),
    [
        ({'cpu_dedicated_set': 'a'}, "'a' is neither a number nor a range such as 0-3"),
        ({'cpu_dedicated_set': '5-2'}, "'5-2' is neither a number nor a range"),
        ({'cpu_shared_set': '4000'}, 'processor 4000 is not online at this host: leave it out'),
        (
            {'cpu_shared_set': '0', 'cpu_dedicated_set': '0'},
            'processor 0 is in cpu_shared_set too: leave it out of one',
        ),
    ],
)
def test_other_processors_than_those_of_the_host_are_refused(driver, sets, words):
    with pytest.raises(exception.ConfigurationError, match=words):
        inventory(driver, **sets)
