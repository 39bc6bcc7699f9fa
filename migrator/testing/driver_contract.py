# SPDX-License-Identifier: Apache-2.0

"""The contract test of hypervisor drivers, for a test file of your driver.

It needs pytest, which no other module of migrator imports. The test file derives a class from :class:`DriverContract`,
and defines a fixture ``bench`` that returns a :class:`Bench`::

    class TestContract(driver_contract.DriverContract):
        def pause(self, bench):
            bench.hypervisor.pause(bench.instance.uuid)

Set ``describes_instances = False`` there unless the driver has ``get_instance``. The driver finds the destination by
the name that it is given: with the name of an unknown host no job starts, whatever the data of the checks say.

A driver that evacuates guests derives its class from :class:`EvacuationContract`, which has more tests. Its bench has
:meth:`Bench.lose_source` and :meth:`Bench.return_source`.

Call ``pytest.register_assert_rewrite('migrator.testing.driver_contract')`` in a ``conftest.py`` to see the values of an
assertion that fails.
"""

from __future__ import annotations

import abc
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from migrator import exception
from migrator.objects import Flavor, GuestState, Instance, LiveMigrateData, protocol
from migrator.virt import driver
from migrator.virt.driver import Verdict

#: Seconds of real time in which a test expects what it waits for.
PATIENCE = 60.0


def an_instance(number: int = 1, memory_mb: int = 1024, vcpus: int = 2) -> Instance:
    """Return an instance of host alpha; each number has its own uuid."""
    return Instance(
        uuid=f'00000000-0000-4000-8000-{number:012d}',
        name=f'guest-{number}',
        project_id='project',
        user_id='user',
        host='alpha',
        node='alpha',
        flavor=Flavor(name='small', vcpus=vcpus, memory_mb=memory_mb, root_gb=10),
    )


class Call:
    """A driver call in a thread of its own."""

    def __init__(self) -> None:
        self.ended = False
        self.value: Any = None
        self.error: Exception | None = None
        self.started = 0

    def has_started(self) -> None:
        """Count a call of ``started``."""
        self.started += 1

    def result(self) -> Any:
        """Return the result of the call, or raise its error."""
        assert self.ended
        if self.error is not None:
            raise self.error
        return self.value


class Bench(abc.ABC):
    """Two hosts with a guest on the first one.

    A bench sets the attributes. Time is real, unless it overrides :meth:`start` and :meth:`run_until`.

    :ivar source: the driver of host ``alpha``, after ``init_host``.
    :ivar destination: the driver of the other host, after ``init_host``.
    :ivar destination_host: the name of the other host.
    :ivar instance: the guest that runs on ``alpha``, such as :func:`an_instance`. Nothing that it has, such as the lock
        of a disk, prevents a start on the other host meanwhile.
    """

    source: driver.ComputeDriver
    destination: driver.ComputeDriver
    destination_host: str = 'beta'
    instance: Instance

    def start(self, function: Callable[..., Any], *args: Any) -> None:
        """Run a function in a thread."""
        threading.Thread(target=function, args=args, daemon=True).start()

    def run_until(self, predicate: Callable[[], Any]) -> None:
        """Let time pass until a predicate is true."""
        until = time.monotonic() + PATIENCE
        while not predicate():
            assert time.monotonic() < until, f'the predicate was not true within {PATIENCE:g} s'
            time.sleep(0.005)

    @abc.abstractmethod
    def slow(self) -> None:
        """Slow the copy down so that a test can act during it."""

    @abc.abstractmethod
    def listeners(self) -> int:
        """Return the number of callers that have attached to the guest's job since it began."""

    def lose_source(self) -> None:
        """Let host ``alpha`` lose its power; its guests end, and its driver is not called until it returns."""
        raise NotImplementedError

    def return_source(self) -> None:
        """Restore the power of host ``alpha``; its guests do not run."""
        raise NotImplementedError

    def in_thread(self, function: Callable[..., Any], *args: Any) -> Call:
        """Make a driver call in a thread of its own."""
        call = Call()

        def run() -> None:
            try:
                call.value = function(*args)
            except Exception as error:  # noqa: BLE001 -- the test looks at it
                call.error = error
            call.ended = True

        self.start(run)
        return call

    def prepare(self) -> LiveMigrateData:
        """Do the checks and pre_live_migration, and return their data."""
        data = self.destination.check_can_live_migrate_destination(self.instance, None, False)
        data = self.source.check_can_live_migrate_source(self.instance, data)
        self.destination.cleanup_live_migration_destination_check(self.instance)
        call = self.in_thread(self.destination.pre_live_migration, self.instance, data, driver.NeverCancelled())
        self.run_until(lambda: call.ended)
        prepared: LiveMigrateData = call.result()
        return prepared

    def move(self, data: LiveMigrateData) -> Call:
        """Call live_migration in a thread of its own."""
        call = Call()

        def run() -> None:
            try:
                call.value = self.source.live_migration(self.instance, self.destination_host, data, call.has_started)
            except Exception as error:  # noqa: BLE001 -- the test looks at it
                call.error = error
            call.ended = True

        self.start(run)
        return call

    def definition(self) -> LiveMigrateData:
        """Return what the source reports of the guest while it lives, as the database returns it later."""
        stored = json.dumps(self.source.get_definition(self.instance.uuid))
        return LiveMigrateData(source=json.loads(stored) or {})

    def at_source(self) -> protocol.Guest:
        """Return what the source reports of the guest."""
        return self.source.get_guest(self.instance.uuid)

    def at_destination(self) -> protocol.Guest:
        """Return what the destination reports of the guest."""
        return self.destination.get_guest(self.instance.uuid)


class Token(driver.CancelToken):
    """A token that a test cancels.

    :ivar cancelled: whether it is cancelled.
    """

    def __init__(self) -> None:
        self.cancelled = False

    def raise_if_cancelled(self) -> None:
        """Raise if the test has cancelled the token."""
        if self.cancelled:
            raise exception.Cancelled(what='the step')


class _ReportsContract:
    """The tests of what a driver may report for the API."""

    def test_diagnostics_are_none_or_have_novas_names(self, bench: Bench) -> None:
        found = bench.source.get_diagnostics(bench.instance)
        if found is None:
            return
        assert json.loads(json.dumps(found)) == found
        lists = {'cpu_details', 'disk_details', 'nic_details'}
        assert set(found) <= {'driver', 'hypervisor', 'hypervisor_os', 'memory_details', *lists}
        assert found['driver'] in ('libvirt', 'ironic', 'vmwareapi', 'xenapi')
        assert all(isinstance(item, dict) for name in lists for item in found.get(name, ()))
        assert all({'id', 'time'} <= set(cpu) for cpu in found.get('cpu_details', ()))

    def test_uptime_is_none_or_a_text(self, bench: Bench) -> None:
        assert isinstance(bench.source.get_host_uptime(), str | None)


class DriverContract(_ReportsContract):
    """One test for each rule of :class:`migrator.virt.driver.ComputeDriver`.

    :cvar describes_instances: whether the driver can return guests as instances, so that they can be adopted.
    """

    describes_instances = True

    def test_running_guest_is_listed_as_running_without_a_job(self, bench: Bench) -> None:
        assert bench.at_source() == protocol.Guest(instance_uuid=bench.instance.uuid, state='running')
        assert bench.at_source() in bench.source.list_guests()
        assert bench.source.settle(bench.instance.uuid) == bench.at_source()

    def test_missing_guest_is_absent_without_an_error(self, bench: Bench) -> None:
        assert bench.at_destination() == protocol.Guest(instance_uuid=bench.instance.uuid, state='absent')
        assert bench.destination.list_guests() == []
        assert bench.destination.get_progress(bench.instance.uuid) == {}

    def test_guest_is_returned_as_an_instance_and_a_waiting_one_is_not(self, bench: Bench) -> None:
        found = bench.source.get_instance(bench.instance.uuid)
        if not self.describes_instances:
            assert found is None
            return
        assert found is not None
        assert (found.uuid, found.host) == (bench.instance.uuid, 'alpha')
        wanted = bench.instance.flavor
        assert (found.flavor.vcpus, found.flavor.memory_mb) == (wanted.vcpus, wanted.memory_mb)
        assert bench.destination.get_instance(bench.instance.uuid) is None
        bench.prepare()
        assert bench.destination.get_instance(bench.instance.uuid) is None

    def test_root_provider_is_the_compute_node_and_identities_differ(self, bench: Bench) -> None:
        identity, other = bench.source.get_identity(), bench.destination.get_identity()
        assert bench.source.get_identity() == identity
        # A conductor takes two hosts with one identity for one machine.
        assert identity is None or identity not in ('', other)
        node = bench.source.get_node()
        roots = [provider for provider in node.providers if provider.parent_uuid is None]
        assert [root.uuid for root in roots] == [node.uuid]
        assert {'VCPU', 'MEMORY_MB'} <= set(roots[0].inventory)
        assert bench.source.get_node() == node

    def test_destination_check_refuses_a_host_that_has_the_guest(self, bench: Bench) -> None:
        with pytest.raises(exception.MigrationPreCheckError):
            bench.source.check_can_live_migrate_destination(bench.instance, None, False)

    def test_source_check_refuses_a_guest_that_is_not_here(self, bench: Bench) -> None:
        data = bench.destination.check_can_live_migrate_destination(bench.instance, None, False)
        with pytest.raises(exception.MigrationPreCheckError):
            bench.destination.check_can_live_migrate_source(bench.instance, data)

    def test_cleanup_of_a_check_may_run_twice_and_a_check_makes_no_guest(self, bench: Bench) -> None:
        bench.destination.check_can_live_migrate_destination(bench.instance, None, False)
        assert not bench.at_destination().present
        bench.destination.cleanup_live_migration_destination_check(bench.instance)
        bench.destination.cleanup_live_migration_destination_check(bench.instance)

    def test_pre_live_migration_makes_a_waiting_guest_and_is_idempotent(self, bench: Bench) -> None:
        data = bench.prepare()
        assert bench.at_destination().state == GuestState.WAITING
        again = bench.in_thread(bench.destination.pre_live_migration, bench.instance, data, driver.NeverCancelled())
        bench.run_until(lambda: again.ended)
        assert again.result() == data
        assert bench.at_destination().state == GuestState.WAITING

    def test_pre_live_migration_stops_at_a_cancelled_token(self, bench: Bench) -> None:
        data = bench.destination.check_can_live_migrate_destination(bench.instance, None, False)
        token = Token()
        token.cancelled = True
        with pytest.raises(exception.Cancelled):
            bench.destination.pre_live_migration(bench.instance, data, token)
        bench.destination.rollback_live_migration_at_destination(bench.instance, data)
        assert not bench.at_destination().present

    def test_live_migration_starts_once_and_completes_without_an_active_source(self, bench: Bench) -> None:
        call = bench.move(bench.prepare())
        bench.run_until(lambda: call.ended)
        assert call.result() is Verdict.COMPLETED
        assert call.started == 1
        assert bench.at_destination().state == GuestState.RUNNING
        assert not bench.at_source().active
        assert not bench.at_source().job

    def test_post_removes_the_source_and_persists_the_destination_twice(self, bench: Bench) -> None:
        data = bench.prepare()
        call = bench.move(data)
        bench.run_until(lambda: call.ended)
        for _ in range(2):
            bench.source.post_live_migration_at_source(bench.instance, data)
            bench.destination.post_live_migration_at_destination(bench.instance, data)
        assert not bench.at_source().present
        assert bench.at_destination().state == GuestState.RUNNING

    def test_post_at_source_refuses_to_destroy_a_running_guest(self, bench: Bench) -> None:
        with pytest.raises(exception.GuestStillHere):
            bench.source.post_live_migration_at_source(bench.instance, bench.prepare())
        assert bench.at_source().active

    def test_post_at_destination_refuses_a_guest_that_has_not_arrived(self, bench: Bench) -> None:
        with pytest.raises(exception.GuestNotFound):
            bench.destination.post_live_migration_at_destination(bench.instance, bench.prepare())

    def test_rollback_at_destination_refuses_to_destroy_the_guest(self, bench: Bench) -> None:
        data = bench.prepare()
        call = bench.move(data)
        bench.run_until(lambda: call.ended)
        with pytest.raises(exception.GuestStillHere):
            bench.destination.rollback_live_migration_at_destination(bench.instance, data)
        assert bench.at_destination().active

    def test_rollback_at_destination_removes_everything_and_may_run_twice(self, bench: Bench) -> None:
        data = bench.prepare()
        for _ in range(2):
            bench.destination.rollback_live_migration_at_destination(bench.instance, data)
            assert not bench.at_destination().present

    def test_rollback_at_source_keeps_a_running_guest_and_reports_a_missing_one(self, bench: Bench) -> None:
        bench.source.rollback_live_migration_at_source(bench.instance, None)
        assert bench.at_source().active
        with pytest.raises(exception.GuestNotFound):
            bench.destination.rollback_live_migration_at_source(bench.instance, None)

    def test_abort_ends_the_job_and_leaves_the_guest_running_at_the_source(self, bench: Bench) -> None:
        bench.slow()
        call = bench.move(bench.prepare())
        bench.run_until(lambda: call.started)
        assert bench.at_source().job
        bench.source.live_migration_abort(bench.instance)
        bench.run_until(lambda: call.ended)
        assert call.result() is Verdict.ABORTED
        assert bench.at_source() == protocol.Guest(instance_uuid=bench.instance.uuid, state='running')
        assert not bench.at_destination().active

    def test_abort_and_force_complete_without_a_job_do_nothing(self, bench: Bench) -> None:
        bench.source.live_migration_abort(bench.instance)
        bench.source.live_migration_force_complete(bench.instance)
        assert bench.at_source().active

    def test_force_complete_makes_the_job_end_at_the_destination(self, bench: Bench) -> None:
        bench.slow()
        call = bench.move(bench.prepare())
        bench.run_until(lambda: call.started)
        bench.source.live_migration_force_complete(bench.instance)
        bench.run_until(lambda: call.ended)
        assert call.result() is Verdict.COMPLETED
        assert bench.at_destination().active

    def test_second_call_attaches_to_the_job_and_all_get_its_result(self, bench: Bench) -> None:
        bench.slow()
        data = bench.prepare()
        first = bench.move(data)
        bench.run_until(lambda: first.started)
        second = bench.move(data)
        third = bench.in_thread(bench.source.attach_live_migration, bench.instance.uuid)
        bench.run_until(lambda: second.started and bench.listeners())
        bench.source.live_migration_abort(bench.instance)
        bench.run_until(lambda: first.ended and second.ended and third.ended)
        assert {first.result(), second.result(), third.result()} == {Verdict.ABORTED}

    def test_attach_without_a_job_returns_none(self, bench: Bench) -> None:
        assert bench.source.attach_live_migration(bench.instance.uuid) is None

    def test_progress_has_every_figure_during_a_job_and_none_after_it(self, bench: Bench) -> None:
        bench.slow()
        call = bench.move(bench.prepare())
        bench.run_until(lambda: call.started)
        # There are no figures before the copy begins.
        bench.run_until(lambda: bench.source.get_progress(bench.instance.uuid).get('memory_total'))
        figures = bench.source.get_progress(bench.instance.uuid)
        assert set(figures) == {
            'memory_total', 'memory_processed', 'memory_remaining', 'disk_total', 'disk_processed', 'disk_remaining',
        }  # fmt: skip
        assert figures['memory_total'] > 0
        bench.source.live_migration_abort(bench.instance)
        bench.run_until(lambda: call.ended)
        assert bench.source.get_progress(bench.instance.uuid) == {}

    def test_live_migration_to_an_unknown_host_starts_no_job(self, bench: Bench) -> None:
        data = bench.prepare()
        with pytest.raises(exception.DriverError):
            bench.source.live_migration(bench.instance, 'nowhere', data, lambda: None)
        assert bench.at_source() == protocol.Guest(instance_uuid=bench.instance.uuid, state='running')

    def test_guest_paused_by_its_user_stays_paused_after_a_rollback(self, bench: Bench) -> None:
        self.pause(bench)
        bench.source.rollback_live_migration_at_source(bench.instance, None)
        assert bench.at_source().state == GuestState.PAUSED

    def pause(self, bench: Bench) -> None:
        """Pause the guest in the name of its user.

        The test of a driver implements this.
        """
        raise NotImplementedError


class EvacuationContract(DriverContract):
    """The tests of a driver that evacuates guests: also one for each rule of the evacuation."""

    def test_definition_is_that_of_a_guest_that_is_here(self, bench: Bench) -> None:
        assert bench.definition().source
        assert bench.destination.get_definition(bench.instance.uuid) is None
        bench.prepare()
        assert bench.destination.get_definition(bench.instance.uuid) is None

    @pytest.mark.parametrize(
        ('state', 'vm_state', 'power_state'),
        [('running', 'active', 1), ('running', 'error', 1), ('paused', 'active', 3), ('shutdown', 'stopped', 4)],
    )
    def test_guest_of_a_lost_host_is_started_in_its_state(
        self, bench: Bench, state: str, vm_state: str, power_state: int
    ) -> None:
        data, instance = bench.definition(), bench.instance.replace(vm_state=vm_state, power_state=power_state)
        bench.lose_source()
        data = bench.destination.check_can_evacuate(instance, data)
        assert not bench.at_destination().present
        for _ in range(2):
            bench.destination.evacuate(instance, data)
            assert bench.at_destination() == protocol.Guest(instance_uuid=instance.uuid, state=state)
        assert bench.at_destination() in bench.destination.list_guests()
        assert bench.destination.get_definition(instance.uuid) is not None

    def test_evacuation_without_a_definition_is_refused_and_starts_nothing(self, bench: Bench) -> None:
        for start in (bench.destination.check_can_evacuate, bench.destination.evacuate):
            with pytest.raises((exception.MigrationPreCheckError, exception.DriverError)):
                start(bench.instance, LiveMigrateData())
            assert not bench.at_destination().present
        bench.destination.rollback_evacuation_at_destination(bench.instance, None)

    def test_evacuation_check_refuses_a_host_that_has_the_guest(self, bench: Bench) -> None:
        with pytest.raises(exception.MigrationPreCheckError):
            bench.source.check_can_evacuate(bench.instance, bench.definition())
        assert bench.at_source().active

    def test_rollback_of_an_evacuation_refuses_to_destroy_a_running_guest(self, bench: Bench) -> None:
        data = bench.definition()
        bench.lose_source()
        data = bench.destination.check_can_evacuate(bench.instance, data)
        bench.destination.evacuate(bench.instance, data)
        with pytest.raises(exception.GuestStillHere):
            bench.destination.rollback_evacuation_at_destination(bench.instance, data)
        assert bench.at_destination().active

    def test_rollback_of_an_evacuation_removes_what_it_has_made(self, bench: Bench) -> None:
        data, instance = bench.definition(), bench.instance.replace(vm_state='stopped', power_state=4)
        bench.lose_source()
        data = bench.destination.check_can_evacuate(instance, data)
        bench.destination.evacuate(instance, data)
        for _ in range(2):
            bench.destination.rollback_evacuation_at_destination(instance, data)
            assert not bench.at_destination().present
        bench.destination.evacuate(instance, bench.destination.check_can_evacuate(instance, data))
        assert bench.at_destination().state == GuestState.SHUTDOWN

    def test_copy_at_a_host_that_returns_is_removed(self, bench: Bench) -> None:
        data = bench.definition()
        bench.lose_source()
        data = bench.destination.check_can_evacuate(bench.instance, data)
        bench.destination.evacuate(bench.instance, data)
        bench.return_source()
        for _ in range(2):
            bench.source.post_evacuation_at_source(bench.instance, data)
            assert not bench.at_source().present
        assert bench.at_destination().active

    def test_copy_that_runs_at_a_host_that_was_never_lost_is_ended_and_removed(self, bench: Bench) -> None:
        data = bench.destination.check_can_evacuate(bench.instance, bench.definition())
        bench.destination.evacuate(bench.instance, data)
        for _ in range(2):
            bench.source.post_evacuation_at_source(bench.instance, data)
            assert not bench.at_source().present
        assert bench.at_destination().active


class ColdMigrationContract:
    """The tests of a driver that moves a guest while it is powered off, in addition to another contract."""

    @staticmethod
    def _checked(bench: Bench, power_on: bool = True) -> LiveMigrateData:
        data = bench.source.check_can_migrate_source(bench.instance, LiveMigrateData())
        data = data.replace(source={**data.source, 'power_on': power_on})
        return bench.destination.check_can_migrate_destination(bench.instance, data)

    @pytest.mark.parametrize(('power_on', 'state'), [(True, 'running'), (False, 'shutdown')])
    def test_guest_that_was_powered_off_is_started_elsewhere_and_confirmed(
        self, bench: Bench, power_on: bool, state: str
    ) -> None:
        data = self._checked(bench, power_on)
        assert bench.at_source().state == 'running'
        for _ in range(2):
            bench.source.migrate_disk_and_power_off(bench.instance, data)
            assert bench.at_source().state == 'shutdown'
        for _ in range(2):
            bench.destination.finish_migration(bench.instance, data)
            assert bench.at_destination() == protocol.Guest(instance_uuid=bench.instance.uuid, state=state)
        for _ in range(2):
            bench.source.confirm_migration_at_source(bench.instance, data)
            assert not bench.at_source().present
        assert bench.at_destination().state == state

    def test_guest_is_ended_at_its_destination_and_restored(self, bench: Bench) -> None:
        data = self._checked(bench)
        bench.source.migrate_disk_and_power_off(bench.instance, data)
        bench.destination.finish_migration(bench.instance, data)
        for _ in range(2):
            bench.destination.revert_migration_at_destination(bench.instance, data)
            assert not bench.at_destination().present
        for _ in range(2):
            bench.source.revert_migration_at_source(bench.instance, data)
            assert bench.at_source().state == 'running'

    def test_resized_guest_has_the_new_size_at_its_destination_and_the_old_one_after_a_revert(
        self, bench: Bench
    ) -> None:
        if not bench.source.resizes:
            pytest.skip('the driver resizes no guests')
        old = bench.instance.flavor
        new = old.replace(name='resized', vcpus=2 * old.vcpus, memory_mb=2 * old.memory_mb)
        data = bench.source.check_can_migrate_source(bench.instance, LiveMigrateData(new_flavor=new))
        data = data.replace(source={**data.source, 'power_on': True})
        data = bench.destination.check_can_migrate_destination(bench.instance, data)
        bench.source.migrate_disk_and_power_off(bench.instance, data)
        bench.destination.finish_migration(bench.instance, data)
        assert _size(bench.source, bench) == (old.vcpus, old.memory_mb)
        assert _size(bench.destination, bench) == (new.vcpus, new.memory_mb)
        bench.destination.revert_migration_at_destination(bench.instance, data)
        bench.source.revert_migration_at_source(bench.instance, data)
        assert bench.at_source().state == 'running'
        assert _size(bench.source, bench) == (old.vcpus, old.memory_mb)

    @pytest.mark.parametrize('ends', ['confirmed', 'reverted'])
    def test_guest_resized_at_its_host_keeps_its_old_size_for_a_revert(self, bench: Bench, ends: str) -> None:
        if not bench.source.resizes_here:
            pytest.skip('the driver resizes no guest at its host')
        old, mine, other = bench.instance.flavor, 'a' * 32, 'b' * 32
        new = old.replace(name='resized', vcpus=2 * old.vcpus, memory_mb=2 * old.memory_mb)
        sizes = (new.vcpus, new.memory_mb), (old.vcpus, old.memory_mb)
        data = bench.source.check_can_resize(bench.instance, LiveMigrateData(new_flavor=new))
        data = data.replace(source={**data.source, 'power_on': True})
        bench.source.revert_resize(bench.instance, mine)  # of a resize that has not begun
        for _ in range(2):
            bench.source.resize(bench.instance, data, mine)
            bench.source.confirm_resize(bench.instance, other)
            bench.source.revert_resize(bench.instance, other)
            assert (_size(bench.source, bench), bench.at_source().state) == (sizes[0], 'running')
            reported = bench.source.get_definition(bench.instance.uuid)
            assert reported
            assert mine not in str(reported)
        for _ in range(2):
            (bench.source.confirm_resize if ends == 'confirmed' else bench.source.revert_resize)(bench.instance, mine)
            assert (_size(bench.source, bench), bench.at_source().state) == (sizes[ends == 'reverted'], 'running')
        bench.source.revert_resize(bench.instance, mine)
        assert _size(bench.source, bench) == sizes[ends == 'reverted']

    def test_restore_leaves_a_guest_alone_that_was_not_powered_off(self, bench: Bench) -> None:
        data = self._checked(bench)
        bench.source.revert_migration_at_source(bench.instance, data)
        assert bench.at_source().state == 'running'
        with pytest.raises(exception.GuestNotFound):
            bench.destination.revert_migration_at_source(bench.instance, data)

    def test_cold_checks_refuse_a_missing_guest_and_a_host_that_has_it(self, bench: Bench) -> None:
        with pytest.raises(exception.MigrationPreCheckError):
            bench.destination.check_can_migrate_source(bench.instance, LiveMigrateData())
        data = bench.source.check_can_migrate_source(bench.instance, LiveMigrateData())
        with pytest.raises(exception.MigrationPreCheckError):
            bench.source.check_can_migrate_destination(bench.instance, data)

    def test_confirmation_does_not_destroy_a_running_guest(self, bench: Bench) -> None:
        data = self._checked(bench)
        with pytest.raises(exception.GuestStillHere):
            bench.source.confirm_migration_at_source(bench.instance, data)
        assert bench.at_source().state == 'running'


def _size(of: driver.ComputeDriver, bench: Bench) -> tuple[int, int]:
    """Return the processors and the memory in MiB that a driver reports of the guest."""
    found = of.get_instance(bench.instance.uuid)
    assert found is not None
    return found.flavor.vcpus, found.flavor.memory_mb
