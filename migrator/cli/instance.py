# SPDX-License-Identifier: Apache-2.0

"""``migrator-manage instance``: the guests that migrator keeps the books of.

A guest itself is made, and removed, by its own service; here it gets its row and its allocation in Placement, or loses
them: both, or neither.
"""

from __future__ import annotations

import argparse
import dataclasses

from oslo_utils import uuidutils

from migrator import exception
from migrator.cli import command
from migrator.cli.command import Asked, Verb
from migrator.objects import Flavor, Instance

#: Seconds in which a host has to tell whether it has a guest.
ANSWER_WITHIN = 10.0
#: Nova's number for what a guest in a vm_state does.
POWER_STATES = {'active': 1, 'paused': 3}
COLUMNS = (
    'UUID', 'NAME', 'HOST', 'VM STATE', 'TASK STATE', 'VCPUS', 'MEMORY (MiB)', 'DISK (GiB)', 'PROJECT',
)  # fmt: skip


def create(asked: Asked) -> int:
    """Register a guest that its host has: its row, and its allocation in Placement."""
    from migrator.conductor import instances

    given = asked.arguments
    uuid = given.uuid or uuidutils.generate_uuid()
    instance = Instance(
        uuid=uuid,
        name=given.name or uuid,
        project_id=given.project,
        user_id=given.user,
        host=given.host,
        node=_node_of(asked, given.host),
        flavor=_flavor(given),
        vm_state=given.vm_state,
        power_state=POWER_STATES[given.vm_state],
    )
    if not given.force:
        _check_guest(asked, given.host, uuid)
    stored = instances.create(asked.database, asked.placement(), instance)
    resources = ', '.join(f'{name} {amount}' for name, amount in stored.flavor.resources().items())
    text = f'Instance {stored.uuid} ({stored.name}) is registered on {stored.host}, which now holds {resources} for it.'
    asked.answer({'instance': dataclasses.asdict(stored)}, command.printable(text))
    return command.RIGHT


def _check_guest(asked: Asked, host: str, uuid: str) -> None:
    """Ask a host whether it has a guest.

    :raises migrator.exception.GuestNotFound: it has none.
    :raises migrator.exception.HostNotAsked: it cannot be asked, or does not tell.
    """
    from migrator import context
    from migrator.compute import rpcapi
    from migrator.objects import protocol

    service = asked.database.services.get_compute(host)
    about = protocol.Command(
        migration_uuid=uuidutils.generate_uuid(),
        instance_uuid=uuid,
        step='poll',
        epoch=0,
        owner=command.PROG,
        reply_to='',
        boot_id=service.boot_id or '',
    )
    try:
        with asked.talking() as client:
            computes = rpcapi.ComputeAPI(client, version_of=lambda _: service.version)
            found = computes.poll_live_migrations(context.admin_context(), host, [about], [], timeout=ANSWER_WITHIN)
    except (exception.ServiceUnreachable, exception.RemoteError) as error:
        raise exception.HostNotAsked(host=host, instance_uuid=uuid, reason=error.message.rstrip('.')) from None
    told = next((one for one in found if one.refusal is None and one.guest.told), None)
    if told is None:
        reason = 'it does not tell: it may be starting, or its hypervisor not answer'
        raise exception.HostNotAsked(host=host, instance_uuid=uuid, reason=reason)
    if not told.guest.present:
        helps = 'give the uuid and the host of one that is there, or --force to register it before it is'
        raise exception.GuestNotFound(f'Host {host} has no guest {uuid}: {helps}.', host=host, instance_uuid=uuid)


def _node_of(asked: Asked, host: str) -> str:
    nodes = [node.node for node in asked.database.services.list_nodes() if node.host == host]
    if not nodes:
        raise exception.ComputeHostNotFound(host=host)
    return nodes[0]


def _flavor(given: argparse.Namespace) -> Flavor:
    flavor = Flavor(
        name=given.flavor,
        vcpus=given.vcpus,
        memory_mb=given.memory,
        root_gb=given.disk,
        ephemeral_gb=given.ephemeral,
        swap=given.swap,
        extra_specs=dict(given.property),
    )
    try:
        flavor.resources()
    except ValueError as error:
        value = ' '.join('='.join(pair) for pair in given.property)
        detail = f'an amount of resources:CLASS is no whole number ({error}).'
        raise exception.ConfigurationError(option='--property', value=value, detail=detail) from None
    return flavor


def list_(asked: Asked) -> int:
    """List the instances, the newest first."""
    given = asked.arguments
    filters = {'host': given.host, 'project_id': given.project}
    found = asked.database.instances.list(
        {name: value for name, value in filters.items() if value is not None}, limit=given.limit + 1
    )
    shown, more = found[: given.limit], len(found) > given.limit
    rows = [
        [
            one.uuid, one.name, one.host, one.vm_state, one.task_state, one.flavor.vcpus, one.flavor.memory_mb,
            one.flavor.root_gb, one.project_id,
        ]
        for one in shown
    ]  # fmt: skip
    text = command.table(COLUMNS, rows)
    if more:
        text += f'\nand more: --limit shows {given.limit} of them'
    asked.answer({'instances': [dataclasses.asdict(one) for one in shown], 'more': more}, text)
    return command.RIGHT


def delete(asked: Asked) -> int:
    """Forget an instance: its row, and its allocation in Placement. The guest itself is left alone."""
    from migrator.conductor import instances

    uuid = asked.arguments.uuid
    instances.delete(asked.database, asked.placement(), uuid)
    asked.answer(
        {'deleted': uuid}, f'Instance {uuid} is forgotten: its row and its allocation. Its guest is untouched.'
    )
    return command.RIGHT


def _property(text: str) -> tuple[str, str]:
    key, found, value = text.partition('=')
    if not key or not found:
        raise argparse.ArgumentTypeError(f'{text!r} is not of the form KEY=VALUE')
    return key, value


def _create_arguments(parser: argparse.ArgumentParser) -> None:
    at_least, name = command.at_least, command.name
    parser.add_argument('--uuid', type=command.uuid, help="the guest's, at its hypervisor; default: a new one")
    parser.add_argument('--name', type=name, help='default: its uuid')
    parser.add_argument('--host', type=name, required=True, help='the compute host that has it: one of "service list"')
    parser.add_argument('--vcpus', type=at_least(1), required=True, metavar='N', help='its virtual processors')
    parser.add_argument('--memory', type=at_least(1), required=True, metavar='MIB', help='its memory, in MiB')
    parser.add_argument('--disk', type=at_least(0), required=True, metavar='GIB', help='its root disk, in GiB')
    parser.add_argument('--project', type=name, required=True, metavar='ID', help='the project that it is of')
    parser.add_argument('--user', type=name, required=True, metavar='ID', help='the user who owns it')
    parser.add_argument('--ephemeral', type=at_least(0), default=0, metavar='GIB', help='further local disk; default 0')
    parser.add_argument('--swap', type=at_least(0), default=0, metavar='MIB', help='swap disk; default 0')
    parser.add_argument('--flavor', type=name, default='custom', metavar='NAME', help='the name of its size')
    parser.add_argument(
        '--property',
        type=_property,
        action='append',
        default=[],
        metavar='KEY=VALUE',
        help="an extra spec of its flavor, such as resources:CUSTOM_GOLD=1, as nova's; may be given again",
    )
    parser.add_argument(
        '--force', action='store_true', help='do not ask the host whether it has the guest; default: it is asked'
    )
    parser.add_argument('--vm-state', choices=sorted(POWER_STATES), default='active', help='default active')


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--host', help='only those on this host')
    parser.add_argument('--project', metavar='ID', help='only those of this project')
    command.limit(parser)


def _delete_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('uuid', type=command.uuid, metavar='UUID', help='of the instance')


#: What can be done to an instance.
VERBS: tuple[command.Verb, ...] = (
    Verb('create', 'register a guest that its host has: row and allocation, or neither', create, _create_arguments),
    Verb('list', 'list the instances, the newest first', list_, _list_arguments),
    Verb('delete', 'forget one: row and allocation; the guest is left alone', delete, _delete_arguments),
)
