# SPDX-License-Identifier: Apache-2.0

"""A maintenance, its plan and its hosts in words.

``migrator-manage`` and ``openstack host maintenance`` print the same lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from migrator.drain.maintenance.turns import ENDS, TurnStatus
from migrator.objects import base
from migrator.operator.cli import command

Document = Mapping[str, Any]

LIST_COLUMNS = ('UUID', 'STATUS', 'HOSTS', 'CREATED')
PLAN_COLUMNS = ('HOST', 'BESIDE', 'MOVES', 'MOVE AGAIN', 'IN THE WAY')
HOST_COLUMNS = ('HOST', 'GROUP', 'STATUS', 'CLAIMED BY', 'REASON')


def time_of(text: str | None) -> str:
    """Return a time of a document in UTC and whole seconds, or '-' for none."""
    return '-' if text is None else text[:19].replace('T', ' ')


def tally(maintenance: Document) -> str:
    """Return how many hosts of a maintenance have which status."""
    return ', '.join(f'{number} {status}' for status, number in maintenance['turns'].items() if number)


def listed(found: Sequence[Document]) -> list[tuple[str, ...]]:
    """Return the rows of a list of maintenances."""
    return [(one['uuid'], one['status'], tally(one), time_of(one['created_at'])) for one in found]


def whole(maintenance: Document, typed: str) -> Iterator[str]:
    """Yield the lines about a maintenance with its hosts.

    :param typed: the beginning of each command about maintenances.
    """
    yield f'Maintenance {maintenance["uuid"]}: {maintenance["status"]}; {tally(maintenance)}.'
    yield from (
        base.printable(said) for said in dict.fromkeys((maintenance['message'], maintenance['waits_for'])) if said
    )
    rows = [
        (one['host'], one['group'] or None, status(one), one['claimed_by'], one['reason'])
        for one in maintenance['hosts']
    ]
    yield command.table(HOST_COLUMNS, rows)
    yield from advice(maintenance, typed)


def status(host: Document) -> str:
    """Return the status of a host, and whether its claim has lapsed."""
    if host['claim_has_lapsed']:
        return f'{host["status"]}, its claim has lapsed'
    return str(host['status'])


def advice(maintenance: Document, typed: str) -> Iterator[str]:
    """Yield the commands that a maintenance waits for.

    :param typed: the beginning of each command about maintenances.
    """
    uuid = maintenance['uuid']
    by_status: dict[str, Document] = {}
    for one in maintenance['hosts']:
        by_status.setdefault(one['status'], one)
    ready, failed = by_status.get(TurnStatus.READY), by_status.get(TurnStatus.FAILED)
    if ready is not None:
        yield f"Work on what is ready: {typed} work {uuid} --run 'COMMAND {{host}}'"
        yield f'Or claim a host: {typed} begin {uuid} {ready["host"]}'
    for one in maintenance['hosts']:
        if one['status'] == TurnStatus.WORKING:
            rest = f'{uuid} {one["host"]} --claim {one["claim"]}'
            yield f'Once the work at {one["host"]} has ended: {typed} done {rest}'
            yield f'Or, if it has failed: {typed} fail {rest}'
    if failed is not None:
        yield f'Once a failed host is mended: {typed} retry {uuid} {failed["host"]}'
        yield f'To leave one out that stays broken: {typed} skip {uuid} {failed["host"]} --stays-disabled'
    if maintenance['status'] == 'paused':
        yield f'To go on: {typed} resume {uuid}'


def plan(found: Document) -> Iterator[str]:
    """Yield the lines about a plan."""
    yield command.table(PLAN_COLUMNS, plan_rows(found))
    yield from plan_in_all(found)


def plan_in_all(found: Document) -> Iterator[str]:
    """Yield what a plan says of all hosts together."""
    guests = base.count(found['guests'], 'guest')
    yield (
        f'{guests} in {base.count(found["moves"], "move")}: {found["moves_per_guest"]} for each, and no order needs '
        f'fewer than {found["least_moves_per_guest"]}.'
    )
    if found['fits']:
        yield f'Each host can leave in its turn. Of at most 16, {found["most_parallel"]} may be out of service at once.'
    else:
        yield 'Not every host can leave in its turn: see IN THE WAY.'
    if found['waits_for']:
        yield f'No host would be begun now: {base.printable(found["waits_for"])}'


def plan_rows(found: Document) -> list[tuple[Any, ...]]:
    """Return the rows of a plan."""
    return [
        (one['host'], ', '.join(one['beside']) or None, one['moves'], one['moves_again'], _in_the_way(one))
        for one in found['hosts']
    ]


def _in_the_way(host: Document) -> str | None:
    found = []
    if host['without_room_count']:
        short = ', '.join(f'{name} at {number}' for name, number in host['short_at'].items())
        count = base.count(host['without_room_count'], 'guest')
        found.append(f'no room for {count}' + (f' (hosts that lack: {short})' if short else ''))
    if host['short_of_reserve']:
        found.append(f'the reserve of {", ".join(host["short_of_reserve"])} would not be free')
    for one in host['cannot_move']:
        found.append(f'{one["name"]}: {one["reason"]} {one["remedy"] or ""}'.strip())
    more = host['cannot_move_count'] - len(host['cannot_move'])
    if more > 0:
        found.append(f'and {more} more that cannot move')
    if host['out_because']:
        found.append(f'it is out of service already: {host["out_because"]}')
    return '; '.join(found) or None


def has_ended(maintenance: Document) -> bool:
    """Return whether a maintenance has ended."""
    return maintenance['status'] in ENDS
