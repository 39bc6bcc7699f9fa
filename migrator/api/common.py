# SPDX-License-Identifier: Apache-2.0

"""Shared parts of the handlers: a server's owner, times, links, pages, and the hidden names of hosts."""

from __future__ import annotations

import datetime
import hashlib
import re
import urllib.parse
import uuid
from typing import Any, TypeVar

from oslo_utils import uuidutils

from migrator import exception
from migrator.api.request import Request
from migrator.objects import Instance

T = TypeVar('T')

#: The largest integer id that the database can hold.
MAX_ID = 2**31 - 1


def get_instance(request: Request, server_id: str) -> Instance:
    """Return a server that the caller may see.

    :raises migrator.exception.InstanceNotFound: it does not exist, or belongs to another project.
    """
    instance = request.services.database.instances.get(server_id)
    if not request.context.is_admin and instance.project_id != request.context.project_id:
        raise exception.InstanceNotFound(instance_uuid=server_id)
    return instance


def target(instance: Instance) -> dict[str, Any]:
    """Return the target of a policy check for a server."""
    return {'project_id': instance.project_id, 'user_id': instance.user_id}


def check_unlocked(request: Request, instance: Instance) -> None:
    """Raise if a server is locked and the caller is not an administrator.

    :raises migrator.exception.InstanceIsLocked: it is locked.
    """
    if instance.locked and not request.context.is_admin:
        by_owner = instance.locked_by == 'owner'
        who, do = ('its owner', 'unlock it first') if by_owner else ('an administrator', 'ask one to unlock it')
        why = f' ({instance.locked_reason!r})' if instance.locked_reason else ''
        raise exception.InstanceIsLocked(instance_uuid=instance.uuid, who=f'{who}{why}: {do}')


def integer_id(text: str) -> int | None:
    """Return the id in a part of a URL, or None if the part is not a valid id."""
    if not re.fullmatch('[0-9]{1,10}', text) or int(text) > MAX_ID:
        return None
    return int(text)


def usual_uuid(text: str) -> str:
    """Return a uuid in the spelling of the database, and any other text unchanged."""
    return str(uuid.UUID(text)) if uuidutils.is_uuid_like(text) else text


# --- times -----------------------------------------------------------------------------------------------------------


def zulu(moment: datetime.datetime | None) -> str:
    """Return a time in the form that nova uses for servers."""
    return '' if moment is None else moment.astimezone(datetime.UTC).strftime('%Y-%m-%dT%H:%M:%SZ')


# --- links and pages -------------------------------------------------------------------------------------------------


def links(request: Request, path: str) -> list[dict[str, str]]:
    """Return the two links of an item.

    :param path: the path after the version, unquoted.
    """
    base, quoted = request.application_url, urllib.parse.quote(path)
    return [{'rel': 'self', 'href': f'{base}/v2.1/{quoted}'}, {'rel': 'bookmark', 'href': f'{base}/{quoted}'}]


def page_size(request: Request) -> int:
    """Return how many items a page may hold."""
    most: int = request.services.conf.api.max_limit
    return min(int(request.given['limit']), most) if 'limit' in request.given else most


def marker(request: Request) -> str | None:
    """Return the uuid after which a page begins, or None for the first page."""
    return usual_uuid(request.given['marker']) if 'marker' in request.given else None


def after(marker: str | None, found: list[T], name: str) -> list[T]:
    """Return the items of a list after the one that a marker names, or all of them without a marker.

    :param name: the attribute of an item that the marker names.
    :raises migrator.exception.MarkerNotFound: no item has it.
    """
    if marker is None:
        return found
    for place, item in enumerate(found, start=1):
        if getattr(item, name) == marker:
            return found[place:]
    raise exception.MarkerNotFound(marker=marker)


def next_link(request: Request, name: str, size: int | None, markers: list[str]) -> dict[str, Any]:
    """Return the part of a body with the link to the next page; {} if this page is not full.

    :param name: the name of the link.
    :param size: how many items a page may hold; None: the list has no pages.
    :param markers: the marker of each item of this page.
    """
    if not size or len(markers) < size:
        return {}
    parameters = [(key, value) for key, value in request.GET.items() if key != 'marker']
    parameters.append(('marker', markers[-1]))
    return {name: [{'rel': 'next', 'href': f'{request.path_url}?{urllib.parse.urlencode(parameters)}'}]}


# --- host names ------------------------------------------------------------------------------------------------------


def host_id(project_id: str, host: str | None) -> str:
    """Return nova's obfuscated name of a host, which differs between projects."""
    return hashlib.sha224(f'{project_id}{host}'.encode()).hexdigest() if host else ''
