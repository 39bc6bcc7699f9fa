# SPDX-License-Identifier: Apache-2.0

"""What Nova's REST API shows: guests, migrations, services, hypervisors and so on. Times are UTC."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any

from migrator.objects import Flavor
from migrator.objects.request import Request


@dataclasses.dataclass(frozen=True, kw_only=True)
class Server:
    """A guest, as Nova shows it.

    :ivar host: None: it has none.
    :ivar node: the hostname of its hypervisor.
    :ivar status: such as ``ACTIVE`` or ``MIGRATING``.
    :ivar task_state: the task in progress; None: none.
    :ivar power_state: such as 1 of one that runs; None: not known.
    :ivar locked_reason: why it is locked, from microversion 2.73 on.
    :ivar availability_zone: None: not known.
    :ivar pinned_zone: the zone that it was requested for; None: none, or not known (before 2.96).
    :ivar is_volume_backed: whether its root disk is a volume.
    :ivar shows_extra_specs: whether those of its flavor were shown: a policy of Nova's can hide them.
    :ivar image_properties: those of its image that Nova shows; None: it shows none, before 2.98 or of a volume.
    :ivar server_groups: the ids of its server groups; only :meth:`Nova.server` shows them, from 2.71 on.
    """

    uuid: str
    name: str = ''
    host: str | None = None
    node: str | None = None
    status: str = ''
    vm_state: str | None = None
    task_state: str | None = None
    power_state: int | None = None
    locked: bool = False
    locked_reason: str | None = None
    flavor: Flavor = dataclasses.field(default_factory=lambda: Flavor(name=''))
    project_id: str | None = None
    availability_zone: str | None = None
    pinned_zone: str | None = None
    is_volume_backed: bool = False
    shows_extra_specs: bool = True
    image_properties: Mapping[str, str] | None = None
    server_groups: tuple[str, ...] = ()
    created_at: datetime.datetime | None = None
    updated_at: datetime.datetime | None = None

    def request(self, asks_for_secrets: bool) -> Request:
        """Return what Nova asks Placement for before the guest moves, as far as it is shown.

        :param asks_for_secrets: as for :meth:`migrator.objects.Flavor.request_for`.
        """
        return self.flavor.request_for(self.image_properties, self.is_volume_backed, asks_for_secrets)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NovaMigration:
    """A migration of Nova.

    :ivar id: grows with each migration of the same cell.
    :ivar dest_compute: None: no destination was chosen yet, or none was found.
    :ivar type: such as ``live-migration`` or ``evacuation``.
    """

    id: int
    uuid: str
    instance_uuid: str
    status: str
    type: str
    source_compute: str | None = None
    dest_compute: str | None = None
    source_node: str | None = None
    dest_node: str | None = None
    created_at: datetime.datetime | None = None
    updated_at: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Service:
    """A service of Nova.

    :ivar status: ``enabled`` or ``disabled``; ``UNKNOWN`` while the database of its cell does not answer.
    :ivar state: ``up`` or ``down``; ``''`` if not known.
    :ivar updated_at: when it has reported last.
    """

    id: str
    binary: str
    host: str
    zone: str | None = None
    status: str = ''
    disabled_reason: str | None = None
    state: str = ''
    forced_down: bool = False
    updated_at: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hypervisor:
    """A hypervisor. Its uuid is that of its resource provider.

    :ivar host: the host of its nova-compute.
    :ivar running_vms: how many guests its nova-compute counts; None: not known.
    """

    uuid: str
    hostname: str
    host: str
    state: str = ''
    status: str = ''
    type: str = ''
    version: int = 0
    running_vms: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Aggregate:
    """A host aggregate."""

    uuid: str
    name: str
    hosts: tuple[str, ...] = ()
    availability_zone: str | None = None
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerGroup:
    """A server group.

    :ivar policy: such as ``anti-affinity``.
    :ivar members: the uuids of its guests.
    """

    uuid: str
    name: str
    policy: str
    members: tuple[str, ...] = ()
    rules: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    project_id: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActionEvent:
    """A part of an action, at one host.

    :ivar result: ``Success`` or ``Error``; None: it has not ended.
    :ivar details: why it has failed, from microversion 2.84 on.
    """

    event: str
    result: str | None = None
    details: str | None = None
    host: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Action:
    """An action on a guest.

    :ivar action: such as ``live-migration``.
    :ivar message: ``Error`` if it has failed.
    """

    action: str
    request_id: str
    message: str | None = None
    user_id: str | None = None
    started_at: datetime.datetime | None = None


def time_of(text: str | None) -> datetime.datetime | None:
    """Return a time of an answer; one without a zone is in UTC."""
    if not text:
        return None
    found = datetime.datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def server_of(found: Mapping[str, Any]) -> Server:
    """Return a guest of an answer."""
    flavor, image = found.get('flavor') or {}, found.get('image')
    return Server(
        uuid=found['id'],
        name=found.get('name') or '',
        host=found.get('OS-EXT-SRV-ATTR:host'),
        node=found.get('OS-EXT-SRV-ATTR:hypervisor_hostname'),
        status=found.get('status') or '',
        vm_state=found.get('OS-EXT-STS:vm_state'),
        task_state=found.get('OS-EXT-STS:task_state'),
        power_state=found.get('OS-EXT-STS:power_state'),
        locked=bool(found.get('locked')),
        locked_reason=found.get('locked_reason'),
        flavor=Flavor(
            name=flavor.get('original_name') or '',
            vcpus=flavor.get('vcpus', 0),
            memory_mb=flavor.get('ram', 0),
            root_gb=flavor.get('disk', 0),
            ephemeral_gb=flavor.get('ephemeral', 0),
            swap=flavor.get('swap') or 0,
            extra_specs=_texts(flavor.get('extra_specs') or {}),
        ),
        project_id=found.get('tenant_id'),
        availability_zone=found.get('OS-EXT-AZ:availability_zone') or None,
        pinned_zone=found.get('pinned_availability_zone') or None,
        is_volume_backed=image == '',
        shows_extra_specs='extra_specs' in flavor,
        image_properties=_texts(image['properties']) if image and 'properties' in image else None,
        server_groups=tuple(found.get('server_groups') or ()),
        created_at=time_of(found.get('created')),
        updated_at=time_of(found.get('updated')),
    )


def _texts(found: Mapping[str, Any]) -> dict[str, str]:
    return {key: value for key, value in found.items() if isinstance(value, str)}


def migration_of(found: Mapping[str, Any]) -> NovaMigration:
    """Return a migration of an answer."""
    return NovaMigration(
        id=found['id'],
        uuid=found['uuid'],
        instance_uuid=found['instance_uuid'],
        status=found['status'],
        type=found['migration_type'],
        source_compute=found.get('source_compute'),
        dest_compute=found.get('dest_compute'),
        source_node=found.get('source_node'),
        dest_node=found.get('dest_node'),
        created_at=time_of(found.get('created_at')),
        updated_at=time_of(found.get('updated_at')),
    )


def service_of(found: Mapping[str, Any]) -> Service:
    """Return a service of an answer."""
    return Service(
        id=str(found.get('id', '')),
        binary=found['binary'],
        host=found['host'],
        zone=found.get('zone'),
        status=found.get('status') or '',
        disabled_reason=found.get('disabled_reason'),
        state=found.get('state') or '',
        forced_down=bool(found.get('forced_down')),
        updated_at=time_of(found.get('updated_at')),
    )


def hypervisor_of(found: Mapping[str, Any]) -> Hypervisor:
    """Return a hypervisor of an answer."""
    return Hypervisor(
        uuid=str(found['id']),
        hostname=found['hypervisor_hostname'],
        host=found['service']['host'],
        state=found.get('state') or '',
        status=found.get('status') or '',
        type=found.get('hypervisor_type') or '',
        version=found.get('hypervisor_version') or 0,
        running_vms=found.get('running_vms'),
    )


def aggregate_of(found: Mapping[str, Any]) -> Aggregate:
    """Return a host aggregate of an answer."""
    return Aggregate(
        uuid=found['uuid'],
        name=found['name'],
        hosts=tuple(found['hosts']),
        availability_zone=found.get('availability_zone'),
        metadata=found.get('metadata') or {},
    )


def server_group_of(found: Mapping[str, Any]) -> ServerGroup:
    """Return a server group of an answer."""
    return ServerGroup(
        uuid=found['id'],
        name=found['name'],
        policy=found['policy'],
        members=tuple(found.get('members') or ()),
        rules=found.get('rules') or {},
        project_id=found.get('project_id'),
    )


def action_of(found: Mapping[str, Any]) -> Action:
    """Return an action of an answer."""
    return Action(
        action=found['action'],
        request_id=found['request_id'],
        message=found.get('message'),
        user_id=found.get('user_id'),
        started_at=time_of(found.get('start_time')),
    )


def event_of(found: Mapping[str, Any]) -> ActionEvent:
    """Return an event of an answer."""
    return ActionEvent(
        event=found['event'],
        result=found.get('result'),
        details=found.get('details'),
        host=found.get('host'),
    )
