# SPDX-License-Identifier: Apache-2.0

"""``migrator-drain doctor``: what a drain needs of the cloud, and what would disturb one."""

from __future__ import annotations

import collections
import dataclasses
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING
from urllib import parse

from migrator import exception
from migrator.nova.foreground import fenced
from migrator.nova.foreground.session import Session
from migrator.objects import base, remedies
from migrator.operator.cli import command

if TYPE_CHECKING:  # imported where it is used, so that the help is fast
    from migrator.nova.client import Nova
    from migrator.nova.clouds import Cloud
    from migrator.nova.resources import Hypervisor, NovaMigration, Service
    from migrator.placement_client.client import PlacementClient

#: The statuses of a migration during which its guest has a task. A cold one that is ``finished`` waits for its user.
_WITH_TASK = ('accepted', 'queued', 'preparing', 'pre-migrating', 'migrating', 'running', 'post-migrating')
#: How many of the newest migrations of each status are looked at, and how many names a sentence has.
_ROWS, _NAMED = 200, 20
_COLUMNS = ('', 'CHECK', 'FOUND', 'WHAT TO DO')
_TWO_RECORDS = (
    'Find out which one its nova-compute updates ({command}). Do not delete the other one while the host has guests: '
    "Nova would also remove the host's resource provider."
)


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one check has found.

    :ivar is_right: whether a drain can rely on it.
    :ivar remedy: what to do; empty: nothing.
    :ivar is_away: whether a service that is needed is not reachable.
    """

    check: str
    found: str
    is_right: bool = True
    remedy: str = ''
    is_away: bool = False


def examine(asked: Session) -> int:
    """Check the cloud, and return the exit status: 3 if a service is not reachable."""
    found = [*_guarded('identity', lambda: _of_cloud(asked))]
    if all(one.is_right for one in found):
        nova, placement = asked.cloud
        found += [*_of_nova(asked, nova), *_of_placement(nova, placement)]
    rows = [('right' if one.is_right else 'WRONG', one.check, one.found, one.remedy) for one in found]
    wrong = [one for one in found if not one.is_right]
    text = f'{base.count(len(wrong), "finding")} to act on.' if wrong else 'All is right. A drain can start.'
    asked.answer({'checks': [dataclasses.asdict(one) for one in found]}, f'{command.table(_COLUMNS, rows)}\n{text}')
    if any(one.is_away for one in wrong):
        return command.UNREACHABLE
    return command.WRONG if wrong else command.RIGHT


def warn(asked: Session, host: str) -> None:
    """Print what would disturb the drain of a host, to stderr. Few requests are sent.

    :raises migrator.exception.PlacementError: Placement is away, or too old, so that the drain could not end.
    """
    nova, placement = asked.cloud
    placement.read(f'/resource_providers?{parse.urlencode({"name": host})}')
    services = nova.services(host=host)
    for one in [*_records(services), *_forgotten(nova, nova.migrations(host=host, limit=_ROWS))]:
        sys.stderr.write(f'{command.printable(f"{one.found} {one.remedy}".strip())}\n')


def _guarded(check: str, looks: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield what a check finds. An error of ours is a finding too, and ends the check."""
    try:
        yield from looks()
    except exception.ConfigurationError:
        raise
    except exception.MigratorException as error:
        is_away = isinstance(error, exception.ServiceUnreachable)
        yield Finding(check, ' '.join(str(error).split()), False, is_away=is_away)


# --- where it is -----------------------------------------------------------------------------------------------------


def _of_cloud(asked: Session) -> Iterator[Finding]:
    if asked.connect is not None:
        return
    found = asked.where
    yield Finding('clouds.yaml', _where(found))
    if found.identity is not None:
        who, roles = found.identity, ', '.join(sorted(found.identity.roles)) or 'none'
        at = f'in project {who.project}' if who.project else 'in no project'
        text = f'{who.url} knows {who.user or "the user"} {at}, with the roles: {roles}.'
        remedy = (
            '' if 'admin' in who.roles else 'Name a cloud whose user has the role admin: Nova requires it by default.'
        )
        yield Finding('identity', text, 'admin' in who.roles, remedy)


def _where(found: Cloud) -> str:
    file = found.file
    read = (
        f'{file.path} has the clouds {", ".join(file.clouds) or "none"}.' if file.path else 'No clouds.yaml was found.'
    )
    name = f'Cloud {found.name}' if found.name else 'The cloud of the OS_* variables, or the only one of the file'
    return f'{read} {name}, region {found.region or "not named"}: {found.endpoint}'


# --- Nova ------------------------------------------------------------------------------------------------------------


def _of_nova(asked: Session, nova: Nova) -> Iterator[Finding]:
    from migrator.nova import client

    def answers() -> Iterator[Finding]:
        used, least = ('.'.join(map(str, one)) for one in (nova.microversion, client.LEAST))
        yield Finding('Nova', f'It answers with microversion {used}; {least} is needed.')

    def services() -> Iterator[Finding]:
        found = nova.services()
        ups = sum(one.state == 'up' for one in found)
        disabled = sum(one.status == 'disabled' for one in found)
        yield Finding('services', f'{base.count(len(found), "nova-compute")}, {ups} up, {disabled} disabled.')
        yield from _down(asked, found)
        yield from _cells(found)
        yield from _records(found)

    def migrations() -> Iterator[Finding]:
        rows = [row for status in _WITH_TASK for row in nova.migrations(status=status, limit=_ROWS)]
        forgotten = [*_forgotten(nova, rows)]
        yield from forgotten or [Finding('migrations', f'{len(rows)} in progress, none forgotten.')]

    for check, looks in (('Nova', answers), ('services', services), ('migrations', migrations)):
        found = [*_guarded(check, looks)]
        yield from found
        if any(one.is_away for one in found):
            return  # each further check would wait for it again


def _down(asked: Session, services: Sequence[Service]) -> Iterator[Finding]:
    """Yield the hosts of which no record reports."""
    from migrator.nova.guests import look_at

    reports = {one.host for one in services if one.state == 'up'}
    for one in sorted((one for one in services if one.state == 'down'), key=lambda one: one.host):
        if one.host in reports:
            continue
        look = look_at(one) | {remedies.Reading.ELSEWHERE: False}
        name = shlex.quote(one.host)
        since = f' since {one.updated_at:%Y-%m-%d %H:%M:%S} UTC' if one.updated_at is not None else ''
        if one.forced_down:
            # Its nova-compute may destroy guests when it starts, if they were evacuated meanwhile.
            text = f'{one.host} is declared forced down.'
            yield Finding('services', text, False, fenced.when_to_return(asked, one.host))
        else:
            remedy = f'Start it. {remedies.offer(remedies.Kind.EVACUATE_BY_NOVA, look, host=name)}'
            yield Finding('services', f'nova-compute at {one.host} has not reported{since}.', False, remedy)


def _cells(services: Sequence[Service]) -> Iterator[Finding]:
    """Yield the hosts in cells that do not answer, as one finding."""
    hosts = sorted({one.host for one in services if one.status == 'UNKNOWN'})
    if hosts:
        text = f'The database of the cell of {_few(hosts)} does not answer, so lists of Nova lack its guests.'
        yield Finding('cells', text, False, 'Look at the database of the cell, and at its nova-conductor.')
    else:
        yield Finding('cells', 'Each one answers.')


def _records(services: Sequence[Service]) -> Iterator[Finding]:
    """Yield the hosts of which Nova keeps two records."""
    each = collections.Counter(one.host for one in services)
    for host in sorted(host for host, count in each.items() if count > 1):
        mine = [f'{one.id} ({one.state or one.status})' for one in services if one.host == host]
        text = f'{host} has {len(mine)} records of nova-compute: {" and ".join(mine)}.'
        remedy = _TWO_RECORDS.format(command=remedies.command(remedies.Kind.LIST_SERVICES))
        yield Finding('records', text, False, remedy)


def _forgotten(nova: Nova, rows: Sequence[NovaMigration]) -> Iterator[Finding]:
    """Yield the migrations that Nova shows as in progress, and whose guests have no task."""
    from migrator.nova.guests import ENDED, problem_and_remedy, request_of

    suspects = []
    for row in rows:
        if row.status in _WITH_TASK:
            server = nova.server(row.instance_uuid)
            if server is not None and server.task_state is None:
                suspects.append(row)
    for row in suspects:
        # One that has ended between the two looks is no longer in progress.
        newest = next((one for one in nova.migrations(instance_uuid=row.instance_uuid) if one.id == row.id), None)
        if newest is not None and newest.status not in ENDED:
            problem, remedy = problem_and_remedy(newest, request_of(nova, newest))
            yield Finding('migrations', f'Guest {row.instance_uuid}: {problem}.', False, f'{remedy}.')


# --- Placement -------------------------------------------------------------------------------------------------------


def _of_placement(nova: Nova, placement: PlacementClient) -> Iterator[Finding]:
    from migrator.placement_client import client, providers

    def looks() -> Iterator[Finding]:
        used = '.'.join(map(str, placement.microversion))
        found = {one.uuid for one in providers.list_providers(placement)}
        text = f'It answers with microversion {used}; {client.ROCKY} is needed. {base.count(len(found), "provider")}.'
        yield Finding('Placement', text)
        yield from _without_provider(nova.hypervisors(), found)

    yield from _guarded('Placement', looks)


def _without_provider(hypervisors: Sequence[Hypervisor], providers: Iterable[str]) -> Iterator[Finding]:
    lacking = sorted(one.hostname for one in hypervisors if one.uuid not in {*providers})
    if lacking:
        text = f'No resource provider for {_few(lacking)}: Nova places no guest there.'
        yield Finding('Placement', text, False, 'Start nova-compute there, which registers it, and look at its log.')


def _few(names: Sequence[str]) -> str:
    more = f' and {len(names) - _NAMED} more' if len(names) > _NAMED else ''
    return f'{", ".join(names[:_NAMED])}{more}'
