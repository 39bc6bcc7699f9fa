# SPDX-License-Identifier: Apache-2.0

"""The documents of maintenances, of their hosts and of their plans, as JSON with aware times."""

from __future__ import annotations

import collections
import dataclasses
import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from migrator.drain.maintenance import limits, plan
from migrator.drain.maintenance.engine import Engine, Fleet
from migrator.drain.maintenance.request import FIELDS, groups_of
from migrator.drain.maintenance.turns import Maintenance, Prefer, Turn, TurnStatus, has_lapsed

#: The greatest ``parallel`` that a plan tries.
_MOST_PARALLEL = 16
#: The greatest number of guests that a plan names of a host.
_NAMED = 20
_SHOWN = ('uuid', 'requested_by', 'waits_for', 'message', 'created_at', 'cancel_requested_at', 'ended_at')
_OF_TURN = (
    *('host', 'position', 'group', 'status', 'drain', 'claimed_by', 'claimed_at', 'reason'),
    *('began_at', 'ready_at', 'work_ended_at', 'ended_at'),
)


def summary(maintenance: Maintenance, statuses: Mapping[str, int]) -> dict[str, Any]:
    """Return a maintenance as a list shows it.

    :param statuses: the status of a turn -> how many of its hosts have it.
    """
    of_request = {field.name for field in FIELDS} - {'hosts', 'groups', 'drain'}
    return {
        **{name: getattr(maintenance, name) for name in (*_SHOWN, *sorted(of_request))},
        'groups': groups_of(maintenance),
        'drain': maintenance.of_drains,
        'status': maintenance.shown_status,
        'turns': {status.value: statuses.get(status, 0) for status in TurnStatus},
    }


def whole(maintenance: Maintenance, turns: Sequence[Turn], now: datetime.datetime) -> dict[str, Any]:
    """Return a maintenance with its hosts, by position."""
    statuses = collections.Counter(turn.status for turn in turns)
    return summary(maintenance, statuses) | {'hosts': [of_turn(maintenance, turn, now) for turn in turns]}


def of_turn(maintenance: Maintenance, turn: Turn, now: datetime.datetime) -> dict[str, Any]:
    """Return a host of a maintenance."""
    lapses_at = None
    if turn.claimed_at is not None and turn.status == TurnStatus.WORKING:
        lapses_at = turn.claimed_at + datetime.timedelta(seconds=maintenance.work_timeout)
    return {
        **{name: getattr(turn, name) for name in _OF_TURN},
        'claim': turn.held_by,
        'out_of_service': turn.is_out,
        'claim_lapses_at': lapses_at,
        'claim_has_lapsed': lapses_at is not None and has_lapsed(maintenance, turn, now),
    }


def _waits_for(fleet: Fleet, maintenance: Maintenance, turns: Sequence[Turn], now: datetime.datetime) -> str | None:
    """Return why no host would be begun now, or None if one would."""
    why = limits.why_not_now(maintenance, 0.0, now)
    if not why and fleet.trouble and not maintenance.despite_trouble:
        why = fleet.trouble[0]
    if why:
        return why
    up = [turn for turn in turns if turn.host not in fleet.down]
    if not up:
        return f'{turns[0].host} is down. Start its compute service.'
    whys = [limits.why_too_many(maintenance, turns, fleet.out, fleet.groups, turn) for turn in up]
    return whys[0] if all(whys) else None


@dataclasses.dataclass(frozen=True)
class Immovable:
    """A guest that its drain would leave.

    :ivar reason: why, as a sentence.
    :ivar remedy: what to do; None: the drain tries it nevertheless.
    """

    uuid: str
    name: str
    host: str
    reason: str
    remedy: str | None = None


def planned(
    engine: Engine,
    maintenance: Maintenance,
    turns: Sequence[Turn],
    immovable: Iterable[Immovable],
    now: datetime.datetime,
) -> dict[str, Any]:
    """Return the plan of a maintenance that was not requested yet.

    :param immovable: the guests that its drains would leave.
    :raises migrator.exception.ServiceUnreachable: the engine did not answer.
    """
    fleet, guests = engine.fleet(maintenance), engine.guests(maintenance)
    in_service = {one.name for one in fleet.hosts}
    groups = {turn.host: turn.group for turn in turns}
    hosts = [dataclasses.replace(one, group=groups.get(one.name, '')) for one in fleet.hosts]
    # One that is disabled or down may have guests and receives none.
    hosts += [plan.Host(turn.host, {}, turn.group) for turn in turns if turn.host not in in_service]
    names = {one.name for one in hosts}
    found_immovable = [*immovable]
    stays = {one.uuid for one in found_immovable if one.remedy is not None}
    known = [
        dataclasses.replace(one, only=frozenset()) if one.uuid in stays else one for one in guests if one.host in names
    ]
    bounds = plan.Limits(
        maintenance.parallel, maintenance.per_group, maintenance.reserve, maintenance.prefer == Prefer.MOVES
    )
    worked_on = [turn.host for turn in turns]
    found = plan.plan(hosts, known, worked_on, bounds, maintenance.in_order)
    stay: dict[str, list[Immovable]] = {}
    for one in found_immovable:
        stay.setdefault(one.host, []).append(one)
    concerned = sum(one.host in groups and (one.only is None or bool(one.only)) for one in known)
    return {
        'fits': found.fits,
        'guests': concerned,
        'moves': found.moves,
        'moves_per_guest': round(found.moves / concerned, 3) if concerned else 0.0,
        'least_moves_per_guest': round(found.bound, 3),
        'most_parallel': plan.most_parallel(hosts, known, worked_on, bounds, _MOST_PARALLEL),
        'waits_for': _waits_for(fleet, maintenance, turns, now),
        'hosts': [
            {
                'host': step.host,
                'group': groups[step.host],
                'beside': [*step.beside],
                'out_because': fleet.out.get(step.host),
                'moves': len(step.moves),
                'moves_again': len(step.again),
                'without_room': [*step.left[:_NAMED]],
                'without_room_count': len(step.left),
                'short_at': dict(step.lacks),
                'short_of_reserve': [*step.short],
                'cannot_move': [
                    {'instance_uuid': one.uuid, 'name': one.name, 'reason': one.reason, 'remedy': one.remedy}
                    for one in stay.get(step.host, [])[:_NAMED]
                ],
                'cannot_move_count': len(stay.get(step.host, ())),
            }
            for step in found.steps
        ],
    }
