# SPDX-License-Identifier: Apache-2.0

"""Live migration jobs of libvirt.

The jobs are peer to peer: the daemon of the source controls the daemon of the destination. So a job continues when
this service is killed, and a later boot attaches to it.

A job is one blocking libvirt call in a thread of its own. The thread that requested the job monitors it meanwhile: it
reports the start, raises the allowed downtime step by step, and makes the job end soon on request.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import libvirt
from oslo_log import log as logging

from migrator import exception, executors
from migrator.objects import GuestState, protocol
from migrator.virt.driver import Verdict
from migrator.virt.libvirt import records
from migrator.virt.libvirt.connection import POLL_INTERVAL, Connection, code_of
from migrator.virt.libvirt.guest import find_domain, read_state, to_guest
from migrator.virt.libvirt.plans import Plan

LOG = logging.getLogger(__name__)

#: Seconds between two polls of a call that has not become a job yet.
_BEGINNING = 0.1
#: Seconds after which a call that libvirt has not begun is taken as lost.
_SETTLED = 35.0
#: Seconds without libvirt activity for a guest after which such a call is taken as finished.
_QUIET = 1.0
#: The bandwidth in MiB/s that libvirt treats as unlimited.
FASTEST = (2**63 - 1) // 2**20
#: The figures of a job. Libvirt uses the same names.
FIGURES = (
    'memory_total', 'memory_processed', 'memory_remaining', 'disk_total', 'disk_processed', 'disk_remaining',
)  # fmt: skip
_NO_RESULT = 'the end of its job was not observed'
#: Stands for the figures of a job whose post-copy has broken off. Libvirt keeps it until the guest is destroyed.
_BROKEN: dict[str, Any] = {}


class _Job:
    """A job that this process monitors."""

    def __init__(self, threads: executors.Threads) -> None:
        self.begun = threads.event()
        self.returned = threads.event()
        self.ended = threads.event()
        self.listeners = 0
        self.failure: exception.MigratorException | None = None
        #: The result for every waiting caller: a verdict or an error.
        self.verdict: Verdict | None = None
        self.error: exception.MigratorException | None = None


class Jobs:
    """The live migration jobs whose source is this host.

    :param connection: the connections to the daemon of this host.
    :param store: the records, which name each guest before libvirt is asked to migrate it.
    :param look: returns the state of a guest, as :meth:`.driver.ComputeDriver.get_guest`.
    """

    def __init__(
        self,
        connection: Connection,
        store: records.Records,
        threads: executors.Threads,
        look: Callable[[str], protocol.Guest],
    ) -> None:
        self._connection = connection
        self._records = store
        self._threads = threads
        self._look = look
        self._lock = threads.lock()
        self._jobs: dict[str, _Job] = {}
        #: The guests whose jobs this process has asked to abort.
        self._aborted: set[str] = set()
        #: The guests whose jobs must complete soon and have not begun to copy memory.
        self._forced: set[str] = set()

    def listeners(self, instance_uuid: str) -> int:
        """Return the number of callers that wait for a guest's job, without the one that requested it."""
        with self._lock:
            job = self._jobs.get(instance_uuid)
            return job.listeners if job is not None else 0

    def run(
        self, instance_uuid: str, planned: Callable[[protocol.Guest], Plan], started: Callable[[], None]
    ) -> Verdict:
        """Migrate a guest, or wait for its running job; see :meth:`.driver.ComputeDriver.live_migration`.

        :param planned: returns the plan for a guest in its present state, or raises a DriverError if the guest must not
            migrate.
        :raises migrator.exception.DriverError: no job was started.
        :raises migrator.exception.LiveMigrationFailed: the job failed, and the guest is here as before.
        :raises migrator.exception.MoveUnsettled: the guest may have left this host.
        """
        with self._own(instance_uuid) as (job, mine):
            if not mine:
                return self._join(job, started)
            self._connection.forget(instance_uuid)
            guest = self._look(instance_uuid)
            if guest.job:
                job.begun.set()
                started()
                return self._finish(job, self._wait(instance_uuid))
            if guest.state not in protocol.ACTIVE:
                # A job that has just ended may have migrated the guest.
                reason = f'guest {instance_uuid} is {guest.state}'
                raise exception.MoveUnsettled(host=self._connection.host, reason=reason)
            plan = planned(guest)
            self._connection.listen()
            widest = max((value for _after, value in plan.downtimes), default=0)
            self.leave(instance_uuid, {'uri': plan.uri, 'widest': widest})
            # An earlier migration to this host left this record. The guest must not be taken for one that is expected.
            self._records.remove(records.INCOMING, instance_uuid)
            with self._connection.waker.listen(instance_uuid) as news:
                self._threads.start(self._perform, instance_uuid, plan, job, name=f'job-{instance_uuid}')
                self._monitor_job(instance_uuid, plan, job, started, news)
            verdict = self._judge(instance_uuid, job)
            if verdict is not None and not job.begun.is_set():
                # The job ended before the first poll.
                job.begun.set()
                started()
            return self._finish(job, verdict)

    def settle(self, instance_uuid: str) -> None:
        """Wait until libvirt has begun a requested job or never will.

        See :meth:`.driver.ComputeDriver.settle` for the contract.

        A call that a daemon has accepted waits for the guest's other jobs, for 30 s at most. If the guest has none, the
        daemon begins the call at once. So a guest that is idle for :data:`_QUIET` stays idle. The query of its memory
        statistics goes to the same workers, in order of arrival. When it returns, the daemon has begun the call.
        """
        if self._records.read(records.OUTGOING, instance_uuid) is None:
            return
        guest = self._look(instance_uuid)
        clock = self._threads.clock
        until = clock.monotonic() + _SETTLED
        idle_since = clock.monotonic()
        while not guest.job and guest.present:
            now = clock.monotonic()
            if not self._connection.call('settle', lambda connection: _is_idle(connection, instance_uuid)):
                idle_since = now
            if now - idle_since >= _QUIET or now >= until:
                return
            self._threads.sleep(_QUIET / 10)
            guest = self._look(instance_uuid)

    def attach(self, instance_uuid: str) -> Verdict | None:
        """Wait for the end of a guest's job; see :meth:`.driver.ComputeDriver.attach_live_migration`."""
        with self._own(instance_uuid) as (job, mine):
            if not mine:
                return self._join(job, lambda: None)
            job.begun.set()
            self._connection.forget(instance_uuid)
            # A call of this process may have been carried out too, with its answer lost. Its job may still appear.
            self.settle(instance_uuid)
            if not self._look(instance_uuid).job:
                return None
            job.verdict = self._wait(instance_uuid)
            return job.verdict

    def leave(self, instance_uuid: str, facts: dict[str, Any]) -> None:
        """Record that a guest is about to leave, and turn its autostart off until :meth:`keep`.

        If the host loses its power just after the guest has left, it must not start the guest a second time.

        :param facts: what else to record.
        """
        autostart = self._autostarts(instance_uuid)
        self._records.write(records.OUTGOING, instance_uuid, {**facts, 'autostart': autostart})
        if autostart:
            self._set_autostart(instance_uuid, False)

    def keep(self, instance_uuid: str) -> None:
        """Restore the autostart of a guest that has stayed here, and remove its record."""
        facts = self._records.read(records.OUTGOING, instance_uuid) or {}
        if facts.get('autostart'):
            self._set_autostart(instance_uuid, True)
        self._records.remove(records.OUTGOING, instance_uuid)

    def abort(self, instance_uuid: str) -> None:
        """Ask libvirt to abort a guest's job.

        Without a job, or if it is too late, nothing happens.
        """
        # Note the abort first, because the job may end before libvirt answers.
        with self._lock:
            new = instance_uuid in self._jobs and instance_uuid not in self._aborted
            if new:
                self._aborted.add(instance_uuid)
        if not self._ask('live_migration_abort', instance_uuid, lambda domain: domain.abortJob()) and new:
            with self._lock:
                self._aborted.discard(instance_uuid)

    def force_complete(self, instance_uuid: str) -> None:
        """Make a guest's job end soon: now, or as soon as it copies memory."""
        with self._lock:
            known = instance_uuid in self._jobs
            if known:
                self._forced.add(instance_uuid)
        if known:
            self._connection.waker.wake(instance_uuid)
        else:
            self._force(instance_uuid)

    def progress(self, instance_uuid: str) -> dict[str, int]:
        """Return the figures of a guest's job in bytes, or {} without a job."""
        stats = self._stats(instance_uuid)
        return {name: int(stats.get(name, 0)) for name in FIGURES} if stats else {}

    # --- one monitor for each job ------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _own(self, instance_uuid: str) -> Iterator[tuple[_Job, bool]]:
        with self._lock:
            job = self._jobs.get(instance_uuid)
            mine = job is None
            if job is None:
                job = self._jobs[instance_uuid] = _Job(self._threads)
            else:
                job.listeners += 1
        if not mine:
            yield job, False
            return
        try:
            yield job, True
        except exception.MigratorException as error:
            job.error = error
            raise
        finally:
            with self._lock:
                del self._jobs[instance_uuid]
                self._aborted.discard(instance_uuid)
                self._forced.discard(instance_uuid)
            job.begun.set()
            job.ended.set()

    def _join(self, job: _Job, started: Callable[[], None]) -> Verdict:
        job.begun.wait()
        if job.error is None:
            started()
        job.ended.wait()
        if job.error is not None:
            raise job.error
        if job.verdict is None:
            raise exception.MoveUnsettled(host=self._connection.host, reason=_NO_RESULT)
        return job.verdict

    def _finish(self, job: _Job, verdict: Verdict | None) -> Verdict:
        job.verdict = verdict
        if verdict is None:
            raise exception.MoveUnsettled(host=self._connection.host, reason=_NO_RESULT)
        return verdict

    # --- the call ----------------------------------------------------------------------------------------------------

    def _perform(self, instance_uuid: str, plan: Plan, job: _Job) -> None:
        def migrate(connection: Any) -> None:
            connection.lookupByUUIDString(instance_uuid).migrateToURI3(plan.uri, plan.parameters, plan.flags)

        # Until the call has returned without an error, nothing says that the guest has moved.
        job.failure = self._error('the call was interrupted')
        try:
            self._connection.do('live_migration', migrate, lasts=True)
            job.failure = None
        except exception.DriverError as error:
            reason = str(error.kwargs['reason']).rstrip('.')
            if not _is_of_source(error.__cause__):
                # The source's libvirt also reports the errors of the destination, and its messages name no host.
                reason = f'{reason}; the cause may be at the destination, {plan.uri}'
            job.failure = self._error(reason)
            job.failure.__cause__ = error.__cause__
        except exception.MigratorException as error:
            job.failure = error
        except BaseException as error:
            if self._threads.is_final(error):
                raise
            LOG.exception('libvirt rejected the migration request for guest %s as invalid', instance_uuid)
            job.failure = self._error(f'{type(error).__name__}: {error}')
        finally:
            job.returned.set()
            self._connection.waker.wake(instance_uuid)

    def _monitor_job(
        self, instance_uuid: str, plan: Plan, job: _Job, started: Callable[[], None], news: executors.Event
    ) -> None:
        clock = self._threads.clock
        began, widened = 0.0, list(plan.downtimes)
        while not job.returned.is_set():
            news.wait(POLL_INTERVAL if job.begun.is_set() else _BEGINNING)
            news.clear()
            if job.returned.is_set():
                return
            try:
                stats = self._stats(instance_uuid)
                if stats is _BROKEN:
                    reason = f'the post-copy of guest {instance_uuid} has broken off'
                    raise exception.MoveUnsettled(host=self._connection.host, reason=reason)
                if not stats:
                    continue
                if not job.begun.is_set():
                    began = clock.monotonic()
                    job.begun.set()
                    started()
                if instance_uuid in self._forced:
                    self._force(instance_uuid)
                due = [value for after, value in widened if clock.monotonic() - began >= after]
                if due:
                    self._widen(instance_uuid, due[-1])
                    widened = widened[len(due) :]
            except exception.MoveUnsettled:
                raise
            except exception.MigratorException as error:
                # A failed poll is harmless: the call itself returns the result.
                LOG.warning(
                    'Cannot poll the migration job of guest %(guest)s: %(error)s',
                    {'guest': instance_uuid, 'error': error},
                )

    def _judge(self, instance_uuid: str, job: _Job) -> Verdict | None:
        failure = job.failure
        if failure is None:
            return Verdict.COMPLETED
        guest = self._look(instance_uuid)
        if guest.job:
            # The connection has failed, and the job continues.
            return self._wait(instance_uuid)
        if guest.state not in protocol.ACTIVE:
            if self._connection.has_moved(instance_uuid):
                return Verdict.COMPLETED
            raise exception.MoveUnsettled(host=self._connection.host, reason=str(failure))
        if not isinstance(failure, exception.DriverError):
            # The call may have been carried out, so a job may still appear.
            raise exception.MoveUnsettled(host=self._connection.host, reason=str(failure))
        self._try_to_keep(instance_uuid)
        cause = failure.__cause__
        aborted = isinstance(cause, libvirt.libvirtError) and (code_of(cause) == libvirt.VIR_ERR_OPERATION_ABORTED)
        if aborted or instance_uuid in self._aborted:
            return Verdict.ABORTED
        if not job.begun.is_set():
            raise failure
        raise exception.LiveMigrationFailed(
            instance_uuid=instance_uuid, host=self._connection.host, reason=str(failure.kwargs.get('reason', failure))
        )

    def _wait(self, instance_uuid: str) -> Verdict | None:
        self._connection.listen()
        widest = int((self._records.read(records.OUTGOING, instance_uuid) or {}).get('widest', 0))
        with self._connection.waker.listen(instance_uuid) as news:
            while True:
                guest = self._look(instance_uuid)
                if guest.state == GuestState.POSTCOPY_BROKEN:
                    # Libvirt keeps the job until an operator has destroyed the guest.
                    return None
                if not guest.job:
                    break
                if widest:
                    # The step that the job had reached is unknown. It has had enough time for all of them.
                    with contextlib.suppress(exception.DriverError):
                        self._widen(instance_uuid, widest)
                    widest = 0
                if instance_uuid in self._forced:
                    self._force(instance_uuid)
                news.wait(POLL_INTERVAL)
                news.clear()
        if guest.state not in protocol.ACTIVE:
            return Verdict.COMPLETED if self._connection.has_moved(instance_uuid) else None
        self._try_to_keep(instance_uuid)
        return Verdict.ABORTED if instance_uuid in self._aborted else Verdict.FAILED

    def _try_to_keep(self, instance_uuid: str) -> None:
        try:
            self.keep(instance_uuid)
        except exception.MigratorException as error:
            LOG.warning(
                'Could not confirm that guest %(guest)s stayed on the source; the rollback checks it: %(error)s',
                {'guest': instance_uuid, 'error': error},
            )

    def _autostarts(self, instance_uuid: str) -> bool:
        """Return whether this host autostarts a guest, or did so before an unsettled migration."""
        before = self._records.read(records.OUTGOING, instance_uuid) or {}

        def ask(connection: Any) -> bool:
            return bool(connection.lookupByUUIDString(instance_uuid).autostart())

        return bool(before.get('autostart')) or self._connection.call('live_migration', ask)

    def _set_autostart(self, instance_uuid: str, wanted: bool) -> None:
        def ask(connection: Any) -> None:
            domain = connection.lookupByUUIDString(instance_uuid)
            if domain.isPersistent():
                domain.setAutostart(int(wanted))

        self._connection.call('live_migration', ask)

    # --- libvirt -----------------------------------------------------------------------------------------------------

    def _stats(self, instance_uuid: str) -> dict[str, Any]:
        """Return libvirt's figures of a guest's job.

        :returns: {} without a job, and :data:`_BROKEN` for a job that never ends.
        """

        def ask(connection: Any) -> dict[str, Any]:
            domain, seen = find_domain(connection, instance_uuid), read_state(connection, instance_uuid)
            if domain is None or not seen.job:
                return {}
            if to_guest(instance_uuid, seen, False).state == GuestState.POSTCOPY_BROKEN:
                return _BROKEN
            try:
                return dict(domain.jobStats())
            except libvirt.libvirtError as error:
                if code_of(error) in (libvirt.VIR_ERR_OPERATION_INVALID, libvirt.VIR_ERR_NO_DOMAIN):
                    return {}
                raise

        return self._connection.call('get_progress', ask)

    def _ask(self, phase: str, instance_uuid: str, function: Callable[[Any], Any]) -> bool:
        """Call a function on the domain of a guest's job.

        :returns: whether there was a job and libvirt accepted the call.
        """

        def ask(connection: Any) -> tuple[bool, str]:
            domain = find_domain(connection, instance_uuid)
            if domain is None or not read_state(connection, instance_uuid).job:
                return False, ''
            try:
                function(domain)
            except libvirt.libvirtError as error:
                if code_of(error) in (libvirt.VIR_ERR_OPERATION_INVALID, libvirt.VIR_ERR_NO_DOMAIN):
                    return False, str(error)
                raise
            return True, ''

        done, why = self._connection.call(phase, ask)
        if why:
            LOG.info(
                'libvirt refused %(phase)s for guest %(guest)s: %(reason)s',
                {'phase': phase, 'guest': instance_uuid, 'reason': why},
            )
        return done

    def _widen(self, instance_uuid: str, milliseconds: int) -> None:
        LOG.debug(
            'Setting the allowed downtime of guest %(guest)s to %(milliseconds)d ms',
            {'guest': instance_uuid, 'milliseconds': milliseconds},
        )
        self._ask('live_migration', instance_uuid, lambda domain: domain.migrateSetMaxDowntime(milliseconds, 0))

    def _force(self, instance_uuid: str) -> None:
        """Switch to post-copy, or else pause the guest.

        Nothing happens before memory is copied, because a copy of disks takes long.
        """
        stats = self._stats(instance_uuid)
        if not stats or not (stats.get('memory_iteration') or stats.get('memory_processed')):
            return
        phase = 'live_migration_force_complete'
        if not self._ask(phase, instance_uuid, lambda domain: domain.migrateStartPostCopy(0)):
            # The pause lasts until the rest is copied, so lift the limit of the bandwidth.
            self._ask(phase, instance_uuid, lambda domain: domain.migrateSetMaxSpeed(FASTEST, 0))
            self._ask(phase, instance_uuid, _pause)
        with self._lock:
            self._forced.discard(instance_uuid)

    def _error(self, reason: str) -> exception.DriverError:
        return exception.DriverError(host=self._connection.host, phase='live_migration', reason=reason)


def _is_idle(connection: Any, instance_uuid: str) -> bool:
    domain = find_domain(connection, instance_uuid)
    if domain is None:
        return True
    try:
        state, *_rest = domain.controlInfo(0)
    except libvirt.libvirtError as error:
        # The guest does not run, for example because its host has lost its power. So no call can be in progress.
        if code_of(error) in (libvirt.VIR_ERR_OPERATION_INVALID, libvirt.VIR_ERR_NO_DOMAIN):
            return True
        raise
    # This queries QEMU, so it waits behind every other call for the guest.
    with contextlib.suppress(libvirt.libvirtError):
        domain.memoryStats()
    return bool(state == libvirt.VIR_DOMAIN_CONTROL_OK)


def _pause(domain: Any) -> None:
    """Pause a guest whose job is in progress.

    A guest whose job has just ended continues to run.
    """
    ran = domain.state()[0] == libvirt.VIR_DOMAIN_RUNNING
    domain.suspend()
    if ran and tuple(domain.state()) == (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER):
        # The pause would belong to the migration if there still were a job. Now nothing would resume the guest.
        domain.resume()


def _is_of_source(error: BaseException | None) -> bool:
    """Return whether libvirt refused a call before it asked the destination for anything."""
    return isinstance(error, libvirt.libvirtError) and code_of(error) == libvirt.VIR_ERR_OPERATION_INVALID
