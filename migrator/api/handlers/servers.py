# SPDX-License-Identifier: Apache-2.0

"""The servers: list, find by name, show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import webob

from migrator import exception
from migrator.api import common, schemas
from migrator.api import request as api_request
from migrator.api.handlers import server_filters, server_views
from migrator.api.policies.servers import DETAIL, DETAIL_ALL, INDEX, INDEX_ALL, SHOW
from migrator.api.schemas import servers
from migrator.objects import Instance


def index(request: api_request.Request) -> webob.Response:
    """List servers by name."""
    found, body = _list(request, INDEX, INDEX_ALL)
    return api_request.answer({'servers': [server_views.basic(request, instance) for instance in found], **body})


def detail(request: api_request.Request) -> webob.Response:
    """List servers with details."""
    found, body = _list(request, DETAIL, DETAIL_ALL)
    details = server_views.Details.of(request, found)
    return api_request.answer({'servers': [details.view(instance) for instance in found], **body})


def show(request: api_request.Request, server_id: str) -> webob.Response:
    """Show one server."""
    instance = common.get_instance(request, server_id)
    request.authorize(SHOW, common.target(instance))
    details = server_views.Details.of(request, [instance], alone=True)
    return api_request.answer({'server': details.view(instance)})


def _list(request: api_request.Request, rule: str, all_rule: str) -> tuple[list[Instance], dict[str, Any]]:
    given = schemas.query(request, servers.INDEX)
    request.authorize(rule)
    wanted = server_filters.of_request(request, given, all_rule)
    size = common.page_size(request, given)
    marker = given.get('marker')
    if wanted.nothing:
        found = []
    elif wanted.predicates or wanted.sort:
        found = _filtered(request, wanted, size, marker)
    else:
        found = request.services.database.instances.list(
            wanted.columns,
            limit=size,
            marker=marker,
            marker_project=None if request.context.is_admin else request.context.project_id or '',
            changes_since=wanted.changes_since,
        )
    further = common.next_link(request, size, [instance.uuid for instance in found])
    return found, {'servers_links': further} if further else {}


def _filtered(
    request: api_request.Request, wanted: server_filters.Wanted, size: int, marker: str | None
) -> list[Instance]:
    everything = request.services.database.instances.list(wanted.columns, changes_since=wanted.changes_since)
    found = [instance for instance in everything if all(fits(instance) for fits in wanted.predicates)]
    for attribute, descending in reversed(wanted.sort):
        found.sort(key=_none_first(attribute), reverse=descending)
    if marker is not None:
        places = [place for place, instance in enumerate(found) if instance.uuid == marker]
        if not places:
            raise exception.MarkerNotFound(marker=marker)
        found = found[places[0] + 1 :]
    return found[:size]


def _none_first(attribute: str) -> Callable[[Instance], tuple[bool, Any]]:
    def key(instance: Instance) -> tuple[bool, Any]:
        value = getattr(instance, attribute)
        return (value is not None, value)

    return key
