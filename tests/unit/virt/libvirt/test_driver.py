# SPDX-License-Identifier: Apache-2.0

"""The decisions of the libvirt driver, with a replacement of the daemon."""

import contextlib
import dataclasses
import threading
import types

import pytest

libvirt = pytest.importorskip('libvirt')

from oslo_config import cfg  # noqa: E402 -- what is tested needs libvirt

from migrator import exception, executors  # noqa: E402 -- as above
from migrator.conf import compute  # noqa: E402 -- as above
from migrator.conf import libvirt as libvirt_conf  # noqa: E402 -- as above
from migrator.objects import (  # noqa: E402 -- as above
    Flavor,
    Guest,
    Instance,
    LiveMigrateData,
)
from migrator.virt.driver import Verdict  # noqa: E402 -- as above
from migrator.virt.libvirt import base, live_migration, plans, records, storage  # noqa: E402 -- as above
from migrator.virt.libvirt import driver as drivers  # noqa: E402 -- as above

UUID = '00000000-0000-4000-8000-000000000001'
PLAN = plans.Plan('qemu+tcp://beta/system', {}, 0)
PAUSED, RUNNING = libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_RUNNING


@pytest.fixture
def driver(tmp_path, monkeypatch):
    conf = cfg.ConfigOpts()
    compute.register_opts(conf)
    libvirt_conf.register_opts(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    conf.set_override('host', 'alpha')
    conf.set_override('state_path', str(tmp_path / 'alpha'))
    made = drivers.LibvirtDriver(conf, executors.NativeThreads())
    made._records.prepare()
    monkeypatch.setattr(made.connection, 'listen', lambda: None)
    monkeypatch.setattr(made.connection, 'call', lambda _phase, function, _deadline=None: function(None))
    return made


def test_service_does_not_start_with_a_migration_uri_that_leads_to_one_host(driver):
    driver.conf.set_override('live_migration_uri', 'qemu+tls://beta/system', group='libvirt')
    with pytest.raises(exception.ConfigurationError, match='live_migration_uri'):
        driver.init_host('alpha')


@pytest.fixture
def instance():
    return Instance(
        uuid=UUID,
        name='guest',
        project_id='project',
        user_id='user',
        host='alpha',
        node='alpha',
        flavor=Flavor(name='small', vcpus=1, memory_mb=128, root_gb=1),
    )


class Defined:
    """A connection to a daemon that knows one guest, and that guest."""

    def __init__(self, xml='', starts=False):
        self.xml, self.starts = xml, starts

    def lookupByUUIDString(self, _uuid):  # noqa: N802 -- libvirt's name
        return self

    def XMLDesc(self, _flags):  # noqa: N802 -- libvirt's name
        return self.xml

    def isPersistent(self):  # noqa: N802 -- libvirt's name
        return True

    def autostart(self):
        return int(self.starts)

    def setAutostart(self, wanted):  # noqa: N802 -- libvirt's name
        self.starts = bool(wanted)

    def controlInfo(self, _flags):  # noqa: N802 -- libvirt's name
        return libvirt.VIR_DOMAIN_CONTROL_OK, 0, 0

    def memoryStats(self):  # noqa: N802 -- libvirt's name
        return {}


def observed(driver, monkeypatch, *guests):
    """Let libvirt report one state after the other.

    The last one is repeated.
    """
    left = list(guests)
    monkeypatch.setattr(driver, '_guest', lambda *_: left.pop(0) if len(left) > 1 else left[0])


def a_guest(state, **facts):
    return Guest(instance_uuid=UUID, state=state, **facts)


# --- verdicts --------------------------------------------------------------------------------------------------------


def test_earlier_departure_is_no_verdict_on_a_later_job(driver, monkeypatch):
    driver.connection._moved.add(UUID)
    observed(driver, monkeypatch, a_guest('running', job=True), a_guest('running'))
    assert driver.jobs.attach(UUID) is Verdict.FAILED


@pytest.mark.parametrize('how', ['attach', 'run'])
def test_earlier_departure_leaves_a_later_job_of_a_stopped_guest_unsettled(driver, monkeypatch, how):
    driver.connection._moved.add(UUID)
    observed(driver, monkeypatch, a_guest('running', job=True), a_guest('shutdown'))
    if how == 'attach':
        assert driver.jobs.attach(UUID) is None
    else:
        with pytest.raises(exception.MoveUnsettled):
            driver.jobs.run(UUID, lambda _guest: PLAN, lambda: None)


@pytest.mark.parametrize('state', ['paused for cut-over', 'absent'])
def test_run_of_a_guest_in_switchover_or_absent_is_unsettled_and_not_failed(driver, monkeypatch, state):
    observed(driver, monkeypatch, a_guest(state))
    with pytest.raises(exception.MoveUnsettled):
        driver.jobs.run(UUID, lambda _guest: PLAN, lambda: None)


# --- cleanup and rollback --------------------------------------------------------------------------------------------


def test_guest_that_runs_by_the_time_of_its_removal_is_not_destroyed(driver, instance, monkeypatch):
    ended = []
    monkeypatch.setattr(base, 'remove_domain', lambda *_: ended.append(1))
    data = LiveMigrateData()
    observed(driver, monkeypatch, a_guest('waiting', incoming=True), a_guest('running'))
    with pytest.raises(exception.GuestStillHere):
        driver.rollback_live_migration_at_destination(instance, data)
    observed(driver, monkeypatch, a_guest('paused for cut-over'), a_guest('running'))
    with pytest.raises(exception.GuestStillHere):
        driver.post_live_migration_at_source(instance, data)
    assert ended == []


class Domain:
    """A guest at a source.

    Its job may have ended.
    """

    def __init__(self, state, reason, job=False):
        self.reported, self.job = [state, reason], job

    def state(self):
        return self.reported

    def suspend(self):
        self.reported = [PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION if self.job else libvirt.VIR_DOMAIN_PAUSED_USER]

    def resume(self):
        self.reported = [RUNNING, libvirt.VIR_DOMAIN_RUNNING_UNPAUSED]


@pytest.mark.parametrize(
    ('reason', 'after'),
    [(libvirt.VIR_DOMAIN_PAUSED_MIGRATION, RUNNING), (libvirt.VIR_DOMAIN_PAUSED_USER, PAUSED)],
)
def test_rollback_resumes_a_pause_for_switchover_and_no_pause_by_the_user(driver, instance, monkeypatch, reason, after):
    domain = Domain(PAUSED, reason)
    observed(driver, monkeypatch, a_guest('paused for cut-over'))
    driver.connection.call = lambda _phase, function: function(Host(domain))
    driver.rollback_live_migration_at_source(instance, None)
    assert domain.state()[0] == after


class Host:
    def __init__(self, domain):
        self.domain = domain

    def lookupByUUIDString(self, _uuid):  # noqa: N802 -- libvirt's name
        return self.domain


@pytest.mark.parametrize(('job', 'after'), [(True, PAUSED), (False, RUNNING)])
def test_forced_completion_does_not_leave_a_guest_paused_whose_job_has_just_ended(job, after):
    domain = Domain(RUNNING, libvirt.VIR_DOMAIN_RUNNING_BOOTED, job)
    live_migration._pause(domain)
    assert domain.state()[0] == after


# --- records ---------------------------------------------------------------------------------------------------------


def test_migration_away_removes_the_incoming_record(driver, monkeypatch):
    driver._records.write(records.INCOMING, UUID, {'files': {}, 'directories': []})
    observed(driver, monkeypatch, a_guest('running'))
    asked = threading.Event()
    monkeypatch.setattr(driver.connection, 'call', lambda _phase, function: function(Defined()))
    monkeypatch.setattr(driver.connection, 'do', lambda *_, **__: asked.set())
    monkeypatch.setattr(driver.jobs, '_stats', lambda _uuid: {})
    assert driver.jobs.run(UUID, lambda _guest: PLAN, lambda: None) is Verdict.COMPLETED
    assert asked.is_set()
    assert driver._records.read(records.INCOMING, UUID) is None


def test_migration_back_removes_the_outgoing_record(driver, instance, monkeypatch):
    driver._records.write(records.OUTGOING, UUID, {})
    observed(driver, monkeypatch, a_guest('absent'))
    monkeypatch.setattr(driver, '_missing', lambda *_: [])
    driver.pre_live_migration(instance, LiveMigrateData(), drivers.driver.NeverCancelled())
    assert driver._records.read(records.OUTGOING, UUID) is None
    assert driver._records.read(records.INCOMING, UUID) is not None


# --- plans -----------------------------------------------------------------------------------------------------------


def definition(*disks):
    """Return the definition of a guest with disks: (kind, protocol, cache)."""
    made = ''.join(
        f"<disk type='{kind}'><driver cache='{cache}'/><source file='/a{number}' protocol='{protocol}'/>"
        f"<target dev='vd{number}'/></disk>"
        for number, (kind, protocol, cache) in enumerate(disks)
    )
    return f'<domain><devices>{made}</devices></domain>'


def flags(driver, monkeypatch, instance, checked, now=None, state='running', **there):
    """Return the flags of the migration of a guest whose disks are all shared."""
    monkeypatch.setattr(driver.connection, 'call', lambda _phase, function: function(Defined(now or checked)))
    disks = [vars(dataclasses.replace(disk, shared=True)) for disk in storage.defined_disks(checked)]
    data = LiveMigrateData(source={'disks': disks}, destination={'host': 'beta', **there})
    return plans.plan(driver.connection, driver.conf, a_guest(state), instance, 'beta', data).flags


FILE, BLOCK, VOLUME = ('file', '', 'none'), ('block', '', 'none'), ('volume', '', 'none')


@pytest.mark.parametrize(
    ('disks', 'unsafe'),
    [
        ([FILE], True),
        ([('file', '', 'writeback')], False),
        ([BLOCK], False),
        ([FILE, BLOCK], True),
        ([FILE, ('block', '', 'writeback')], False),
        ([FILE, ('network', 'rbd', 'writeback')], True),
        ([FILE, ('network', 'iscsi', 'none')], True),
        ([FILE, ('network', 'iscsi', 'writeback')], True),
        # Only libvirt knows what the pool makes of a volume.
        ([FILE, VOLUME], False),
        ([FILE, ('vhostuser', '', 'none')], False),
    ],
)
def test_unsafe_flag_is_set_only_if_every_disk_is_known_to_be_safe(driver, monkeypatch, instance, disks, unsafe):
    assert bool(flags(driver, monkeypatch, instance, definition(*disks)) & libvirt.VIR_MIGRATE_UNSAFE) is unsafe


def test_disk_added_or_removed_since_the_check_is_refused(driver, monkeypatch, instance):
    for now in ([], [FILE, BLOCK], [BLOCK]):
        with pytest.raises(exception.DriverError, match='have changed since the checks'):
            flags(driver, monkeypatch, instance, definition(FILE), definition(*now))


@pytest.mark.parametrize(('state', 'post_copy'), [('running', True), ('paused', False)])
def test_paused_guest_migrates_without_post_copy(driver, monkeypatch, instance, state, post_copy):
    driver.conf.set_override('live_migration_permit_post_copy', True, group='libvirt')
    asked = flags(driver, monkeypatch, instance, definition(), state=state, post_copy=True)
    assert bool(asked & libvirt.VIR_MIGRATE_POSTCOPY) is post_copy


@pytest.mark.parametrize('inbound', ['', 'beta.migration', 'fd00::2'])
def test_migration_address_is_given_only_if_the_destination_reports_one(driver, monkeypatch, instance, inbound):
    """As in nova, migration_host of qemu.conf counts if live_migration_inbound_addr is not set."""
    monkeypatch.setattr(driver.connection, 'call', lambda _phase, function: function(Defined(definition())))
    data = LiveMigrateData(destination={'host': 'beta', 'inbound_addr': inbound})
    made = plans.plan(driver.connection, driver.conf, a_guest('running'), instance, 'beta', data)
    name = '[fd00::2]' if ':' in inbound else inbound
    assert made.uri == f'qemu+tcp://{name or "beta"}/system'
    assert made.parameters == ({libvirt.VIR_MIGRATE_PARAM_URI: f'tcp://{name}'} if inbound else {})


@pytest.mark.parametrize('odd', ['b/system?x=', '-oProxyCommand', '[::1'])
@pytest.mark.parametrize('field', ['inbound_addr', 'host'])
def test_reported_address_that_is_no_host_name_or_address_is_refused(driver, monkeypatch, instance, odd, field):
    monkeypatch.setattr(driver.connection, 'call', lambda _phase, function: function(Defined(definition())))
    monkeypatch.setattr(driver, 'get_guest', lambda _uuid: a_guest('running'))
    there = {'host': 'beta', 'inbound_addr': '', field: odd}
    data = LiveMigrateData(destination=there)
    name = {'host': '[DEFAULT] host', 'inbound_addr': '[libvirt] live_migration_inbound_addr'}[field]
    for error, ask in (
        (exception.MigrationPreCheckError, lambda: driver.check_can_live_migrate_source(instance, data)),
        (
            exception.DriverError,
            lambda: plans.plan(driver.connection, driver.conf, a_guest('running'), instance, there['host'], data),
        ),
    ):
        with pytest.raises(error) as caught:
            ask()
        assert f'{name} is {odd[:100]!r}' in str(caught.value)
        assert 'set a host name or an IP address' in str(caught.value)


# --- autostart -------------------------------------------------------------------------------------------------------


def migrated(driver, monkeypatch, domain, failure=None):
    """Migrate a guest, and return its autostart setting during the migration."""
    seen = []

    def do(*_args, **_more):
        seen.append(domain.starts)
        if failure is not None:
            raise failure

    monkeypatch.setattr(driver.connection, 'call', lambda _phase, function: function(domain))
    monkeypatch.setattr(driver.connection, 'do', do)
    monkeypatch.setattr(driver.jobs, '_stats', lambda _uuid: {})
    with contextlib.suppress(exception.MigratorException):
        driver.jobs.run(UUID, lambda _guest: PLAN, lambda: None)
    return seen


@pytest.mark.parametrize('starts', [True, False])
def test_autostart_is_off_during_a_migration_and_restored_if_it_fails(driver, monkeypatch, starts):
    observed(driver, monkeypatch, a_guest('running'))
    failure = exception.DriverError(host='alpha', phase='live_migration', reason='no luck')
    domain = Defined(starts=starts)
    assert migrated(driver, monkeypatch, domain, failure) == [False]
    assert domain.starts is starts, 'the guest has stayed'
    assert driver._records.read(records.OUTGOING, UUID) is None
    assert migrated(driver, monkeypatch, domain) == [False]
    assert domain.starts is False, 'the guest has left'


def test_rollback_restores_autostart_after_several_unsettled_migrations(driver, monkeypatch, instance):
    domain = Defined(starts=True)
    observed(driver, monkeypatch, a_guest('running'))
    # The result of this migration is unknown.
    migrated(driver, monkeypatch, domain, exception.ServiceUnreachable(service='libvirt', reason='the daemon is away'))
    assert domain.starts is False
    migrated(driver, monkeypatch, domain, exception.ServiceUnreachable(service='libvirt', reason='the daemon is away'))
    driver.rollback_live_migration_at_source(instance, None)
    assert domain.starts is True
    assert driver._records.read(records.OUTGOING, UUID) is None


def test_attach_waits_for_a_lost_call_that_libvirt_may_still_begin(driver, monkeypatch):
    """The daemon has accepted the call, and another job of the guest comes first."""
    busy, job = iter([True] * 12), []

    class Busy(Defined):
        def controlInfo(self, _flags):  # noqa: N802 -- libvirt's name
            job.append(not next(busy, False))
            return libvirt.VIR_DOMAIN_CONTROL_JOB, 0, 0

    moving = iter([True] * 3)
    monkeypatch.setattr(driver, '_guest', lambda *_: a_guest('running', job=True in job and next(moving, False)))
    monkeypatch.setattr(driver.connection, 'call', lambda _phase, function: function(Busy()))
    driver._records.write(records.OUTGOING, UUID, {'uri': PLAN.uri, 'widest': 0})
    assert driver.jobs.attach(UUID) is Verdict.FAILED
    assert len(job) == 13


# --- broken post-copy ------------------------------------------------------------------------------------------------


class Broken(Defined):
    """A guest whose post-copy has broken off.

    Libvirt keeps its job.
    """

    def state(self):
        return PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED

    def jobStats(self):  # noqa: N802 -- libvirt's name
        return {'type': libvirt.VIR_DOMAIN_JOB_UNBOUNDED, 'operation': libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT}


def test_attach_and_run_return_at_once_for_a_broken_post_copy(driver, monkeypatch):
    monkeypatch.setattr(driver.connection, 'call', lambda _phase, function: function(Broken('')))
    assert driver.get_guest(UUID).state == 'post-copy broken off'
    assert driver.jobs.attach(UUID) is None
    with pytest.raises(exception.MoveUnsettled):
        driver.jobs.run(UUID, lambda _guest: PLAN, lambda: None)
    assert driver.get_progress(UUID) == {}


def test_run_reports_a_post_copy_that_breaks_off(driver, monkeypatch):
    """The libvirt call itself never returns."""
    hangs, broke = threading.Event(), []
    observed(driver, monkeypatch, a_guest('running'))
    monkeypatch.setattr(driver.connection, 'call', lambda _phase, function: function(Broken('')))
    monkeypatch.setattr(driver.connection, 'do', lambda *_args, **_more: hangs.wait(30))
    with pytest.raises(exception.MoveUnsettled, match='has broken off'):
        driver.jobs.run(UUID, lambda _guest: PLAN, lambda: broke.append(1))
    hangs.set()


def test_attached_job_gets_its_maximum_downtime(driver, monkeypatch):
    class Moving(Defined):
        job = libvirt.VIR_DOMAIN_JOB_UNBOUNDED
        widened = ()

        def state(self):
            return RUNNING, 0

        def jobStats(self):  # noqa: N802 -- libvirt's name
            return {'type': self.job, 'operation': libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT}

        def migrateSetMaxDowntime(self, milliseconds, _flags):  # noqa: N802 -- libvirt's name
            self.job, self.widened = libvirt.VIR_DOMAIN_JOB_NONE, (*self.widened, milliseconds)

    moving = Moving('')
    monkeypatch.setattr(driver.connection, 'call', lambda _phase, function: function(moving))
    monkeypatch.setattr(live_migration, 'POLL_INTERVAL', 0.01)
    driver._records.write(records.OUTGOING, UUID, {'uri': 'qemu+tcp://beta/system', 'widest': 500})
    assert driver.jobs.attach(UUID) is Verdict.FAILED
    assert moving.widened == (500,)


# --- the identity of the host ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('capabilities', 'identity'),
    [
        (
            '<capabilities><host><uuid>6ef5d0b8-0d2b-4d36-9d3a-0d7b0a6c3c11</uuid></host></capabilities>',
            '6ef5d0b8-0d2b-4d36-9d3a-0d7b0a6c3c11',
        ),
        ('<capabilities><host/></capabilities>', None),
    ],
)
def test_identity_is_the_uuid_of_the_host_that_libvirt_reports(driver, monkeypatch, capabilities, identity):
    daemon = types.SimpleNamespace(getCapabilities=lambda: capabilities)
    monkeypatch.setattr(driver.connection, 'call', lambda _phase, ask: ask(daemon))
    assert driver.get_identity() == identity


def test_kernel_is_what_linux_calls_its_start_and_unknown_without_it(driver, monkeypatch, tmp_path):
    start = tmp_path / 'boot_id'
    monkeypatch.setattr(base, '_KERNEL', start)
    assert driver.get_kernel() is None
    start.write_text('0b5b9a5e-3f1a-4c57-8f5e-0f3b6a1d7c11\n')
    assert driver.get_kernel() == '0b5b9a5e-3f1a-4c57-8f5e-0f3b6a1d7c11'


# --- files -----------------------------------------------------------------------------------------------------------


def test_each_check_makes_a_file_of_a_new_name_and_cleanup_removes_all(driver, monkeypatch, instance, tmp_path):
    """NFS clients cache that a name does not exist.

    So a name that was looked for is not used again.
    """

    class Daemon:
        def getType(self):  # noqa: N802 -- libvirt's name
            return 'QEMU'

        def getVersion(self):  # noqa: N802 -- libvirt's name
            return 1

        def getCapabilities(self):  # noqa: N802 -- libvirt's name
            return '<capabilities/>'

    driver.conf.set_override('instances_path', str(tmp_path / 'shared'))
    observed(driver, monkeypatch, a_guest('absent'))
    monkeypatch.setattr(driver.connection, 'call', lambda _phase, ask: ask(Daemon()))
    monkeypatch.setattr(driver, 'get_guest', lambda _uuid: a_guest('absent'))
    checked = [driver.check_can_live_migrate_destination(instance, None, False) for _ in range(2)]
    names = {one.destination['check_file'] for one in checked}
    assert len(names) == 2
    assert all(drivers._holds(one.destination['check_file'], one.destination['check_token']) for one in checked)
    driver.cleanup_live_migration_destination_check(instance)
    assert list((tmp_path / 'shared').iterdir()) == []


def test_check_file_of_an_earlier_check_is_not_accepted(tmp_path):
    (tmp_path / 'check').write_text('of an earlier check')
    assert not drivers._holds(str(tmp_path / 'check'), 'of this one')
    assert drivers._holds(str(tmp_path / 'check'), 'of an earlier check')
    assert not drivers._holds(str(tmp_path / 'none'), 'of this one')
