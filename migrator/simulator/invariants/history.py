# SPDX-License-Identifier: Apache-2.0
"""What must be true of a client's requests and answers, and of what was logged: from a world to what is wrong in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from migrator.db import actions
from migrator.objects import LEGAL_MOVES, Migration, MigrationStatus
from migrator.simulator.world import World
from migrator.virt.fake import hypervisor

if TYPE_CHECKING:  # the cloud needs none of this to run
    from migrator.testing.client import Exchange

_S = MigrationStatus

#: The microversion from which os-migrateLive does not wait for its checks.
ASYNCHRONOUS = (2, 34)
#: Seconds in which a wish reaches the driver, whatever is lost on the way: longer than two calls wait for an answer.
PATIENCE = 150.0
_ABORT = re.compile(r'^/servers/(?P<server>[^/?]+)/migrations/(?P<id>\d+)$')


def promises(world: World) -> Iterator[str]:
    """I8, history: a 202 is never lost; a 4xx leaves no migration in progress and the server unchanged.

    Below 2.34 the ended row and its action tell why. Told apart by the request id. That the server's host and
    task_state are as they were is what I2 and I15 say of one whose migration is not in progress.
    """
    for exchange in world.history:
        if exchange.method != 'POST' or not isinstance(exchange.body, dict) or 'os-migrateLive' not in exchange.body:
            continue
        made = [one for one in world.migrations.values() if one.request_id == exchange.request_id]
        name = f'{exchange.path} at {exchange.version} ({exchange.request_id})'
        if exchange.status == 202 and not made:
            yield f'{name} was answered 202, and there is no such migration'
        if not 400 <= exchange.status < 500:
            continue
        for migration in made:
            if _version(exchange) >= ASYNCHRONOUS or migration.in_progress:
                yield f'{name} was answered {exchange.status}, and has made {migration.uuid}, {migration.status}'
            elif not (migration.failure and _told(world, migration)):
                yield f'{name} was answered {exchange.status}, but {migration.uuid} or its action does not tell why'


def _version(exchange: Exchange) -> tuple[int, ...]:
    return tuple(int(part) for part in exchange.version.split('.'))


def _told(world: World, migration: Migration) -> bool:
    return any(
        action.migration_uuid == migration.uuid and action.result == actions.ERROR and action.message
        for action in world.actions
    )


def aborts(world: World) -> Iterator[str]:
    """I9, history: after a 202 to an abort it ends ``cancelled``, or ``completed`` or ``failed`` by itself.

    ``completed`` only if cut-over came before the driver got the abort, by the log of effects, and soon after it was
    asked for; ``error`` is left to guests that were lost. The verdict says which. Left out: whether it was the queue
    that cancelled it, and that its driver then was never called.
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
        yield 'its abort was answered 202, and is not known'
    elif migration.ended and migration.status != _S.ERROR:
        if not (migration.abort_verdict or '').startswith(migration.status):
            yield f'it was to be aborted and ended {migration.status}; the verdict is {migration.abort_verdict}'
        if migration.status == _S.COMPLETED and _aborted_before_cut_over(world, migration):
            yield 'its driver was told to abort before the destination ran the guest, and yet it is completed'
        if migration.status == _S.COMPLETED and (lasted := _moved_after(world, migration)) > PATIENCE:
            yield f'it was to be aborted, and the guest has moved {lasted:.0f} s later'


def _moved_after(world: World, migration: Migration) -> float:
    """Return how many seconds after the wish to abort it the destination ran the guest."""
    arrived = [
        effect.time
        for effect in world.effects_of(migration)
        if effect.host == migration.dest_compute and effect.effect in hypervisor.OWNING
    ]
    if not arrived or migration.abort_requested_at is None:
        return 0.0
    return arrived[-1] - world.at + (world.now - migration.abort_requested_at).total_seconds()


def _aborted_before_cut_over(world: World, migration: Migration) -> bool:
    aborted = False
    for effect in world.effects_of(migration):
        if effect.host == migration.source_compute and effect.effect in ('job started', 'abort asked'):
            aborted = effect.effect == 'abort asked'
        elif effect.host == migration.dest_compute and effect.effect in hypervisor.OWNING and aborted:
            return True
    return False


def readers(world: World) -> Iterator[str]:
    """I19, history: one client sees only legal moves; never a 5xx while the database is up.

    A move may leave out what lay between two looks. A 503 that names the database is taken at its word, and 501 says
    what is not served at all. Left out: that pages neither skip nor repeat.
    """
    last: dict[tuple[str, int], str] = {}
    for exchange in world.history:
        if exchange.status >= 500 and exchange.status != 501:
            if exchange.status != 503 or 'database' not in json.dumps(exchange.answer):
                yield f'{exchange.method} {exchange.path} was answered {exchange.status}: {exchange.answer}'
        if exchange.method != 'GET' or exchange.status != 200:
            continue
        for shown in _shown(exchange.answer):
            key = (exchange.token, int(shown['id']))
            old, new = last.get(key), str(shown['status'])
            if old is not None and old != new and new not in _REACHABLE.get(old, set()):
                yield f'{exchange.path} showed migration {shown["id"]} as {new} after it was {old}'
            last[key] = new


def _shown(answer: Any) -> list[dict[str, Any]]:
    """Return the migrations that an answer shows."""
    if not isinstance(answer, dict):
        return []
    listed = answer.get('migrations')
    found = listed if isinstance(listed, list) else [answer.get('migration')]
    return [one for one in found if isinstance(one, dict) and 'id' in one and 'status' in one]


def _reachable() -> dict[str, set[str]]:
    """Return what each status may have become later, over any number of moves."""
    found: dict[str, set[str]] = {}
    for old, new in LEGAL_MOVES:
        found.setdefault(old.value, set()).add(new.value)
    for _ in found:
        for later in found.values():
            later |= {further for status in later for further in found.get(status, ())}
    return found


_REACHABLE = _reachable()


def secrets(world: World) -> Iterator[str]:
    """I20, always: logs, errors and notifications hold no token, DSN, or host name for those who may not see it.

    The logs that somebody has kept, for tokens and the DSN; errors to who is no administrator, for names of hosts
    that the request did not name itself. Left out: notifications, of which there are none yet.
    """
    for line in world.logs:
        yield from (f'a secret was logged: {line}' for secret in world.secrets if secret in line)
    for exchange in world.history:
        answer = json.dumps(exchange.answer)
        for secret in world.secrets:
            if secret in answer:
                yield f'{exchange.method} {exchange.path} ({exchange.status}) tells a secret'
        if exchange.status < 400 or exchange.token.partition(':')[0] == 'admin':
            continue
        asked = f'{exchange.path} {json.dumps(exchange.body)}'
        for host in world.hosts:
            if re.search(rf'\b{re.escape(host)}\b', answer) and host not in asked:
                yield f'{exchange.method} {exchange.path} ({exchange.status}) tells a user of {host}'
