# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""What libvirt's driver decides by itself, with no libvirt to ask."""

from __future__ import annotations

import threading

import pytest

libvirt = pytest.importorskip('libvirt')

from oslo_config import cfg  # noqa: E402 -- what is tested needs libvirt

from migrator import exception, executors  # noqa: E402
from migrator.conf import compute as compute_conf  # noqa: E402
from migrator.conf import libvirt as libvirt_conf  # noqa: E402
from migrator.objects import command  # noqa: E402
from migrator.objects import instance as instance_objects  # noqa: E402
from migrator.objects import migrate_data as migrate_data_objects  # noqa: E402
from migrator.virt.driver import Verdict  # noqa: E402
from migrator.virt.libvirt import driver as drivers  # noqa: E402
from migrator.virt.libvirt import live_migration, records  # noqa: E402

UUID = '00000000-0000-4000-8000-000000000001'
PLAN = live_migration.Plan('qemu+tcp://beta/system', {}, 0)
PAUSED, RUNNING = libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_RUNNING


@pytest.fixture
def driver(tmp_path, monkeypatch):
    conf = cfg.ConfigOpts()
    compute_conf.register_opts(conf)
    libvirt_conf.register_opts(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    conf.set_override('host', 'alpha')
    conf.set_override('state_path', str(tmp_path / 'alpha'))
    made = drivers.LibvirtDriver(conf, executors.NativeThreads())
    made._kept.prepare()
    monkeypatch.setattr(made.connection, 'listen', lambda: None)
    monkeypatch.setattr(made.connection, 'call', lambda _phase, function, _deadline=None: function(None))
    return made


@pytest.fixture
def instance():
    return instance_objects.Instance(
        uuid=UUID,
        name='guest',
        project_id='project',
        user_id='user',
        host='alpha',
        node='alpha',
        flavor=instance_objects.Flavor(name='small', vcpus=1, memory_mb=128, root_gb=1),
    )


def says(driver, monkeypatch, *guests):
    """Let libvirt say one thing after the other, and the last again and again."""
    left = list(guests)
    monkeypatch.setattr(driver, '_guest', lambda *_: left.pop(0) if len(left) > 1 else left[0])


def a_guest(state, **facts):
    return command.Guest(instance_uuid=UUID, state=state, **facts)


# --- verdicts --------------------------------------------------------------------------------------------------------


def test_that_it_left_once_is_no_verdict_about_a_job_that_another_has_begun_since(driver, monkeypatch):
    driver.connection._moved.add(UUID)
    says(driver, monkeypatch, a_guest('running', job=True), a_guest('running'))
    assert driver.moves.attach(UUID) is Verdict.FAILED


@pytest.mark.parametrize('how', ['attach', 'run'])
def test_that_it_left_once_does_not_tell_where_it_is_now(driver, monkeypatch, how):
    driver.connection._moved.add(UUID)
    says(driver, monkeypatch, a_guest('running', job=True), a_guest('shutdown'))
    if how == 'attach':
        assert driver.moves.attach(UUID) is None
    else:
        with pytest.raises(exception.MoveUnsettled):
            driver.moves.run(UUID, PLAN, lambda: None)


@pytest.mark.parametrize('state', ['paused for cut-over', 'absent'])
def test_a_guest_that_a_job_has_just_left_or_taken_is_not_told_as_failed(driver, monkeypatch, state):
    says(driver, monkeypatch, a_guest(state))
    with pytest.raises(exception.MoveUnsettled):
        driver.moves.run(UUID, PLAN, lambda: None)


# --- what may be ended, and what may go on ---------------------------------------------------------------------------


def test_a_guest_that_has_come_to_run_since_it_was_looked_at_is_not_ended(driver, instance, monkeypatch):
    ended = []
    monkeypatch.setattr(drivers, '_remove', lambda *_: ended.append(1))
    data = migrate_data_objects.LiveMigrateData()
    says(driver, monkeypatch, a_guest('waiting', incoming=True), a_guest('running'))
    with pytest.raises(exception.GuestStillHere):
        driver.rollback_live_migration_at_destination(instance, data)
    says(driver, monkeypatch, a_guest('paused for cut-over'), a_guest('running'))
    with pytest.raises(exception.GuestStillHere):
        driver.post_live_migration_at_source(instance, data)
    assert ended == []


class Domain:
    """A guest at a source, whose job may have ended."""

    def __init__(self, state, reason, job=False):
        self.said, self.job = [state, reason], job

    def state(self):
        return self.said

    def suspend(self):
        self.said = [PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION if self.job else libvirt.VIR_DOMAIN_PAUSED_USER]

    def resume(self):
        self.said = [RUNNING, libvirt.VIR_DOMAIN_RUNNING_UNPAUSED]


@pytest.mark.parametrize(
    ('reason', 'after'),
    [(libvirt.VIR_DOMAIN_PAUSED_MIGRATION, RUNNING), (libvirt.VIR_DOMAIN_PAUSED_USER, PAUSED)],
)
def test_a_rollback_resumes_what_was_paused_to_switch_over_and_not_what_its_user_had_paused(
    driver, instance, monkeypatch, reason, after
):
    domain = Domain(PAUSED, reason)
    says(driver, monkeypatch, a_guest('paused for cut-over'))
    monkeypatch.setattr(drivers.guests, 'find', lambda *_: domain)
    driver.connection.call = lambda _phase, function: function(Host(domain))
    driver.rollback_live_migration_at_source(instance, None)
    assert domain.state()[0] == after


class Host:
    def __init__(self, domain):
        self.domain = domain

    def lookupByUUIDString(self, _uuid):  # noqa: N802 -- libvirt's name
        return self.domain


@pytest.mark.parametrize(('job', 'after'), [(True, PAUSED), (False, RUNNING)])
def test_to_complete_by_force_does_not_leave_a_guest_paused_whose_job_has_just_ended(job, after):
    domain = Domain(RUNNING, libvirt.VIR_DOMAIN_RUNNING_BOOTED, job)
    live_migration._pause(domain)
    assert domain.state()[0] == after


# --- records ---------------------------------------------------------------------------------------------------------


def test_a_guest_that_goes_out_is_none_that_is_still_to_come(driver, monkeypatch):
    driver._kept.write(records.INCOMING, UUID, {'files': {}, 'directories': []})
    says(driver, monkeypatch, a_guest('running'))
    asked = threading.Event()
    monkeypatch.setattr(driver.connection, 'do', lambda *_, **__: asked.set())
    monkeypatch.setattr(driver.moves, '_stats', lambda _uuid: {})
    assert driver.moves.run(UUID, PLAN, lambda: None) is Verdict.COMPLETED
    assert asked.is_set()
    assert driver._kept.read(records.INCOMING, UUID) is None


def test_a_guest_that_comes_back_is_none_that_goes_out(driver, instance, monkeypatch):
    driver._kept.write(records.OUTGOING, UUID, {})
    says(driver, monkeypatch, a_guest('absent'))
    driver.pre_live_migration(instance, migrate_data_objects.LiveMigrateData(), drivers.driver.NeverCancelled())
    assert driver._kept.read(records.OUTGOING, UUID) is None
    assert driver._kept.read(records.INCOMING, UUID) is not None


# --- disks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('caches', 'unsafe'),
    [
        ({'file': 'none'}, True),
        ({'file': 'writeback'}, False),
        ({'block': 'none'}, False),
        ({'file': 'none', 'block': 'none'}, True),
        ({'file': 'none', 'block': 'writeback'}, False),
        ({'file': 'none', 'network': 'writeback'}, True),
    ],
)
def test_libvirt_judges_for_itself_unless_every_disk_is_known_to_be_safe(driver, instance, caches, unsafe):
    disks = [
        vars(drivers.storage.Disk(target=f'vd{number}', kind=kind, path='/a', cache=cache))
        for number, (kind, cache) in enumerate(caches.items())
    ]
    data = migrate_data_objects.LiveMigrateData(source={'disks': disks}, destination={'host': 'beta'})
    assert bool(driver._plan(instance, 'beta', data).flags & libvirt.VIR_MIGRATE_UNSAFE) is unsafe


def test_a_file_that_an_earlier_check_has_left_here_is_not_taken_for_the_other_hosts(tmp_path):
    (tmp_path / 'check').write_text('of an earlier check')
    assert not drivers._holds(str(tmp_path / 'check'), 'of this one')
    assert drivers._holds(str(tmp_path / 'check'), 'of an earlier check')
    assert not drivers._holds(str(tmp_path / 'none'), 'of this one')
