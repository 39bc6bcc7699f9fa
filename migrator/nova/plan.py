# SPDX-License-Identifier: Apache-2.0

"""The plan of a drain on a stock Nova, and the choice of a destination that is named to Nova.

Both apply the rules of Nova's scheduler to what Nova's API and Placement show: room and traits in Placement, services
that are up and enabled, availability zones, server groups and the metadata of host aggregates. The API does not show
the cell of a host, some properties of an image, the resources of a port and the scheduler's options. So a plan is a
forecast. When a guest moves, Nova's scheduler decides, and by default it chooses the host.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any

from migrator import exception, executors
from migrator.drain import forecast
from migrator.drain.engine import Guest, Obstacle, ObstacleKind, Refused, to_decide, why_copied
from migrator.drain.plan import Choice, Copy, Need, Rooms, documents, in_order
from migrator.nova import recorded
from migrator.nova.client import Nova
from migrator.nova.engine import AT_ONCE
from migrator.nova.guests import (
    copied,
    evacuate,
    holders,
    is_cold,
    look_at,
    obstacle,
    service_of,
    softly_deleted,
    to_end,
    why_left,
)
from migrator.nova.resources import Server, ServerGroup
from migrator.objects import base, remedies
from migrator.objects.drain import Drain, Member
from migrator.placement_client import candidates
from migrator.placement_client.client import PlacementClient

#: The greatest number of moves to one host at a time.
INBOUND = 2
#: Seconds for which a chooser uses what it has read.
FRESH = 10.0
#: The extra specs with this prefix are compared with the metadata of aggregates.
_AGGREGATE_KEY = 'aggregate_instance_extra_specs:'
#: Metadata of an aggregate whose name begins with this reserve its hosts for the projects in the value.
_TENANT_KEY = 'filter_tenant_id'
#: The microversion that shows the zone for which a guest was requested. Its release (2024.1) is the first that moves
#: vGPUs live.
_SHOWS_PINNED = _MOVES_VGPU = (2, 96)
#: The microversion that shows the properties of images.
_SHOWS_PROPERTIES = (2, 98)
#: The extra specs without a namespace that no filter compares.
_PLAIN = ('group_policy', 'hide_hypervisor_id')
#: The beginnings of extra specs that filters compare with what no API shows: capabilities, NUMA nodes and pages.
_FOR_THE_SCHEDULER = (
    'capabilities:', 'hw:numa_', 'hw:mem_page_size', 'hw:pci_numa_affinity_policy', 'hw:cpu_policy', 'hw:locked_memory',
)  # fmt: skip
#: The greatest number of guests that a sentence names.
_NAMED = 5
#: The newest microversion of 2026.1 (33), the first release whose hosts have traits for the secrets of TPMs.
_ASKS_FOR_SECRETS = (2, 103)
_TRUE = ('1', 't', 'true', 'on', 'y', 'yes')


def of_one(nova: Nova, placement: PlacementClient, drain: Drain, clock: executors.Clock) -> dict[str, Any]:
    """Return the plan of a drain as JSON.

    :raises migrator.exception.Invalid: no nova-compute has the name of its host.
    :raises migrator.nova.errors.NovaUnreachable: Nova did not answer.
    :raises migrator.exception.PlacementUnreachable: Placement did not answer.
    """
    check_host(nova, drain.host)
    return plan(nova, placement, [drain], clock)[0]


def check_host(nova: Nova, host: object) -> None:
    """Raise unless a nova-compute has the name of a host; what is no name is left to others.

    :raises migrator.exception.Invalid: none has.
    :raises migrator.nova.errors.NovaUnreachable: Nova did not answer.
    """
    hosts = {service.host for service in nova.services()}
    if isinstance(host, str) and host not in hosts:
        raise exception.Invalid(base.no_host(host, hosts).message)


def plan(
    nova: Nova,
    placement: PlacementClient,
    drains: Sequence[Drain],
    clock: executors.Clock,
    obstacle_of: Callable[[Server], Obstacle | None] | None = None,
) -> list[dict[str, Any]]:
    """Return the plans of drains that would run at the same time, in their order, as JSON.

    No plan sends a guest to the host of another drain, and the guests of all drains share the same room.

    :param obstacle_of: returns what is in the way of a guest; None: what is in the way of its live migration.
    :returns: as from :func:`migrator.drain.plan.documents`.
    :raises migrator.nova.errors.NovaUnreachable: Nova did not answer.
    :raises migrator.exception.PlacementUnreachable: Placement did not answer.
    """
    site = Site(nova)
    room = Rooms(candidates.Room(placement), site.hosts, {drain.host for drain in drains})
    found = [nova.servers(drain.host) for drain in drains]
    site.note(server for servers in found for server in servers)
    chosen = [
        list(_choose(site, room, drain, servers, obstacle_of or functools.partial(site.obstacle, drain)))
        for drain, servers in zip(drains, found, strict=True)
    ]
    past = recorded.completed(nova, {server.uuid: server.flavor.memory_mb for servers in found for server in servers})
    now = clock.now()
    listed = {server.uuid for servers in found for server in servers}
    copies = {
        drain.host: [*_copies(nova, drain.host), *_deleted(nova, placement, drain.host, listed)] for drain in drains
    }
    not_judged = {drain.host: list(_not_judged(site, servers)) for drain, servers in zip(drains, found, strict=True)}
    return documents(
        room,
        drains,
        chosen,
        copies,
        lambda drain: forecast.Outlook(now, drain.parallel or AT_ONCE, past),
        not_judged,
    )


def _not_judged(site: Site, servers: Sequence[Server]) -> Iterator[str]:
    """Yield what Nova's scheduler may compare and a plan could not."""
    if servers and not site.shows_properties:
        yield 'The properties of images were not seen: Nova shows them from 2025.1 (microversion 2.98) on.'
    elif volumes := sum(server.is_volume_backed for server in servers):
        yield f'The properties of images were not seen for {base.count(volumes, "guest")} whose root disk is a volume.'
    if hidden := sum(not server.shows_extra_specs for server in servers):
        yield (
            f'The extra specs of {base.count(hidden, "guest")} were not seen: a policy of Nova '
            '(os_compute_api:os-flavor-extra-specs:index) hides them from this user.'
        )
    for key, names in sorted(_only_for_the_scheduler(servers).items()):
        more = f' and {len(names) - _NAMED} more' if len(names) > _NAMED else ''
        yield f"Only Nova's scheduler can judge {key} of {', '.join(names[:_NAMED])}{more}."


def _only_for_the_scheduler(servers: Sequence[Server]) -> dict[str, list[str]]:
    """Return the extra specs that filters compare by rules of their own -> their guests."""
    found: dict[str, list[str]] = collections.defaultdict(list)
    for server in servers:
        for key, value in server.flavor.extra_specs.items():
            is_expression = key.startswith(_AGGREGATE_KEY) and ' ' in value
            if is_expression or key.startswith(_FOR_THE_SCHEDULER) or (':' not in key and key not in _PLAIN):
                found[f'{key}={value}'].append(server.name)
    return found


def _copies(nova: Nova, host: str) -> Iterator[Copy]:
    """Yield the old copies at a host of the guests that wait in VERIFY_RESIZE elsewhere."""
    for server in copied(nova, host):
        service = service_of(nova, host)
        is_up = service is not None and service.state == 'up'
        there = server.host or ''
        yield Copy(server.uuid, server.name, there, why_copied(there, host), to_decide(server.uuid, host, is_up))


def _deleted(nova: Nova, placement: PlacementClient, host: str, listed: Collection[str]) -> Iterator[Copy]:
    """Yield the guests of a host that are deleted softly, which no list of Nova shows."""
    nodes = [one.uuid for one in nova.hypervisors() if one.host == host]
    for server in softly_deleted(nova, holders(placement, nodes) - {*listed}):
        if server.host == host:
            yield Copy(server.uuid, server.name, host, why_left(host), to_end(server))


def _choose(
    site: Site,
    room: Rooms,
    drain: Drain,
    servers: Sequence[Server],
    obstacle_of: Callable[[Server], Obstacle | None],
) -> Iterator[Choice]:
    """Yield the guests of a drain in their order, each with what is in the way and its destination."""
    by_uuid = {server.uuid: server for server in servers}
    guests = [
        Guest(
            server.uuid,
            server.name,
            drain.host,
            server.flavor.memory_mb,
            obstacle_of(server),
            is_cold(server, drain),
            server.locked,
        )
        for server in servers
    ]
    for guest in in_order(drain, guests):
        need = site.need(drain, by_uuid[guest.uuid])
        destination = None
        if guest.obstacle is None or guest.obstacle.kind == ObstacleKind.BUSY:
            destination = room.take(need)
            if destination is not None:
                site.move(guest.uuid, destination)
        yield Choice(guest, need, guest.obstacle, destination)


class Spread:
    """The choice of the destination of each move, so that few are on their way to one host at a time.

    The threads of several drains may use it at once.

    :param inbound: the greatest number of moves to one host at a time.
    """

    def __init__(
        self, nova: Nova, placement: PlacementClient, threads: executors.Threads, inbound: int = INBOUND
    ) -> None:
        self._nova, self._placement, self._clock, self._inbound = nova, placement, threads.clock, inbound
        # Held while Nova and Placement are read, because a thread must not use what another one has read only in part.
        self._lock = threads.lock()
        self._read: tuple[float, Site, Rooms] | None = None
        #: Host -> how often it was chosen.
        self._chosen: collections.Counter[str] = collections.Counter()

    def choose(
        self, drain: Drain, member: Member, avoided: Collection[str], in_flight: Mapping[str, int]
    ) -> str | None:
        """Return the host with room that has the fewest moves on their way to it; None: none is free now.

        Among equals it is the one that was chosen least often.

        :param avoided: hosts that are chosen only if no other one can take the guest.
        :param in_flight: host -> the number of moves on their way to it.
        :raises migrator.drain.engine.Refused: no host can take the guest.
        :raises migrator.nova.errors.NovaUnreachable: Nova did not answer.
        :raises migrator.exception.PlacementUnreachable: Placement did not answer.
        """
        with self._lock:
            return self._choose(drain, member, avoided, in_flight)

    def _choose(
        self, drain: Drain, member: Member, avoided: Collection[str], in_flight: Mapping[str, int]
    ) -> str | None:
        site, room = self._known()
        server = self._nova.server(member.instance_uuid)
        if server is None:
            raise Refused(Obstacle(ObstacleKind.BUSY, 'It was deleted.', 'The drain sees that by itself.'))
        site.note([server])
        need = site.need(drain, server)
        fresh = dataclasses.replace(
            need,
            limits=(need.limits, frozenset(avoided)),
            why_not=lambda host: 'it is avoided' if host in avoided else need.why_not(host),
        )
        chosen = self._take(room, fresh, in_flight)
        # A host at its bound can take the guest later. That is better than an avoided host now.
        if chosen is None and not room.has_any(fresh):
            chosen = self._take(room, need, in_flight)
        if chosen is None and not room.has_any(need):
            raise Refused(room.why_none(need))
        if chosen is not None:
            site.move(server.uuid, chosen)
            self._chosen[chosen] += 1
        return chosen

    def _take(self, room: Rooms, need: Need, in_flight: Mapping[str, int]) -> str | None:
        full = {host for host, number in in_flight.items() if number >= self._inbound}
        return room.take(
            dataclasses.replace(
                need,
                limits=object(),  # so that it shares the answer of no other guest
                why_not=lambda host: 'its moves are at their bound' if host in full else need.why_not(host),
                rank=lambda host: (*need.rank(host), in_flight.get(host, 0), self._chosen[host]),
            )
        )

    def _known(self) -> tuple[Site, Rooms]:
        now = self._clock.monotonic()
        if self._read is None or now - self._read[0] > FRESH:
            site = Site(self._nova)
            self._read = now, site, Rooms(candidates.Room(self._placement), site.hosts, ())
        return self._read[1:]


class Site:
    """What Nova shows of the hosts, aggregates and server groups on which its scheduler's choice depends.

    :ivar hosts: resource provider of a hypervisor -> its host.
    :ivar shows_properties: whether Nova shows the properties of images.
    """

    def __init__(self, nova: Nova) -> None:
        self._nova = nova
        self._moves_vgpu = nova.microversion >= _MOVES_VGPU
        self.shows_properties = nova.microversion >= _SHOWS_PROPERTIES
        self._asks_for_secrets = nova.microversion >= _ASKS_FOR_SECRETS
        self._shows_pinned = nova.microversion >= _SHOWS_PINNED
        # Nova may keep an old record of a host: the one that reports counts.
        self._services = {one.host: one for one in sorted(nova.services(), key=lambda one: one.state == 'up')}
        hypervisors = nova.hypervisors()
        self.hosts = {one.uuid: one.host for one in hypervisors}
        self._hypervisors = {one.host: (one.type, one.version) for one in hypervisors}
        self._zones: dict[str, set[str]] = collections.defaultdict(set)
        #: Host -> name -> the values of its aggregates.
        self._metadata: dict[str, dict[str, set[str]]] = collections.defaultdict(dict)
        for aggregate in nova.aggregates():
            if aggregate.availability_zone:
                self._zones[aggregate.availability_zone].update(aggregate.hosts)
            for host in aggregate.hosts:
                for name, value in aggregate.metadata.items():
                    values = {one.strip() for one in value.split(',')}
                    self._metadata[host][name] = self._metadata[host].get(name, set()) | values
        self._isolates = any(name.startswith(_TENANT_KEY) for one in self._metadata.values() for name in one)
        self._groups = {member: group for group in nova.server_groups() for member in group.members}
        #: Member of a server group -> its host.
        self._at: dict[str, str | None] = {}
        #: The projects whose guests were listed.
        self._listed: set[str] = set()

    def note(self, servers: Iterator[Server] | Sequence[Server]) -> None:
        """Remember where guests are."""
        self._at.update({server.uuid: server.host for server in servers})

    def move(self, uuid: str, host: str) -> None:
        """Treat a guest as if it were at a host already."""
        self._at[uuid] = host

    def obstacle(self, drain: Drain, server: Server) -> Obstacle | None:
        """Return what is in the way of the migration of a guest, besides a lack of room."""
        source = self._services.get(server.host or '')
        found = obstacle(server, source, drain)
        if found is not None and found.kind != ObstacleKind.BUSY:
            return found
        if source is None or source.state != 'up':
            remedy = f'Start nova-compute there. {evacuate(server, source)}'.rstrip()
            return Obstacle(ObstacleKind.STATE, f'Its host {server.host} is down.', remedy)
        immovable = self._immovable_cold(server) if is_cold(server, drain) else self._immovable(server)
        return immovable or self._bound_to_group(server) or found

    def _immovable(self, server: Server) -> Obstacle | None:
        """Return the part of its flavor that Nova does not move live, as an obstacle."""
        specs, look = server.flavor.extra_specs, look_at(self._services.get(server.host or ''))
        cold = remedies.offer(remedies.Kind.MOVE_COLD, look, guest=server.uuid)
        if specs.get('hw:mem_encryption', '').lower() in _TRUE:
            return _immovable('its memory is encrypted (hw:mem_encryption)', cold)
        if 'hw:tpm_version' in specs and specs.get('hw:tpm_secret_security') != 'host':
            remedy = f'{cold} Nova 33 and newer move it live if its flavor has hw:tpm_secret_security=host.'
            return _immovable('its TPM secret is not known to the hosts (hw:tpm_version)', remedy)
        if specs.get('pci_passthrough:alias'):
            remedy = (
                f'{cold} Nova 31 and newer move it live if the alias has live_migratable=true: then start the drain.'
            )
            return _immovable(f'it has a PCI device ({specs["pci_passthrough:alias"]})', remedy)
        if (accelerator := self._immovable_cold(server)) is not None:
            return accelerator
        if 'VGPU' in server.flavor.resources() and not self._moves_vgpu:
            return _immovable('it has a vGPU, which Nova moves live from release 29 (2024.1) on', cold)
        return None

    def _immovable_cold(self, server: Server) -> Obstacle | None:
        """Return the part of its flavor that Nova moves neither live nor cold, as an obstacle."""
        profile = server.flavor.extra_specs.get('accel:device_profile')
        if not profile:
            return None
        remedy = remedies.offer(remedies.Kind.SHELVE, look_at(self._services.get(server.host or '')), guest=server.uuid)
        return _immovable(f'it has an accelerator ({profile})', remedy)

    def _bound_to_group(self, server: Server) -> Obstacle | None:
        """Return why the server group of a guest does not let it leave its host."""
        group = self._groups.get(server.uuid)
        if group is None or group.policy != 'affinity' or set(self._members_at(group)) - {server.host}:
            return None
        return Obstacle(
            ObstacleKind.NO_DESTINATION,
            f'Its server group {group.name} has the policy affinity, and all its members are on {server.host}. Nova '
            'moves none of them to another host.',
            remedies.offer(remedies.Kind.DELETE_GROUP, group=group.uuid),
        )

    def _members_at(self, group: ServerGroup) -> collections.Counter[str]:
        """Return host -> the number of members of a server group there."""
        unknown = [uuid for uuid in group.members if uuid not in self._at]
        if len(unknown) > 1 and group.project_id is not None and group.project_id not in self._listed:
            # A list of the project's guests takes fewer requests than each member by itself.
            self._listed.add(group.project_id)
            found = self._nova.servers(project_id=group.project_id, requests=len(unknown) - 1)
            for one in found:
                if one.host:
                    self._at.setdefault(one.uuid, one.host)
        for uuid in unknown:
            if uuid not in self._at:
                server = self._nova.server(uuid)
                self._at[uuid] = server.host if server is not None else None
        return collections.Counter(host for uuid in group.members if (host := self._at[uuid]) is not None)

    def need(self, drain: Drain, server: Server) -> Need:
        """Return what a guest needs of its destination."""
        source = server.host or ''
        asked = server.request(self._asks_for_secrets)
        group = self._groups.get(server.uuid)
        members = self._members_at(group) if group is not None else collections.Counter[str]()
        home = self._services[source].zone if source in self._services else None
        project = server.project_id if self._isolates else None

        def why_not(host: str) -> str | None:
            return (
                self._why_not_service(host, source)
                or self._why_not_aggregate(host, server, project)
                or _why_not_group(host, group, members)
            )

        def rank(host: str) -> tuple[int, ...]:
            """Put first the guest's zone, if it may be bound to that, then what its soft policy prefers."""
            service = self._services.get(host)
            apart = members[host] if group is not None and group.policy == 'soft-anti-affinity' else 0
            together = not members[host] if group is not None and group.policy == 'soft-affinity' else 0
            other_zone = not self._shows_pinned and service is not None and service.zone != home
            return int(other_zone), apart + together

        limits: Hashable = (
            source,
            server.pinned_zone,
            project,
            group and (group.uuid, frozenset(members.items())),
        )
        return Need(asked, drain.destinations, limits, why_not, rank)

    def _why_not_service(self, host: str, source: str) -> str | None:
        if host == source:
            return 'it is there already'
        service = self._services.get(host)
        if service is None:
            return 'it has no nova-compute'
        if service.forced_down or service.state != 'up':
            return 'it is down'
        (there, newest), (here, version) = self._hypervisors[host], self._hypervisors.get(source, ('', 0))
        if here and there != here:
            return f'its hypervisor is {there}, and that of {source} is {here}'
        if newest < version:
            return f'its hypervisor has version {newest}, and that of {source} has the newer version {version}'
        if service.status != 'enabled':
            return 'it is disabled' + (f' ({service.disabled_reason})' if service.disabled_reason else '')
        return None

    def _why_not_aggregate(self, host: str, server: Server, project: str | None) -> str | None:
        zone = server.pinned_zone
        # Nova's default zone has no aggregate, and a request for it excludes no host.
        if zone is not None and host not in self._zones.get(zone, {host}):
            return f'it is not in the availability zone {zone}, for which the guest was requested'
        metadata = self._metadata.get(host, {})
        if project is not None:
            kept = [values for name, values in metadata.items() if name.startswith(_TENANT_KEY)]
            if kept and project not in set().union(*kept):
                return f'its aggregates are for other projects than {project}'
        for key, wanted in server.flavor.extra_specs.items():
            name = key.removeprefix(_AGGREGATE_KEY)
            # A value with a blank is an expression, which only the scheduler evaluates.
            if name != key and ' ' not in wanted and wanted not in metadata.get(name, set()):
                return f'none of its aggregates has {name}={wanted}'
        return None


def _why_not_group(host: str, group: ServerGroup | None, members: Mapping[str, int]) -> str | None:
    if group is None:
        return None
    if group.policy == 'anti-affinity' and members.get(host, 0) >= int(group.rules.get('max_server_per_host', 1)):
        return f'it has as many members of the server group {group.name} (anti-affinity) as that allows'
    if group.policy == 'affinity' and host not in members:
        return f'it has no member of the server group {group.name} (affinity)'
    return None


def _immovable(what: str, remedy: str) -> Obstacle:
    return Obstacle(ObstacleKind.IMMOVABLE, f'It cannot be moved live: {what}.', remedy)
