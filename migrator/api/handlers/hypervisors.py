# SPDX-License-Identifier: Apache-2.0

"""The hypervisors: the resources of each, and the resources that its guests use."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

import webob
from oslo_log import log as logging
from oslo_utils import uuidutils

from migrator import exception
from migrator.api import common, schemas
from migrator.api.handlers.services import is_up
from migrator.api.policies.nova import (
    HYPERVISORS_LIST,
    HYPERVISORS_LIST_DETAIL,
    HYPERVISORS_SEARCH,
    HYPERVISORS_SERVERS,
    HYPERVISORS_SHOW,
    HYPERVISORS_STATISTICS,
    HYPERVISORS_UPTIME,
)
from migrator.api.request import Request, answer
from migrator.objects import COMPUTE_BINARY, ComputeNode, Instance, Service

LOG = logging.getLogger(__name__)

#: Nova's name of an amount -> the resource class.
_AMOUNTS = {'vcpus': 'VCPU', 'memory_mb': 'MEMORY_MB', 'local_gb': 'DISK_GB'}


def index(request: Request) -> webob.Response:
    """List the hypervisors by name."""
    return _list(request, HYPERVISORS_LIST, detailed=False)


def detail(request: Request) -> webob.Response:
    """List the hypervisors with details."""
    return _list(request, HYPERVISORS_LIST_DETAIL, detailed=True)


def show(request: Request, hypervisor_id: str) -> webob.Response:
    """Show one hypervisor."""
    given = request.given
    request.authorize(HYPERVISORS_SHOW)
    node = _find(request, _valid(request, hypervisor_id))
    views = _Views.of(request, [node])
    view = views.view(node, True, _is_true(given, 'with_servers'))
    if request.since(88) and view['state'] == 'up':
        view['uptime'] = _uptime(request, node)
    return answer({'hypervisor': view})


def statistics(request: Request) -> webob.Response:
    """Sum up all hypervisors."""
    request.authorize(HYPERVISORS_STATISTICS)
    nodes = request.services.database.services.list_nodes()
    views = _Views.of(request, nodes)
    counted = [*(views.amounts(node) for node in nodes)]
    names = counted[0].keys() if counted else _Views.NOTHING
    total = {name: sum(amounts[name] for amounts in counted) for name in names}
    return answer({'hypervisor_statistics': total | {'count': len(nodes)}})


def uptime(request: Request, hypervisor_id: str) -> webob.Response:
    """Show one hypervisor with the uptime of its host."""
    request.authorize(HYPERVISORS_UPTIME)
    node = _find(request, _valid(request, hypervisor_id))
    view = _Views.of(request, [node]).view(node, False, False)
    if view['state'] != 'up':
        raise exception.Invalid(f'Compute service of {node.host} is unavailable at this time: it is down.')
    found = request.services.conductor.get_host_uptime(request.context, node.host)
    if found is None:
        raise webob.exc.HTTPNotImplemented(f'The driver of host {node.host} does not know the uptime.')
    return answer({'hypervisor': view | {'uptime': found}})


def _uptime(request: Request, node: ComputeNode) -> str | None:
    try:
        return request.services.conductor.get_host_uptime(request.context, node.host)
    except exception.MigratorException as error:
        LOG.warning('Cannot read the uptime of host %(host)s: %(error)s', {'host': node.host, 'error': error})
        return None


def search(request: Request, hypervisor_id: str) -> webob.Response:
    """Find hypervisors by a part of their name. From 2.53 on a parameter of the list replaces this."""
    return _matching(request, HYPERVISORS_SEARCH, hypervisor_id, with_servers=False)


def servers(request: Request, hypervisor_id: str) -> webob.Response:
    """List the servers of hypervisors found by a part of their name."""
    return _matching(request, HYPERVISORS_SERVERS, hypervisor_id, with_servers=True)


def _list(request: Request, rule: str, detailed: bool) -> webob.Response:
    given = request.given
    request.authorize(rule)
    database = request.services.database
    size = common.page_size(request) if request.since(33) else None
    name = given.get('hypervisor_hostname_pattern')
    if name is not None:
        if 'limit' in given or 'marker' in given:
            raise exception.Invalid('Paging over hypervisors with the hypervisor_hostname_pattern is not supported.')
        nodes = _named(request, name)
        size = None
    else:
        nodes = database.services.list_nodes(limit=size, marker=_marker(request, given))
    views = _Views.of(request, nodes)
    with_servers = _is_true(given, 'with_servers')
    further = common.next_link(request, 'hypervisors_links', size, [str(_id(request, node)) for node in nodes])
    return answer({'hypervisors': [views.view(node, detailed, with_servers) for node in nodes]} | further)


def _marker(request: Request, given: dict[str, str]) -> str | None:
    marker = given.get('marker')
    if marker is None:
        return None
    try:
        return _find(request, marker).uuid
    except exception.HypervisorNotFound:
        raise exception.MarkerNotFound(marker=marker) from None


def _matching(request: Request, rule: str, name: str, with_servers: bool) -> webob.Response:
    request.authorize(rule)
    nodes = _named(request, name)
    views = _Views.of(request, nodes)
    return answer({'hypervisors': [views.view(node, False, with_servers) for node in nodes]})


def _named(request: Request, name: str) -> list[ComputeNode]:
    found = [node for node in request.services.database.services.list_nodes() if name in node.node]
    if not found:
        raise exception.NotFound(f"No hypervisor matching '{name}' could be found.")
    return found


def _valid(request: Request, hypervisor_id: str) -> str:
    if request.since(53) and not uuidutils.is_uuid_like(hypervisor_id):
        raise exception.Invalid(f'Invalid uuid {hypervisor_id}: from version 2.53 on, a hypervisor has a uuid.')
    return hypervisor_id


def _find(request: Request, hypervisor_id: str) -> ComputeNode:
    key: str | int | None = hypervisor_id if uuidutils.is_uuid_like(hypervisor_id) else None
    if not request.since(53):
        key = common.integer_id(hypervisor_id)
    if key is None:
        raise exception.HypervisorNotFound(hypervisor_id=hypervisor_id)
    return request.services.database.services.get_node(key)


def _id(request: Request, node: ComputeNode) -> str | int:
    return node.uuid if request.since(53) else node.id


def _is_true(given: dict[str, str], name: str) -> bool:
    return name in given and schemas.boolean(given[name])


@dataclasses.dataclass(frozen=True)
class _Views:
    """The views of hypervisors. Services and guests are read once for all of them."""

    NOTHING = (
        'vcpus', 'vcpus_used', 'memory_mb', 'memory_mb_used', 'local_gb', 'local_gb_used', 'free_ram_mb',
        'free_disk_gb', 'disk_available_least', 'current_workload', 'running_vms',
    )  # fmt: skip

    request: Request
    services: dict[str, Service]
    guests: dict[str, list[Instance]]
    now: Any

    @classmethod
    def of(cls, request: Request, nodes: Iterable[ComputeNode]) -> _Views:
        database = request.services.database
        guests: dict[str, list[Instance]] = {node.host: [] for node in nodes}
        for instance in database.instances.list({'host': list(guests)}):
            guests[instance.host].append(instance)
        found = database.services.list(COMPUTE_BINARY, list(guests))
        return cls(request, {service.host: service for service in found}, guests, database.services.now())

    def view(self, node: ComputeNode, detailed: bool, with_servers: bool) -> dict[str, Any]:
        service = self.services.get(node.host)
        up = service is not None and is_up(self.request, service, self.now)
        view: dict[str, Any] = {
            'id': _id(self.request, node),
            'hypervisor_hostname': node.node,
            'state': 'up' if up else 'down',
            'status': 'disabled' if service is not None and service.disabled else 'enabled',
        }
        if detailed:
            view |= {
                'hypervisor_type': node.hypervisor_type,
                'hypervisor_version': node.hypervisor_version,
                'host_ip': node.host_ip,
                'service': self._service(node, service),
            }
            view |= self._figures(node)
        # Nova leaves out an empty list below this version.
        if with_servers and (self.guests[node.host] or self.request.since(75)):
            view['servers'] = [{'name': guest.name, 'uuid': guest.uuid} for guest in self.guests[node.host]]
        return view

    def _figures(self, node: ComputeNode) -> dict[str, Any]:
        if self.request.since(88):
            # A list does not ask each host. Nova has null too, if the driver of a host does not know it.
            return {'uptime': None}
        return self.amounts(node) | {'cpu_info': node.cpu_info if self.request.since(28) else json.dumps(node.cpu_info)}

    def _service(self, node: ComputeNode, service: Service | None) -> dict[str, Any]:
        if service is None:
            return {'id': '', 'host': node.host, 'disabled_reason': None}
        return {
            'id': service.uuid if self.request.since(53) else service.id,
            'host': service.host,
            'disabled_reason': service.disabled_reason,
        }

    def amounts(self, node: ComputeNode) -> dict[str, int]:
        guests = self.guests[node.host]
        amounts: dict[str, int] = {}
        for name, resource_class in _AMOUNTS.items():
            amounts[name] = node.total(resource_class)
            amounts[f'{name}_used'] = sum(guest.flavor.resources().get(resource_class, 0) for guest in guests)
        # Nova counts dedicated ones too.
        amounts['vcpus_used'] += sum(guest.flavor.resources().get('PCPU', 0) for guest in guests)
        free_disk = amounts['local_gb'] - amounts['local_gb_used']
        return amounts | {
            'free_ram_mb': amounts['memory_mb'] - amounts['memory_mb_used'],
            'free_disk_gb': free_disk,
            'disk_available_least': free_disk,
            'current_workload': sum(guest.task_state is not None for guest in guests),
            'running_vms': len(guests),
        }
