# SPDX-License-Identifier: Apache-2.0

"""Invariants of clients' requests, of their responses and of logs.

Each function yields the violations in a world.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from migrator.db import actions
from migrator.objects import LEGAL_MOVES, Migration, MigrationStatus
from migrator.objects.reasons import Reason, StuckKind, WaitKind
from migrator.saga import log
from migrator.simulator.world import World
from migrator.testing.hypervisor import hypervisor

if TYPE_CHECKING:  # the invariants need not import the cloud
    from migrator.testing.client import Exchange

_S = MigrationStatus

#: Action of a server that makes a migration -> the status of the response if it is accepted.
ACCEPTED = {'os-migrateLive': 202, 'evacuate': 200, 'migrate': 202}
#: The microversion from which os-migrateLive does not wait for its checks.
ASYNCHRONOUS = (2, 34)
#: How often a migration may become stuck for one reason again, without other news: its host comes and goes.
_MAY_REPEAT = 3
#: The text of a :class:`~migrator.exception.ServiceUnreachable` in another text, or a wait for such a service.
_AWAY = re.compile(r'is not reachable|does not let migrator in|the message broker|Unreachable')
#: A log line that names the migration of a deferred cleanup.
_BLOCKS = re.compile(r'Blocking deferred cleanup \S+ at \S+ for migration (\S+):')
_ABORT = re.compile(r'^/servers/(?P<server>[^/?]+)/migrations/(?P<id>\d+)$')


def responses(world: World) -> Iterator[str]:
    """I8, history: an accepted request is never lost; a 4xx leaves no migration and the server unchanged.

    A live migration is accepted with 202, and an evacuation with 200. Below 2.34 a 4xx to a live migration may leave an
    ended row, which together with its action has the reason. The request id identifies
    the migration. I2 and I15 check that the server's host and task_state are unchanged.
    """
    for exchange in world.history:
        if exchange.method != 'POST' or not isinstance(exchange.body, dict) or not ACCEPTED.keys() & exchange.body:
            continue
        accepted = next(status for name, status in ACCEPTED.items() if name in exchange.body)
        made = [one for one in world.migrations.values() if one.request_id == exchange.request_id]
        name = f'{exchange.path} at {exchange.version} ({exchange.request_id})'
        if exchange.status == accepted and not made:
            yield f'{name} returned {accepted}, but its migration does not exist'
        if not 400 <= exchange.status < 500:
            continue
        for migration in made:
            if _version(exchange) >= ASYNCHRONOUS or migration.in_progress:
                yield f'{name} returned {exchange.status}, but created {migration.uuid}, {migration.status}'
            elif not (migration.failure and _action_has_reason(world, migration)):
                yield f'{name} returned {exchange.status}, but {migration.uuid} or its action has no reason'


def _version(exchange: Exchange) -> tuple[int, ...]:
    return tuple(int(part) for part in exchange.version.split('.'))


def _action_has_reason(world: World, migration: Migration) -> bool:
    return any(
        action.migration_uuid == migration.uuid and action.result == actions.ERROR and action.message
        for action in world.actions
    )


def aborts(world: World) -> Iterator[str]:
    """I9, history: after a 202 to an abort the end is ``cancelled``, ``completed`` or ``failed``.

    The verdict names the end. ``completed`` is allowed only if, in the log of effects, the switchover came before the
    driver got the abort. A migration that was cancelled in its queue, as the log shows, ends ``cancelled`` and had
    no job, unless the request came after it was settled. ``error`` is for lost guests. A
    :class:`~migrator.simulator.monitor.Monitor` checks that the driver gets the abort soon after the request. Not
    checked: a driver call that starts no job, and that ``failed`` means a failure of the driver.
    """
    for exchange in world.history:
        found = _ABORT.match(exchange.path)
        if exchange.method != 'DELETE' or exchange.status != 202 or found is None:
            continue
        for migration in world.migrations.values():
            if (migration.instance_uuid, migration.id) == (found['server'], int(found['id'])):
                yield from (f'migration {migration.uuid}: {what}' for what in _wrong_end(world, migration))


def _wrong_end(world: World, migration: Migration) -> Iterator[str]:
    if migration.abort_requested_at is None:
        yield 'its abort returned 202, but is not recorded'
    elif migration.ended and migration.status != _S.ERROR:
        if migration.abort_status != migration.status:
            yield f'its abort was requested and it ended {migration.status}; the verdict is {migration.abort_verdict}'
        if migration.status == _S.COMPLETED and _aborted_before_cut_over(world, migration):
            yield 'it is completed, although its driver got the abort before the destination ran the guest'
        if _was_cancelled_in_queue(world, migration):
            if migration.status != _S.CANCELLED:
                yield f'it was cancelled in its queue, but ended {migration.status}'
            if any(effect.effect == 'job started' for effect in world.effects_of(migration)):
                yield 'it was cancelled in its queue, but a job was started'


def _was_cancelled_in_queue(world: World, migration: Migration) -> bool:
    """Return whether a migration was cancelled in its queue, and aborted before it was settled."""
    pivot, undo = (world.record(migration, 'live_migration', direction) for direction in (log.DO, log.UNDO))
    asked, settled = migration.abort_requested_at, pivot.ended_at if pivot is not None else None
    if undo is None or asked is None or settled is None or settled < asked:
        return False
    return str((undo.result or {}).get('skipped')).endswith(' had not begun')


def _aborted_before_cut_over(world: World, migration: Migration) -> bool:
    aborted = False
    for effect in world.effects_of(migration):
        if effect.host == migration.source_compute and effect.effect in ('job started', 'abort asked'):
            aborted = effect.effect == 'abort asked'
        elif effect.host == migration.dest_compute and effect.effect in hypervisor.OWNING and aborted:
            return True
    return False


def stuck_once(world: World) -> Iterator[str]:
    """I26, history: a migration does not become stuck for one reason again and again without other news.

    A host that comes and goes may repeat it a few times. If it waits for a cleanup, each time that the cleanup is
    blocked is news: an operator has retried it.
    """
    blocked = Counter(found[1] for line in world.logs if (found := _BLOCKS.search(line)))
    for uuid, entries in world.entries.items():
        again, reasons = Counter[Any](), dict[Any, Reason]()
        for before, left, entry in zip(entries, entries[1:], entries[2:], strict=False):
            kinds = before.kind, left.kind, entry.kind
            if kinds == (log.EntryKind.STUCK, log.EntryKind.UNSTUCK, log.EntryKind.STUCK):
                reason = Reason.of_entry(entry.payload)
                if Reason.of_entry(before.payload).key == reason.key:
                    again[reason.key] += 1
                    reasons[reason.key] = reason
        for key, times in again.items():
            reason = reasons[key]
            is_blocked = reason.kind == StuckKind.BLOCKED_CLEANUP
            if times > _MAY_REPEAT + (blocked[reason.words['migration']] if is_blocked else 0):
                yield f'migration {uuid} was stuck {times + 1} times without other news: {reason}'


def stuck_for_its_own_sake(world: World) -> Iterator[str]:
    """I27, history: a migration is never stuck because Placement, the broker or the database is away.

    It waits for that service, and it needs no operator of its own.
    """
    for uuid, entries in world.entries.items():
        for entry in entries:
            if entry.kind != log.EntryKind.STUCK:
                continue
            reason = Reason.of_entry(entry.payload)
            waits = reason.waits is not None and reason.waits.kind in (WaitKind.PLACEMENT, WaitKind.BROKER)
            if waits or _AWAY.search(str(reason)):
                yield f'migration {uuid} was stuck because a service was away: {reason}'


def readers(world: World) -> Iterator[str]:
    """I19, history: a client sees only legal moves, and never a 5xx while the database is up.

    A client may miss statuses between two requests. A 503 that names the database is accepted, and so is a 501, which
    means that the request is not supported. Not checked: pages neither skip nor repeat rows.
    """
    last: dict[tuple[str, int], str] = {}
    for exchange in world.history:
        if exchange.status >= 500 and exchange.status != 501:
            if exchange.status != 503 or 'database' not in json.dumps(exchange.answer):
                yield f'{exchange.method} {exchange.path} returned {exchange.status}: {exchange.answer}'
        if exchange.method != 'GET' or exchange.status != 200:
            continue
        for shown in _shown(exchange.answer):
            key = (exchange.token, int(shown['id']))
            old, new = last.get(key), str(shown['status'])
            if old is not None and old != new and new not in _REACHABLE.get(old, set()):
                yield f'{exchange.path} showed migration {shown["id"]} as {new} after it was {old}'
            last[key] = new


def _shown(answer: Any) -> list[dict[str, Any]]:
    """Return the migrations in a response."""
    if not isinstance(answer, dict):
        return []
    listed = answer.get('migrations')
    found = listed if isinstance(listed, list) else [answer.get('migration')]
    return [one for one in found if isinstance(one, dict) and 'id' in one and 'status' in one]


def _reachable() -> dict[str, set[str]]:
    """Return status -> every status that follows it after any number of moves."""
    found: dict[str, set[str]] = {}
    for old, new in LEGAL_MOVES:
        found.setdefault(old.value, set()).add(new.value)
    for _ in found:
        for later in found.values():
            later |= {further for status in later for further in found.get(status, ())}
    return found


_REACHABLE = _reachable()


def secrets(world: World) -> Iterator[str]:
    """I20, always: logs and errors contain no token and no DSN, and users' errors contain no host name.

    Errors to users who are not administrators are checked for names of hosts that the request does not name. Not
    checked: notifications, which do not exist yet.
    """
    for line in world.logs:
        yield from (f'a log line contains a secret: {line}' for secret in world.secrets if secret in line)
    for exchange in world.history:
        answer = json.dumps(exchange.answer)
        for secret in world.secrets:
            if secret in answer:
                yield f'the response to {exchange.method} {exchange.path} ({exchange.status}) contains a secret'
        if exchange.status < 400 or exchange.token.partition(':')[0] == 'admin':
            continue
        asked = f'{exchange.path} {json.dumps(exchange.body)}'
        for host in world.hosts:
            if re.search(rf'\b{re.escape(host)}\b', answer) and host not in asked:
                yield f'{exchange.method} {exchange.path} ({exchange.status}) shows host {host} to a user'
