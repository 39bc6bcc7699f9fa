# SPDX-License-Identifier: Apache-2.0

"""``migrator-manage instance``: the guests whose rows and allocations migrator keeps.

Another service creates and removes the guest itself. These commands create or delete its row and its allocation in
Placement, always both or neither, and let both follow a guest that was moved by hand.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from oslo_utils import uuidutils

from migrator import exception
from migrator.objects import Flavor, Instance, Service, protocol
from migrator.objects.instance import is_foreign, spec_problem
from migrator.operator.cli import command
from migrator.operator.cli.command import Asked, Verb
from migrator.operator.cli.parser import PROG

if TYPE_CHECKING:
    from migrator.conductor.guests.lists import Round
    from migrator.conductor.guests.reconcile import Case

#: Seconds within which a host must answer whether it has a guest.
ANSWER_WITHIN = 10.0
#: Nova's power state for each vm_state.
POWER_STATES = {'active': 1, 'paused': 3}
COLUMNS = (
    'UUID', 'NAME', 'HOST', 'VM STATE', 'TASK STATE', 'LIVE', 'VCPUS', 'MEMORY (MiB)', 'DISK (GiB)', 'PROJECT',
)  # fmt: skip


def create(asked: Asked) -> int:
    """Register a guest that is on a host: create its row and its allocation in Placement."""
    from migrator.conductor import registry

    given = asked.arguments
    uuid = given.uuid or uuidutils.generate_uuid()
    instance = Instance(
        uuid=uuid,
        name=given.name or uuid,
        project_id=given.project,
        user_id=given.user,
        host=given.host,
        node=_node_of(asked, given.host),
        flavor=flavor(given, given.flavor),
        vm_state=given.vm_state,
        power_state=POWER_STATES[given.vm_state],
    )
    if not given.force:
        _check_guest(asked, given.host, uuid)
    stored = registry.create_instance(asked.database, asked.placement(), instance)
    resources = ', '.join(f'{name} {amount}' for name, amount in stored.flavor.resources().items())
    text = f'Instance {stored.uuid} ({stored.name}) is registered on {stored.host} with an allocation of {resources}.'
    text += foreign(stored.flavor)
    asked.answer({'instance': dataclasses.asdict(stored)}, command.printable(text))
    return command.RIGHT


def _check_guest(asked: Asked, host: str, uuid: str) -> None:
    """Raise unless a host reports that it has a guest.

    :raises migrator.exception.GuestNotFound: the host reports that it has no such guest.
    :raises migrator.exception.HostNotAsked: the host cannot be reached, or does not report the guest's state.
    :raises migrator.exception.GuestElsewhere: another host was last seen with the guest.
    """
    from migrator import context
    from migrator.compute import rpcapi

    service = asked.database.services.get_compute(host)
    command_ = protocol.Command(
        migration_uuid=uuidutils.generate_uuid(),
        instance_uuid=uuid,
        step='poll',
        epoch=0,
        owner=PROG,
        reply_to='',
        boot_id=service.boot_id or '',
    )
    try:
        with asked.talking() as client:
            computes = rpcapi.ComputeAPI(client)
            found = computes.poll_live_migrations(context.admin_context(), host, [command_], [], timeout=ANSWER_WITHIN)
    except (exception.ServiceUnreachable, exception.RemoteError) as error:
        raise exception.HostNotAsked(host=host, instance_uuid=uuid, reason=error.message.rstrip('.')) from None
    report = next((one for one in found if one.refusal is None and one.guest.is_known), None)
    if report is None:
        reason = 'it does not report the guest: it may be starting, or its hypervisor does not answer'
        raise exception.HostNotAsked(host=host, instance_uuid=uuid, reason=reason)
    if not report.guest.present:
        helps = 'give the uuid and the host of an existing guest, or --force to register it before it exists'
        raise exception.GuestNotFound(f'Host {host} has no guest {uuid}: {helps}.', host=host, instance_uuid=uuid)
    others = {other: state for other, state in asked.database.differences.known(uuid).seen.items() if other != host}
    if others:
        seen = ', '.join(f'{other} ({state})' for other, state in sorted(others.items()))
        raise exception.GuestElsewhere(host=host, instance_uuid=uuid, seen=seen)


def _node_of(asked: Asked, host: str) -> str:
    nodes = [node.node for node in asked.database.services.list_nodes() if node.host == host]
    if not nodes:
        raise exception.ComputeHostNotFound(host=host)
    return nodes[0]


def flavor(given: argparse.Namespace, name: str) -> Flavor:
    """Return a flavor of the amounts of :func:`flavor_arguments`."""
    return Flavor(
        name=name,
        vcpus=given.vcpus,
        memory_mb=given.memory,
        root_gb=given.disk,
        ephemeral_gb=given.ephemeral,
        swap=given.swap,
        extra_specs=dict(given.property),
    )


def list_(asked: Asked) -> int:
    """List the instances, the newest first.

    Each is shown with whether it can be moved live, as far as its host has reported that.
    """
    from migrator.db.guests.definitions import Reported

    command.check_host(asked)
    given = asked.arguments
    filters = {'host': given.host, 'project_id': given.project}
    found = asked.database.instances.list(
        {name: value for name, value in filters.items() if value is not None}, limit=given.limit + 1
    )
    shown, more = found[: given.limit], len(found) > given.limit
    reported = asked.database.definitions.reported([one.uuid for one in shown])
    can_move = {uuid: 'no' if found.immovable else 'yes' for uuid, found in reported.items()}
    rows = [
        [
            one.uuid, one.name, one.host, one.vm_state, one.task_state, can_move.get(one.uuid), one.flavor.vcpus,
            one.flavor.memory_mb, one.flavor.root_gb, one.project_id,
        ]
        for one in shown
    ]  # fmt: skip
    text = command.table(COLUMNS, rows)
    for one in shown:
        known = reported.get(one.uuid, Reported())
        for how, why in (('moved live', known.immovable), ('evacuated or moved cold', known.unstartable)):
            if why is not None:
                text += f'\n{command.printable(one.name)} ({one.uuid}) cannot be {how}: {command.printable(why)}.'
    if more:
        text += f'\nThere are more: --limit shows {given.limit} of them.'
    documents = [dataclasses.asdict(one) | dataclasses.asdict(reported.get(one.uuid, Reported())) for one in shown]
    asked.answer({'instances': documents, 'more': more}, text)
    return command.RIGHT


def delete(asked: Asked) -> int:
    """Delete the row of an instance and its allocation in Placement; the guest itself stays."""
    from migrator.conductor import registry

    uuid = asked.arguments.uuid
    found = asked.database.instances.get(uuid)
    command.say_what(uuid, f'instance {found.name} ({uuid}) on {found.host}', always=True)
    registry.delete_instance(asked.database, asked.placement(), uuid)
    asked.answer(
        {'deleted': uuid}, f'The row and the allocation of instance {uuid} are deleted. Its guest is unchanged.'
    )
    return command.RIGHT


def reconcile(asked: Asked) -> int:
    """Let the database and Placement follow the guests that were moved by hand; touch no guest.

    Without ``--yes``, and without a yes at the prompt, only show what would be done. Exit 1 if a difference is left, or
    if a host did not list its guests.
    """
    given = asked.arguments
    if given.host is not None:
        asked.database.services.get_compute(given.host)
    cases, unanswered = _compare(asked)
    asks = not (given.yes or given.dry_run or given.json) and sys.stdin.isatty()
    yes, now = given.yes and not given.dry_run, cases
    if asks and any(case.act for case in cases):
        _show(cases, {case.uuid: case.advice() for case in cases})
        yes = input('Carry out each line that begins with "To do"? [y/N] ').strip().lower() in ('y', 'yes')
        if yes:  # the operator may have taken long
            now, unanswered = _compare(asked)
    done, texts = dict[str, bool](), dict[str, str]()
    for case in cases:
        if yes and case.act is not None:
            done[case.uuid], text = _act(case, now)
            texts[case.uuid] = f'Done: {text}' if done[case.uuid] else f'Left alone: {text}'
        else:
            texts[case.uuid] = case.advice()
    documents = [
        {'uuid': case.uuid, 'name': case.name, **case.shown}
        | {'done': done.get(case.uuid, False), 'says': texts[case.uuid]}
        for case in cases
    ]
    if given.json:
        asked.answer({'dry_run': not yes, 'guests': documents, 'unanswered': unanswered}, '')
    else:
        _show(cases, texts)
        for host, why in sorted(unanswered.items()):
            print(command.printable(f'Host {host} did not list its guests: {why}'))
        print(_result(cases, unanswered, sum(done.values()), yes))
    left = [case for case in cases if not (done.get(case.uuid) if yes else case.act)]
    return command.WRONG if left or unanswered else command.RIGHT


def list_guests(asked: Asked) -> Round:
    """Have all hosts list their guests."""
    from migrator.conductor.guests import lists

    with _asking(asked) as ask:
        return lists.ask_all(asked.database.services, ask, asked.database.threads)


@contextlib.contextmanager
def _asking(asked: Asked) -> Iterator[Callable[[Service], list[protocol.Guest]]]:
    """Yield a function that has one host list its guests."""
    from migrator import context
    from migrator.compute import rpcapi
    from migrator.conductor.guests import lists

    with asked.talking() as client:
        computes = rpcapi.ComputeAPI(client)
        yield lambda service: computes.list_guests(context.admin_context(), service.host, lists.TIMEOUT)


def _compare(asked: Asked) -> tuple[list[Case], dict[str, str]]:
    from migrator.conductor.guests.reconcile import compare

    with _asking(asked) as ask:
        cases, unanswered = compare(asked.database, asked.placement(), ask)
    host = asked.arguments.host
    return [case for case in cases if host is None or host in case.hosts], unanswered


def _act(case: Case, now: Sequence[Case]) -> tuple[bool, str]:
    """Do what was shown for a guest, unless it has changed meanwhile."""
    same = next((one for one in now if (one.uuid, one.shown) == (case.uuid, case.shown)), None)
    if same is None or same.act is None:
        return False, 'it has changed meanwhile: run this command again'
    try:
        return same.act()
    except exception.MigratorException as error:
        return False, f'it may or may not be done ({error.message.rstrip(".")}): run this command again'


def _show(cases: Sequence[Case], texts: Mapping[str, str]) -> None:
    for case in cases:
        print(command.printable(f'{case.name} ({case.uuid})'))
        for line in [*(f'{who}: {what}' for who, what in case.shown.items()), f'{texts[case.uuid].rstrip(".")}.']:
            print(f'  {command.printable(line)}')
        print(flush=True)


def _result(cases: Sequence[Case], unanswered: Collection[str], done: int, yes: bool) -> str:
    if not cases and unanswered:
        hosts = command.printable(', '.join(sorted(unanswered)))
        return f'No difference was found. Where the guests of {hosts} are is not known.'
    if not cases:
        return 'Every guest is where the database and Placement have it.'
    if yes:
        return f'{done} done, {len(cases) - done} left alone. No guest was touched.'
    return f'Nothing was changed.{" To do it: the same with --yes." if any(case.act for case in cases) else ""}'


def _property(text: str) -> tuple[str, str]:
    key, found, value = text.partition('=')
    if not key or not found:
        raise argparse.ArgumentTypeError(f'{text!r} is not of the form KEY=VALUE')
    problem = spec_problem(key, value)
    if problem is not None:
        raise argparse.ArgumentTypeError(f'{text!r}: {problem}')
    return key, value


def foreign(flavor: Flavor) -> str:
    """Return in words which extra specs of a flavor were not judged, or ''."""
    keys = ', '.join(sorted(key for key in flavor.extra_specs if is_foreign(key)))
    return f' Kept as they are, since nova does not know them: {keys}.' if keys else ''


def flavor_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the amounts of a flavor."""
    at_least = command.at_least
    parser.add_argument('--vcpus', type=at_least(1), required=True, metavar='N', help='virtual processors')
    parser.add_argument('--memory', type=at_least(1), required=True, metavar='MIB', help='memory, in MiB')
    parser.add_argument('--disk', type=at_least(0), required=True, metavar='GIB', help='root disk, in GiB')
    parser.add_argument(
        '--ephemeral', type=at_least(0), default=0, metavar='GIB', help='ephemeral disk, in GiB; default 0'
    )
    parser.add_argument('--swap', type=at_least(0), default=0, metavar='MIB', help='swap disk, in MiB; default 0')
    parser.add_argument(
        '--property',
        type=_property,
        action='append',
        default=[],
        metavar='KEY=VALUE',
        help='an extra spec of the flavor, as in nova, such as resources:CUSTOM_GOLD=1; may be repeated',
    )


def _create_arguments(parser: argparse.ArgumentParser) -> None:
    name = command.name
    parser.add_argument('--uuid', type=command.uuid, help="the guest's uuid at its hypervisor; default: a new one")
    parser.add_argument('--name', type=name, help='the name of the instance; default: its uuid')
    parser.add_argument(
        '--host', type=name, required=True, help='the compute host of the guest, as "service list" shows it'
    )
    parser.add_argument('--project', type=name, required=True, metavar='ID', help='the project of the instance')
    parser.add_argument('--user', type=name, required=True, metavar='ID', help='the user of the instance')
    parser.add_argument(
        '--flavor',
        type=command.flavor_name,
        default='custom',
        metavar='NAME',
        help='the name of the flavor; default custom',
    )
    flavor_arguments(parser)
    parser.add_argument('--force', action='store_true', help='do not check that the host has the guest')
    parser.add_argument(
        '--vm-state', choices=sorted(POWER_STATES), default='active', help='the state of the guest; default active'
    )


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--host', help='only instances on this host')
    parser.add_argument('--project', metavar='ID', help='only instances of this project')
    command.limit(parser)


def _reconcile_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--host', help='only guests that this host has, at its hypervisor or in the database')
    parser.add_argument('--dry-run', action='store_true', help='only show what would be done')
    parser.add_argument('--yes', action='store_true', help='do it without a question')


def _delete_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('uuid', type=command.uuid, metavar='UUID', help='the uuid of the instance')


#: The verbs of an instance.
VERBS: tuple[command.Verb, ...] = (
    Verb('create', 'register a guest that is on a host: create its row and its allocation', create, _create_arguments),
    Verb('list', 'list the instances, the newest first', list_, _list_arguments),
    Verb('delete', 'delete the row and the allocation of an instance; the guest stays', delete, _delete_arguments),
    Verb(
        'reconcile',
        'compare hypervisors, database and Placement, and let the last two follow guests that were moved by hand',
        reconcile,
        _reconcile_arguments,
    ),
)
