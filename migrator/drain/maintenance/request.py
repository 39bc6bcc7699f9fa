# SPDX-License-Identifier: Apache-2.0

"""The fields of a maintenance's request, from which its schema and its documents are made."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from migrator import exception
from migrator.drain import request
from migrator.drain.maintenance.limits import Window
from migrator.drain.maintenance.turns import Guests, Maintenance, Prefer, ReturnedBy, Stopped, Turn
from migrator.drain.request import Kind

_Field = functools.partial(request.Field, of=Maintenance)

#: What each drain gets that empties a host. The other fields of a drain are the maintenance's to say.
OF_DRAINS = tuple(
    field for field in request.FIELDS if field.name not in ('host', 'reason', 'deadline', 'include_stopped')
)
FIELDS = (
    _Field('hosts', Kind.HOSTS, 'the hosts to work on'),
    _Field('reason', Kind.TEXT, 'why each host is disabled; the list of services shows it'),
    _Field('in_order', Kind.FLAG, 'take the hosts in the given order; default: in one with few moves of {guest}s'),
    _Field('parallel', Kind.NUMBER, 'at most N hosts are out of service at a time; default 1'),
    _Field(
        'prefer',
        Kind.CHOICE,
        'whether a further host is begun if some of its {guest}s would move twice: time, the default, begins it',
        choices=tuple(one.value for one in Prefer),
    ),
    _Field('groups', Kind.GROUPS, 'groups of hosts that have something in common, such as a rack'),
    _Field('per_group', Kind.NUMBER, 'at most N hosts of a group are out of service at a time; default: any number'),
    _Field('max_failures', Kind.NUMBER, 'pause once more than N hosts have failed; default 0', least=0),
    _Field('deadline', Kind.MOMENT, 'begin only hosts that are expected to be back by then'),
    _Field('window', Kind.WINDOW, 'begin only hosts that are expected to be back within a time of each day'),
    _Field('reserve', Kind.AMOUNTS, 'what has to stay free on the hosts in service together'),
    _Field(
        'wait_for_room', Kind.SPAN, 'how long a host waits for room for its {guest}s before it fails; default: ever'
    ),
    _Field(
        'returned_by',
        Kind.CHOICE,
        'what shows that a host is back: reboot, the default, restart of its compute service, or its report',
        choices=tuple(one.value for one in ReturnedBy),
    ),
    _Field('settle', Kind.SPAN, 'with report: how long a host reports without a gap; default: twice service_down_time'),
    _Field('work_timeout', Kind.SPAN, 'after how long the claim of a host is shown as lapsed; default 4 h'),
    _Field('return_timeout', Kind.SPAN, 'after how long a host has failed that does not come back; default 1 h'),
    _Field(
        'guests',
        Kind.CHOICE,
        'whether the {guest}s of a host that is back stay where they are, the default, or are brought back',
        choices=tuple(one.value for one in Guests),
    ),
    _Field(
        'stopped',
        Kind.CHOICE,
        'what becomes of {guest}s that are shut off: move, or stay; to be given if there are any',
        choices=tuple(one.value for one in Stopped),
    ),
    _Field('despite_trouble', Kind.FLAG, 'begin hosts although another one has died, or an evacuation runs'),
    _Field('drain', Kind.OF_DRAIN, 'further fields of the drain of each host'),
)


def new(uuid: str, given: Mapping[str, Any]) -> tuple[Maintenance, list[Turn]]:
    """Return the maintenance that a request describes, and the turns of its hosts.

    :param given: a body of the schema; an absent value, or null, has its default. Times are aware.
    :raises migrator.exception.Invalid: the window is not valid, a host is in two groups, or only one of ``groups`` and
        ``per_group`` is given.
    """
    known = {name: value for name, value in given.items() if value is not None and name != 'dry_run'}
    hosts, groups, of_drains = known.pop('hosts'), known.pop('groups', {}), known.pop('drain', {})
    if known.get('window') is not None:
        Window.parse(known['window'])
    if bool(groups) != ('per_group' in known):
        missing, there = ('per_group', 'groups') if groups else ('groups', 'per_group')
        raise exception.Invalid(f'Invalid input for {there}: {missing} is missing. Give both, or none.')
    group_of: dict[str, str] = {}
    for name, members in groups.items():
        for host in members:
            if host in group_of:
                raise exception.Invalid(
                    f'Invalid input for groups: host {host} is in {group_of[host]} and in {name}. Name it once.'
                )
            group_of[host] = name
    turns = [Turn(host=host, position=place, group=group_of.get(host, '')) for place, host in enumerate(hosts, 1)]
    return Maintenance(uuid=uuid, groups=group_of, of_drains=dict(of_drains), **known), turns


def groups_of(maintenance: Maintenance) -> dict[str, list[str]]:
    """Return the groups of a maintenance as its request has named them."""
    found: dict[str, list[str]] = {}
    for host, name in maintenance.groups.items():
        found.setdefault(name, []).append(host)
    return found
