# SPDX-License-Identifier: Apache-2.0

"""The periodic work of a conductor: the sweep, and the polls of hosts that have not reported."""

from __future__ import annotations

import collections
import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

from oslo_log import log as logging

from migrator import exception, executors
from migrator.conductor import cleanups, definitions, runner, takeover
from migrator.conductor.compute_client import HostBusy
from migrator.conductor.migration import hosts, waiting
from migrator.conductor.migration.context import MigrationContext, Tools
from migrator.context import RequestContext
from migrator.db import actions
from migrator.db.cleanups import Cleanup
from migrator.db.migrations import REQUESTS
from migrator.db.slots import Bounds
from migrator.db.sql.due import Due
from migrator.objects import COMPUTE_BINARY, Migration, MigrationStatus, protocol
from migrator.objects.instance import RESIZED
from migrator.objects.reasons import WaitKind

LOG = logging.getLogger(__name__)

#: The content of an observation without its progress, which changes all the time.
_content = operator.attrgetter(
    *sorted({field.name for field in dataclasses.fields(protocol.Observation)} - {'progress'})
)
#: Seconds between two runs of a migration that waits for an unreachable host, and between two polls of that host.
_UNREACHABLE_INTERVAL = 5.0
#: Seconds between two runs of a stuck migration: its other host may have the guest by now.
_STUCK_INTERVAL = 30.0
_FIGURES = ('memory_total', 'memory_processed', 'memory_remaining', 'disk_total', 'disk_processed', 'disk_remaining')
#: How many of the migrations that wait in the queue of a host one poll names: the first of them, which may have begun,
#: and those that were polled longest ago.
_FIRST_QUEUED, _OTHER_QUEUED = 8, 8
#: Seconds for which heartbeats are collected. The conductor loses those of one such interval if it is killed.
_COLLECT = 1.0


class Heartbeats:
    """The heartbeats that a conductor has received and writes together, once a second.

    :param pool: makes the calls that let a host register again.
    """

    def __init__(self, tools: Tools, pool: executors.BoundedExecutor) -> None:
        self._tools = tools
        self._pool = pool
        self._lock = tools.threads.lock()
        #: Host -> the boot of its heartbeat.
        self._waiting: dict[str, str] = {}
        self._began = 0.0

    def take(self, host: str, boot_id: str) -> None:
        """Write a heartbeat with the next ones."""
        with self._lock:
            is_first = not self._waiting
            self._waiting[host] = boot_id
            if is_first:
                self._began = self._tools.threads.clock.monotonic()
        if is_first:
            self._begin_write()

    def _begin_write(self) -> None:
        try:
            self._tools.threads.start(self._write_later, name='heartbeats')
        except RuntimeError:  # the process cannot start a thread
            self.write()

    def _write_later(self) -> None:
        self._tools.threads.sleep(_COLLECT)
        try:
            self.write()
        except exception.ServiceUnreachable as error:
            LOG.warning('Could not write the heartbeats of hosts; their next ones count: %s', error)
        except Exception:  # no caller waits for the result
            LOG.exception('Could not write the heartbeats of hosts; their next ones count')

    def write(self) -> None:
        """Write the heartbeats that wait."""
        with self._lock:
            boots, self._waiting = self._waiting, {}
            # The hosts were up at their reports, and nothing is known about them since.
            age = self._tools.threads.clock.monotonic() - self._began
        if not boots:
            return
        for host in sorted(self._tools.database.services.heartbeats(boots, age)):
            self._on_unknown_boot(host, boots[host])

    def _on_unknown_boot(self, host: str, boot_id: str) -> None:
        """Make the boot of a heartbeat register, if the database has another, unreachable one.

        The service may have been deleted, or the database restored from a backup.
        """
        services = self._tools.database.services
        found = services.list(binary=COMPUTE_BINARY, host=host)
        if found:
            known = found[0]
            if known.boot_id == boot_id:
                return  # The host has stopped, and this heartbeat was sent before.
            # If two live services share a name, keep the registered boot, so that they do not evict each other. A host
            # whose registered boot is dead registers again before it counts as down.
            patience = self._tools.options.service_down_time / 2
            if known.last_seen_up is not None and not known.is_unreachable(services.now(), patience):
                return
        # A host that receives a command for another boot registers again.
        self._pool.submit(self._call_back, host)

    def _call_back(self, host: str) -> None:
        for_no_boot = protocol.Command(
            migration_uuid=protocol.NO_UUID,
            instance_uuid=protocol.NO_UUID,
            step='poll',
            epoch=0,
            owner=self._tools.owner,
            reply_to=self._tools.server,
            boot_id=protocol.NO_UUID,
        )
        try:
            self._tools.hosts.poll(host, [for_no_boot])
        except HostBusy:
            LOG.debug('No free call slot for host %s; its next heartbeat tries again', host)


def sweep(
    tools: Tools,
    runs: runner.Runner,
    pool: executors.BoundedExecutor,
    count: Callable[[Sequence[Cleanup]], None],
    adopt: Callable[[Sequence[str]], None],
) -> Due:
    """Take over migrations, wake those that wait, run deferred cleanups, and fetch definitions.

    A lost message delays a migration until the next sweep at most.

    :param pool: limits the cleanups that run at a time.
    :param count: called with all deferred cleanups.
    :param adopt: called with migrations of one source that no living conductor owns.
    :returns: what there was to do.
    """
    with tools.database.one_session() as database:
        due = database.due(tools.owner, definitions.KEPT)
        orphans = database.takeovers.orphans() if due.orphans else []
        owned = database.migrations.owned_by(tools.owner) if due.owned else []
        fenced = database.services.forced_down() if due.forced_down else set()
        deferred = database.cleanups.list() if due.deferred else []
        cleaned = database.cleanups.cleaned_evacuations() if due.cleaned else []
    count(deferred)
    for uuids in orphans:
        _adopt(uuids, adopt)
    held = {subject.row.uuid: subject.row for subject in runs.held()}
    for uuid, epoch, requests in owned:
        row = held.get(uuid)
        if row is None:
            _take_up(tools, runs, uuid)
        elif (epoch, requests) != (row.epoch, tuple(getattr(row, name) is not None for name in REQUESTS)):
            # The message about a request, or about the restart of a host, was lost.
            runs.wake(uuid, reread=True)
    now = tools.threads.clock.monotonic()
    for subject in runs.held():
        # A migration that waits for one host gets no report from the other. Only the database shows that it is fenced.
        concerned = not subject.ledger.waits_on or not fenced.isdisjoint(subject.row.hosts_to_poll)
        if concerned and (subject.ledger.wake_at is None or subject.ledger.wake_at <= now):
            runs.wake(subject.row.uuid, reread=subject.row.stuck_kind is not None)
    runs.look_after(tools.options.service_down_time / 2)
    if tools.options.confirm_window:
        _confirm_old(tools, runs)
    if not tools.broker.away_for():
        cleanups.run_all(tools, pool, deferred)
        if due.outdated:
            definitions.fetch_all(tools, pool)
    cleanups.complete_all(tools, pool, cleaned)
    return due


#: The user of a request that no user has made.
SERVICE_USER = 'migrator'


def _confirm_old(tools: Tools, runs: runner.Runner) -> None:
    """Confirm what has waited for its user for longer than ``resize_confirm_window``."""
    waiting_ = [subject.row for subject in runs.held() if subject.row.is_undecided]
    if not waiting_:
        return
    now, services = tools.database.services.now(), tools.database.services
    up = {one.host for one in services.list(COMPUTE_BINARY) if one.is_up(now, tools.options.lease)}
    for row in waiting_:
        age = (now - row.updated_at).total_seconds() if row.updated_at is not None else 0.0
        if age < tools.options.confirm_window or not up.issuperset(row.hosts):
            continue
        guest = tools.database.instances.find(row.instance_uuid)
        if guest is None or guest.locked or guest.task_state is not None or guest.vm_state != RESIZED:
            continue
        context = RequestContext(user_id=SERVICE_USER, project_id=row.project_id, is_admin=True, overwrite=False)
        try:
            tools.database.requests.request_decision(context, row, actions.CONFIRM_RESIZE)
        except exception.InvalidMigrationState:
            continue  # its user was faster
        found = {'migration': row.uuid, 'age': age}
        LOG.info('Confirming migration %(migration)s, which has waited for its user for %(age)d s', found)
        runs.wake(row.uuid, reread=True)


def _adopt(uuids: Sequence[str], adopt: Callable[[Sequence[str]], None]) -> None:
    """Adopt migrations of one source together, or one by one if an error with one of them prevents that."""
    try:
        adopt(uuids)
    except exception.ServiceUnreachable:
        raise
    except Exception:  # it concerns these migrations only, and rolls back what they share
        LOG.exception('Could not take over migrations %s; the next sweep tries again', ', '.join(uuids))
        if len(uuids) > 1:
            for uuid in uuids:
                _adopt([uuid], adopt)


def _take_up(tools: Tools, runs: runner.Runner, uuid: str) -> None:
    """Read one migration and run it; an error does not affect the other migrations."""
    try:
        subject = takeover.reload(tools, uuid)
    except exception.ServiceUnreachable:
        raise
    except exception.NotOwner as error:
        # For example, a host has registered a new boot meanwhile. The next sweep reads the migration again.
        LOG.info(
            'Could not take up migration %(migration)s in this sweep: %(error)s', {'migration': uuid, 'error': error}
        )
    except Exception:  # it concerns this migration only; the next sweep tries again
        LOG.exception('Could not take up migration %s; the next sweep tries again', uuid)
    else:
        if subject is not None:
            runs.take(subject)


def poll(
    tools: Tools, runs: runner.Runner, pool: executors.BoundedExecutor, advance_drains: Callable[[], None]
) -> None:
    """Wake the migrations that are due, and poll each host once about those without a recent report.

    Of many migrations that wait in the queue of a host, one poll names a few.

    :param pool: limits the hosts that are polled at a time.
    :param advance_drains: called at each poll.
    """
    advance_drains()
    wake_waiters(tools, runs)
    now = tools.threads.clock.monotonic()
    unreported: dict[str, list[MigrationContext]] = collections.defaultdict(list)
    for subject in runs.held():
        if subject.ledger.wake_at is not None and subject.ledger.wake_at <= now:
            runs.wake(subject.row.uuid)
        elif now - subject.replies.received_at >= tools.options.poll_interval:
            for host in sorted(subject.ledger.waits_on):
                unreported[host].append(subject)
    for host in tools.hosts.unacknowledged():
        unreported.setdefault(host, [])
    if tools.broker.away_for():
        return
    # Hosts that reply at once come first. Each of the others costs a time-out.
    for host in sorted(unreported, key=lambda name: (tools.hosts.unanswered_for(name), name)):
        if not _is_long_unreachable(tools, host):
            tools.submit_once(pool, ('poll', host), _poll_host, runs, host, unreported[host])


def take_news(tools: Tools, runs: runner.Runner, advance_drain: Callable[[str], None], row: Migration) -> None:
    """Wake what may have waited for the end of a migration, or for the begin of its copy.

    :param advance_drain: called with the drain that has requested the migration, if one has.
    """
    if row.ended and any(one.row.waits_for_slot for one in runs.held()):
        wake_waiters(tools, runs)
    if row.drain is not None:
        advance_drain(row.drain)


def wake_waiters(tools: Tools, runs: runner.Runner) -> None:
    """Wake the migrations that wait for a slot and may find it free, the first in their order first."""
    waiters = {subject.row.uuid: subject.ledger.candidates for subject in runs.held() if subject.row.waits_for_slot}
    if waiters:
        found = tools.database.slots.read(tools.options.bounds or Bounds())
        tools.slots.note(found, tools.options.poll_interval)
        for uuid in found.due(waiters):
            runs.wake(uuid)


def _is_long_unreachable(tools: Tools, host: str) -> bool:
    """Return whether to poll a host less often, so that many unreachable hosts do not use all threads."""
    long = tools.hosts.unanswered_for(host) >= tools.options.service_down_time
    return long and tools.hosts.was_unreachable(host, _UNREACHABLE_INTERVAL)


def _poll_host(tools: Tools, runs: runner.Runner, host: str, subjects: list[MigrationContext]) -> None:
    named = _named(subjects)
    try:
        found = tools.hosts.poll(host, [hosts.command(subject, host, 'poll') for subject in named])
    except HostBusy:
        return
    except Exception:  # the pool would drop the error
        LOG.exception('Could not poll host %s', host)
        return
    answers = {observation.migration_uuid: observation for observation in found or []}
    # If the host does not reply, each migration says so.
    for subject in named if found is not None else subjects:
        with runner.log_context(subject):
            try:
                _take_answer(tools, runs, subject, host, answers.get(subject.row.uuid))
            except exception.ServiceUnreachable as error:
                LOG.warning(
                    'Could not record the reply of host %(host)s about migration %(migration)s: %(error)s',
                    {'host': host, 'migration': subject.row.uuid, 'error': error},
                )
            except Exception:  # it concerns this migration only
                LOG.exception(
                    'Could not record the reply of host %(host)s about migration %(migration)s',
                    {'host': host, 'migration': subject.row.uuid},
                )


def _named(subjects: list[MigrationContext]) -> list[MigrationContext]:
    """Return the migrations that a poll of their host names.

    Most of the many that only wait in its queue are left out.
    """
    queued = [
        one
        for one in subjects
        if one.row.status == MigrationStatus.QUEUED and one.row.wait_kind is None and waiting.lasts(one)
    ]
    # The host takes them from its queue in this order.
    queued.sort(key=lambda one: one.row.id)
    others = sorted(queued[_FIRST_QUEUED:], key=lambda one: one.replies.received_at)
    unnamed = {one.row.uuid for one in others[_OTHER_QUEUED:]}
    return [one for one in subjects if one.row.uuid not in unnamed]


def _take_answer(
    tools: Tools, runs: runner.Runner, subject: MigrationContext, host: str, answer: protocol.Observation | None
) -> None:
    uuid = subject.row.uuid
    if answer is None:
        _note_no_report(tools, runs, subject, host)
        return
    if answer.refusal is None:
        waiting.end_silence(subject, host)
    figures: dict[str, Any] = {
        name: answer.progress[name]
        for name in _FIGURES
        if answer.progress.get(name) is not None and getattr(subject.row, name) != answer.progress[name]
    }
    if figures:
        tools.database.migrations.note_progress(subject.row, figures)
    if answer.refusal is None and not subject.replies.unsure and not has_news(subject.replies.seen.get(host), answer):
        subject.replies.take_observation(answer, subject.row.epoch)
        return
    runs.wake(uuid, observation=answer, reread=answer.refusal is not None)


def _note_no_report(tools: Tools, runs: runner.Runner, subject: MigrationContext, host: str) -> None:
    """Record that a host does not reply or report the guest, and wake the migration at intervals."""
    now, unanswered = tools.threads.clock.monotonic(), tools.hosts.unanswered_for(host)
    if not unanswered:
        subject.replies.note_unresponsive(host)
    waited = unanswered or subject.replies.unresponsive_for(host)
    if waited < tools.options.service_down_time and (unanswered or not waiting.is_reported_away(subject, host)):
        return
    why = waiting.note_silence(subject, host, waited, WaitKind.HOST if unanswered else WaitKind.GUEST)
    if why is not None:
        LOG.warning('Migration waits: %(migration)s: %(reason)s', {'migration': subject.row.uuid, 'reason': why})
    # A stuck migration may run less often: the sweep finds a fenced host, and a reply wakes the migration as well.
    if now - subject.replies.woken_for_silence >= (
        _UNREACHABLE_INTERVAL if subject.row.stuck_kind is None else _STUCK_INTERVAL
    ):
        subject.replies.woken_for_silence = now
        runs.wake(subject.row.uuid)


def has_news(known: protocol.Observation | None, answer: protocol.Observation) -> bool:
    """Return whether an observation differs from the one before in more than its progress."""
    return known is None or _content(known) != _content(answer)
