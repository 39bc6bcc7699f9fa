# SPDX-License-Identifier: Apache-2.0

"""``migrator-manage service``: the services, and the leases of conductors."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from migrator import exception
from migrator.objects import COMPUTE_BINARY, CONDUCTOR_BINARY
from migrator.operator.cli import command
from migrator.operator.cli.command import Asked

if TYPE_CHECKING:
    from migrator.objects.difference import Difference

BINARIES = (COMPUTE_BINARY, CONDUCTOR_BINARY)
#: The greatest number of guests that a remark names.
_NAMED = 3
COLUMNS = ('HOST', 'BINARY', 'VERSION', 'STATUS', 'STATE', 'LAST SEEN', 'LEASE', 'REMARK')


def list_(asked: Asked) -> int:
    """List the services, and the lease of each conductor."""
    from migrator.views import differences, services

    command.check_host(asked)
    given = asked.arguments
    found = services.document(asked.database, asked.conf.conductor.lease, given.binary, given.host)
    differing = differences.present(asked.database)
    rows = [
        _row(document, found['now'], found['no_reports_because'], _guests(document, differing))
        for document in found['services']
    ]
    asked.answer(found, command.table(COLUMNS, rows))
    return command.RIGHT


def _guests(document: dict[str, Any], differing: Sequence[Difference]) -> list[str]:
    if document['binary'] != COMPUTE_BINARY:
        return []
    return [f'{one.name} {one.short}' for one in differing if document['host'] in one.hosts]


def _row(
    document: dict[str, Any], now: datetime.datetime, no_reports_because: str | None, guests: Sequence[str]
) -> list[object]:
    lease = document['lease']
    remarks = []
    if no_reports_because is not None and document['binary'] == COMPUTE_BINARY:
        remarks.append(f'as it was then: {no_reports_because}')
    if document['forced_down']:
        remarks.append('forced down')
    if document['last_seen_up'] is None:
        waits = document['replaced'] and document['boot_id'] is None
        remarks.append(_off(document) if waits else 'was stopped')
    if document['disabled_reason']:
        remarks.append(document['disabled_reason'])
    if document['refused'] is not None:
        remarks.append(_refused(document))
    cleanups = document['cleanups']
    if cleanups['pending']:
        blocked = f', {cleanups["blocked"]} blocked' if cleanups['blocked'] else ''
        remarks.append(f'deferred cleanups: {cleanups["pending"]}{blocked}')
    if guests:
        more = f' and {len(guests) - _NAMED} more' if len(guests) > _NAMED else ''
        remarks.append(f'guests not as in the database: {", ".join(guests[:_NAMED])}{more}')
    if lease is not None and lease['broker_away_since'] is not None:
        since = command.moment(lease['broker_away_since'])
        remarks.append(f'cannot reach the message broker since {since} UTC')
    if lease is not None and lease['sources']:
        remarks.append(f'has the migrations from {lease["sources"]} host{"s" if lease["sources"] > 1 else ""}')
    if lease is not None and lease['boots'] > 1:
        remarks.append(f'{lease["boots"]} leases: it was killed and started again, or two conductors have this name')
    return [
        document['host'],
        document['binary'],
        document['version'],
        document['status'],
        document['state'],
        command.ago(document['last_seen_up'], now),
        _lease(lease, now),
        '; '.join(remarks),
    ]


def _off(document: dict[str, Any]) -> str:
    newest = document['replaced'][0]
    at, by = command.moment(newest['declared_off_at']), newest['declared_off_by']
    return f'waits for its new machine: {by} declared at {at} UTC that the old one is off'


def _refused(document: dict[str, Any]) -> str:
    refused = document['refused']
    at, identity = command.moment(refused['at']), refused['identity']
    if identity in {one['identity'] for one in document['replaced']}:
        return f'the machine that was replaced is on again, and was refused as {refused["host"]}, last at {at} UTC'
    if refused['host'] == document['host']:
        return f'another machine of this name was refused, last at {at} UTC (its identity: {identity})'
    return f'a machine with the same identity was refused as {refused["host"]}, last at {at} UTC'


def _lease(lease: dict[str, Any] | None, now: datetime.datetime) -> str | None:
    if lease is None:
        return None
    left = (lease['lease_until'] - now).total_seconds()
    return f'{command.span(left)} left' if left > 0 else f'ended {command.span(left)} ago'


def delete(asked: Asked) -> int:
    """Delete a service that is gone for good."""
    from migrator.conductor import registry

    arguments = asked.arguments
    found = asked.database.services.list(binary=arguments.binary, host=arguments.name)
    if not found:
        raise exception.ServiceNotFound(service_id=f'{arguments.binary} of {arguments.name}')
    done = registry.delete_service(asked.database, asked.placement(), found[0], asked.conf.conductor.lease)
    evacuations = [one.uuid for one in done]
    document = {'host': found[0].host, 'binary': found[0].binary, 'deleted': True, 'evacuations': evacuations}
    text = f'{found[0].binary} of {found[0].host} is deleted.'
    if done:
        text += (
            f'\nEvacuations from it that waited for its cleanup: {len(done)}. The next sweep of a conductor completes '
            f'them. Host {found[0].host} does not remove these guests any more: erase it before it is used again.'
        )
    asked.answer(document, text)
    return command.RIGHT


def replace(asked: Asked) -> int:
    """Let another machine take the place of one that is off."""
    down_time = asked.conf.service_down_time
    off = asked.database.machines.replace(asked.arguments.name, command.user(), down_time)
    document = {
        'host': off.host, 'identity': off.identity, 'declared_off_by': off.declared_off_by,
        'declared_off_at': off.declared_off_at, 'guests': off.guests,
    }  # fmt: skip
    known = f'(identity {off.identity}) is refused if it returns.'
    text = (
        f'The next machine that registers as {off.host} takes the place of the old one. The old one '
        f'{known if off.identity else "has reported no identity, and is not recognized if it returns."}\n'
        f'Guests that the old machine had: {len(off.guests)}. They stay registered, with their allocations.'
    )
    if off.guests:
        text += ' Once the new machine is up, this shows those that it does not have:\n'
        text += f'  {asked.command} instance reconcile --dry-run --host {off.host}'
    asked.answer(document, text)
    return command.RIGHT


def _replaced(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('name', metavar='HOST', type=command.name, help='the host whose machine was replaced')
    parser.add_argument(
        '--old-machine-is-off',
        action='store_true',
        required=True,
        help='you have made sure that the old machine is off, and does not come back with this name. Your name and the'
        ' time are recorded',
    )


def _which(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('name', metavar='HOST', type=command.name, help='the host of the service')
    help_ = f'{BINARIES[0]} (the default) or {BINARIES[1]}'
    parser.add_argument('--binary', choices=BINARIES, default=BINARIES[0], help=help_)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--host', metavar='HOST', help='only services of this host')
    parser.add_argument('--binary', choices=BINARIES, help='only services with this binary')


#: The verbs of a service.
VERBS: tuple[command.Verb, ...] = (
    command.Verb('list', 'list the services, and the lease of each conductor', list_, _arguments),
    command.Verb(
        'delete',
        'delete a service that is gone for good, with its hypervisor, its providers and its deferred cleanups; the'
        ' evacuations from it that are done are completed',
        delete,
        _which,
    ),
    command.Verb(
        'replace',
        'let another machine have the name of a host whose own machine is off; its guests stay registered',
        replace,
        _replaced,
    ),
)
