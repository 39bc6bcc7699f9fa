# SPDX-License-Identifier: Apache-2.0

"""The defaults and the refusals of an embedded host.

``tests/unit/doc/test_embed.py`` has two embedded hosts in a whole cloud.
"""

import concurrent.futures
import socket

import pytest
from oslo_config import cfg

import migrator
from migrator import exception
from migrator.executors import NativeThreads
from migrator.runtime import embed
from migrator.testing import driver_contract
from migrator.testing.hypervisor.driver import FakeDriver
from migrator.testing.hypervisor.hypervisor import FakeWorld
from migrator.virt.driver import NeverCancelled


@pytest.fixture
def conf(tmp_path):
    def read(text=''):
        file = tmp_path / 'service.conf'
        file.write_text(f'[DEFAULT]\ntransport_url = fake://\n{text}')
        made = cfg.ConfigOpts()
        made([f'--config-file={file}'], project='importer')
        return made

    return read


class Events:
    """The conductors, which record what a host reports."""

    def __init__(self):
        self.started = NativeThreads().event()
        self.stopped = []

    def compute_started(self, report):
        self.started.set()
        return []

    def compute_heartbeat(self, report):
        pass

    def compute_stopping(self, host, boot_id, cancelled):
        self.stopped.append(host)


def driver(name):
    threads = NativeThreads()
    return FakeDriver(FakeWorld(threads).add(name), threads)


def test_host_name_is_argument_or_option_or_machine_name(conf):
    assert migrator.Host(conf(), driver('any')).manager.host == socket.gethostname()
    assert migrator.Host(conf('host = alpha\n'), driver('any')).manager.host == 'alpha'
    assert migrator.Host(conf('host = alpha\n'), driver('any'), host='beta').manager.host == 'beta'


def test_host_name_is_known_before_the_host_is_made(conf):
    read = conf('host = alpha\n')
    assert migrator.host_name(read) == 'alpha'
    assert migrator.Host(read, driver('any')).manager.host == 'alpha'
    assert migrator.host_name(conf()) == socket.gethostname()


def test_host_starts_at_the_begin_of_a_block_and_stops_at_its_end(conf):
    events = Events()
    host = migrator.Host(conf('host = alpha\n'), driver('alpha'), events=events)
    assert not events.started.is_set()
    with host as entered:
        assert entered is host
        assert events.started.wait(20)
        assert events.stopped == []
    assert events.stopped == ['alpha']


def test_reset_applies_a_changed_option_and_keeps_the_old_value_of_an_invalid_one(conf):
    with migrator.Host(conf('host = alpha\n'), driver('alpha'), events=Events()) as host:
        conf('host = alpha\nmax_concurrent_live_migrations = 3\n')
        host.reset()
        assert host.manager._runner.queue.limit == 3
        conf('host = alpha\nmax_concurrent_live_migrations = many\n')
        host.reset()
        assert host.manager._runner.queue.limit == 3


class Recording(concurrent.futures.ThreadPoolExecutor):
    """An executor that counts what it is given."""

    submitted = 0

    def submit(self, *args, **kwargs):
        self.submitted += 1
        return super().submit(*args, **kwargs)


def test_running_job_is_waited_for_on_the_executor_that_was_passed(conf):
    threads = NativeThreads()
    world = FakeWorld(threads)
    source, destination = (FakeDriver(world.add(name, link=1.0), threads) for name in ('alpha', 'beta'))
    instance = driver_contract.an_instance()
    source.hypervisor.spawn(instance)
    data = destination.check_can_live_migrate_destination(instance, None, False)
    data = destination.pre_live_migration(instance, data, NeverCancelled())
    started = threads.event()
    threads.start(source.live_migration, instance, 'beta', data, started.set, name='migration')
    assert started.wait(20)
    executor = Recording()
    with migrator.Host(conf('host = alpha\n'), source, events=Events(), executor=executor):
        assert executor.submitted == 1
        source.live_migration_abort(instance)
    executor.shutdown()


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('host = a b\n', r"Option \[DEFAULT\] host is 'a b'"),
        ('[upgrade_levels]\nconductor = 9.9\n', r"Option \[upgrade_levels\] conductor is '9.9'"),
    ],
)
def test_invalid_option_is_refused(conf, text, message):
    with pytest.raises(exception.ConfigurationError, match=message):
        migrator.Host(conf(text), driver('alpha'))


def test_impossible_transport_is_refused(tmp_path):
    conf = cfg.ConfigOpts()
    file = tmp_path / 'service.conf'
    file.write_text('[DEFAULT]\ntransport_url = pigeon://\n')
    conf([f'--config-file={file}'])
    with pytest.raises(exception.ConfigurationError, match=r'\[DEFAULT\] transport_url'):
        migrator.Host(conf, driver('alpha'))


def test_other_option_of_the_same_name_is_an_error_of_oslo_config(conf):
    other = conf()
    other.register_opts([cfg.IntOpt('report_interval', default=60)])
    with pytest.raises(cfg.DuplicateOptError, match='report_interval'):
        embed.register_opts(other)
