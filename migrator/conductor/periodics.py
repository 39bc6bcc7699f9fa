# SPDX-License-Identifier: Apache-2.0

"""What the conductor does on a clock: sweep, and ask hosts that have been silent."""

from __future__ import annotations

import collections
import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from oslo_log import log as logging

from migrator import exception, executors
from migrator.conductor import cleanups, runner, takeover
from migrator.conductor.compute_client import HostBusy
from migrator.conductor.migration.context import MigrationContext, Tools
from migrator.db.cleanups import Cleanup
from migrator.db.migrations import REQUESTS
from migrator.objects import COMPUTE_BINARY, protocol

LOG = logging.getLogger(__name__)

#: What a host says of a migration, its progress aside.
_told = operator.attrgetter(*sorted({field.name for field in dataclasses.fields(protocol.Observation)} - {'progress'}))
#: Seconds between two looks at what waits for a host that has long been silent, and between two questions to it.
_LOOK_AT_SILENCE = 5.0
#: Seconds between two looks at what is stuck for such a host: where its other host has the guest by now.
_LOOK_AT_STUCK = 30.0
_FIGURES = (
    'memory_total',
    'memory_processed',
    'memory_remaining',
    'disk_total',
    'disk_processed',
    'disk_remaining',
)


def sweep(
    tools: Tools, stories: runner.Runner, pool: executors.BoundedExecutor, count: Callable[[Sequence[Cleanup]], None]
) -> None:
    """Adopt what nobody living owns, wake what waits, have debts paid: no lost message can hold it longer than this.

    :param pool: bounds how many hosts are told at a time to pay.
    :param count: is told all debts that there are.
    """
    with tools.database.one_session() as database:
        orphans = database.migrations.orphans()
        owned = database.migrations.owned_by(tools.owner)
        services = database.services.list(binary=COMPUTE_BINARY)
        owed = database.cleanups.list()
    count(owed)
    for uuid, epoch in orphans:
        _take_up(stories, uuid, functools.partial(takeover.adopt, tools, uuid, epoch))
    held = {subject.row.uuid: subject.row for subject in stories.held()}
    for uuid, epoch, requests in owned:
        row = held.get(uuid)
        if row is None:
            _take_up(stories, uuid, functools.partial(takeover.reload, tools, uuid))
        elif (epoch, requests) != (row.epoch, tuple(getattr(row, name) is not None for name in REQUESTS)):
            # A wish, or the restart of a host, whose message was lost.
            stories.wake(uuid, reread=True)
    now = tools.threads.clock.monotonic()
    fenced = {service.host for service in services if service.forced_down}
    for subject in stories.held():
        # Who waits for one host hears nothing of the other; that it was fenced is told by the database alone.
        concerned = not subject.waits_on or not fenced.isdisjoint(subject.hosts)
        if concerned and (subject.wake_at is None or subject.wake_at <= now):
            stories.wake(subject.row.uuid, reread=subject.row.stuck_reason is not None)
    stories.look_after(tools.options.service_down_time / 2)
    if not tools.broker.away_for():
        cleanups.run_all(tools, pool, owed)


def _take_up(stories: runner.Runner, uuid: str, read: Callable[[], MigrationContext | None]) -> None:
    """Take one migration in hand; what is the matter with it is not the trouble of those behind it."""
    try:
        subject = read()
    except exception.ServiceUnreachable:
        raise
    except exception.NotOwner as error:
        # Such as where a host that it names has registered a new boot in between: the next sweep reads it anew.
        LOG.info('%s', error)
    except Exception:  # that of one migration; the next sweep tries again
        LOG.exception('Migration %s could not be taken up, and will be tried again', uuid)
    else:
        if subject is not None:
            stories.take(subject)


def poll(tools: Tools, stories: runner.Runner, pool: executors.BoundedExecutor) -> None:
    """Wake what is due, and ask each host about all its migrations that have been silent, one call per host.

    :param pool: bounds how many hosts are asked at a time.
    """
    now = tools.threads.clock.monotonic()
    silent: dict[str, list[MigrationContext]] = collections.defaultdict(list)
    for subject in stories.held():
        if subject.wake_at is not None and subject.wake_at <= now:
            stories.wake(subject.row.uuid)
        elif now - subject.heard_at >= tools.options.poll_interval:
            for host in sorted(subject.waits_on):
                silent[host].append(subject)
    for host in tools.hosts.unacknowledged():
        silent.setdefault(host, [])
    if tools.broker.away_for():
        return
    # Who answers at once comes first; the others cost a time-out each.
    for host in sorted(silent, key=lambda name: (tools.hosts.unanswered_for(name), name)):
        if host not in tools.asking and not _has_been_silent_long(tools, host):
            tools.asking.add(host)
            pool.submit(_ask_and_forget, tools, stories, host, silent[host])


def _has_been_silent_long(tools: Tools, host: str) -> bool:
    """Whether a host is to be asked less often: very many that are off must not take all the threads there are."""
    long = tools.hosts.unanswered_for(host) >= tools.options.service_down_time
    return long and tools.hosts.was_silent(host, _LOOK_AT_SILENCE)


def _ask_and_forget(tools: Tools, stories: runner.Runner, host: str, subjects: list[MigrationContext]) -> None:
    try:
        _poll_host(tools, stories, host, subjects)
    finally:
        tools.asking.discard(host)


def _poll_host(tools: Tools, stories: runner.Runner, host: str, subjects: list[MigrationContext]) -> None:
    try:
        found = tools.hosts.ask(host, [subject.order(host, 'poll') for subject in subjects])
    except HostBusy:
        return
    except Exception:  # a pool's error is seen by nobody else
        LOG.exception('Asking %s failed', host)
        return
    answers = {observation.migration_uuid: observation for observation in found or []}
    for subject in subjects:
        with runner.about(subject):
            try:
                _take_answer(tools, stories, subject, host, answers.get(subject.row.uuid))
            except exception.ServiceUnreachable as error:
                LOG.warning('Migration %s: %s', subject.row.uuid, error)
            except Exception:  # one migration's trouble is not the others'
                LOG.exception('Migration %s could not take in what %s said', subject.row.uuid, host)


def _take_answer(
    tools: Tools,
    stories: runner.Runner,
    subject: MigrationContext,
    host: str,
    answer: protocol.Observation | None,
) -> None:
    uuid = subject.row.uuid
    if answer is None:
        _take_silence(tools, stories, subject, host)
        return
    if answer.refusal is None:
        subject.end_silence(host)
    figures: dict[str, Any] = {
        name: answer.progress[name]
        for name in _FIGURES
        if answer.progress.get(name) is not None and getattr(subject.row, name) != answer.progress[name]
    }
    if figures:
        tools.database.migrations.note_progress(subject.row, figures)
    if answer.refusal is None and not subject.unsure and not has_news(subject.seen.get(host), answer):
        subject.take_observation(answer)
        return
    stories.wake(uuid, observation=answer, reread=answer.refusal is not None)


def _take_silence(tools: Tools, stories: runner.Runner, subject: MigrationContext, host: str) -> None:
    """Tell of a host that has long been silent, altogether or of this guest, and have it looked at now and then."""
    now, silent = tools.threads.clock.monotonic(), tools.hosts.unanswered_for(host)
    if not silent:
        subject.note_unresponsive(host)
    waited = silent or subject.unresponsive_for(host)
    if waited < tools.options.service_down_time and (silent or not subject.is_said_silent(host)):
        return
    why = subject.note_silence(host, waited, answers=not silent)
    if why is not None:
        LOG.warning('Migration %s waits: %s', subject.row.uuid, why)
    # What is stuck already is fenced by a word that the sweep finds, or freed by an answer, which wakes it as well.
    if now - subject.woken_for_silence >= (_LOOK_AT_SILENCE if subject.row.stuck_reason is None else _LOOK_AT_STUCK):
        subject.woken_for_silence = now
        stories.wake(subject.row.uuid)


def has_news(known: protocol.Observation | None, answer: protocol.Observation) -> bool:
    """Whether a poll's answer says more than the one before, progress aside."""
    return known is None or _told(known) != _told(answer)
