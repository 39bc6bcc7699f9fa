# SPDX-License-Identifier: Apache-2.0

"""GET /os-migrations: all migrations, including those that have ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import webob
from oslo_utils import strutils

from migrator import exception
from migrator.api import common, schemas
from migrator.api.policies.nova import MIGRATIONS_INDEX, MIGRATIONS_INDEX_ALL_PROJECTS, MIGRATIONS_INDEX_HOST
from migrator.api.request import Request, answer
from migrator.objects import Flavor, Migration, MigrationType, times

#: The parameters that are columns.
_COLUMNS = ('host', 'instance_uuid', 'source_compute', 'status', 'migration_type', 'user_id', 'project_id')


def index(request: Request) -> webob.Response:
    """List migrations, the newest first."""
    given = request.given
    request.authorize(MIGRATIONS_INDEX)
    shows_hosts = request.can(MIGRATIONS_INDEX_HOST)
    if not shows_hosts and ('host' in given or 'source_compute' in given):
        # A filter by host would show the caller where a guest was.
        raise exception.Forbidden(action=MIGRATIONS_INDEX_HOST)
    filters: dict[str, Any] = {name: given[name] for name in _COLUMNS if given.get(name)}
    # As in nova, a value that is neither true nor false means false.
    filters['hidden'] = strutils.bool_from_string(given.get('hidden', ''))
    marker_project = None
    if not request.can(MIGRATIONS_INDEX_ALL_PROJECTS):
        own = request.context.project_id
        marker_project = own or ''
        if filters.setdefault('project_id', own) != own:
            raise exception.Forbidden(action=MIGRATIONS_INDEX_ALL_PROJECTS)
    paged = request.since(59)
    size = common.page_size(request) if paged else None
    since, before = moments(given)
    found = request.services.database.migrations.list(
        filters,
        limit=size,
        marker=given.get('marker') if paged else None,
        marker_project=marker_project,
        changes_since=since,
        changes_before=before,
    )
    flavors = request.services.database.instances.flavors_of(
        {migration.instance_uuid for migration in found if migration.old_flavor is None}
    )
    views = [_view(request, migration, shows_hosts, flavors) for migration in found]
    further = common.next_link(request, 'migrations_links', size, [migration.uuid for migration in found])
    return answer({'migrations': views} | further)


def moments(given: dict[str, str]) -> tuple[Any, Any]:
    """Return the times of changes-since and changes-before, each None if not given.

    :raises migrator.exception.Invalid: changes-since is after changes-before.
    """
    since, before = (schemas.moment(given[name]) if name in given else None for name in _CHANGES)
    if since and before and since > before:
        raise exception.Invalid('The value of changes-since must be less than or equal to changes-before.')
    return since, before


_CHANGES = ('changes-since', 'changes-before')


def _view(request: Request, migration: Migration, shows_hosts: bool, flavors: Mapping[str, Flavor]) -> dict[str, Any]:
    # As in nova, the migration of an evacuation has no flavor.
    old = None if migration.is_evacuation else migration.old_flavor or flavors.get(migration.instance_uuid)
    new = migration.new_flavor or old
    view: dict[str, Any] = {
        'id': migration.id,
        'status': migration.status,
        'instance_uuid': migration.instance_uuid,
        'old_instance_type_id': old and old.number,
        'new_instance_type_id': new and new.number,
        'created_at': times.iso(migration.created_at),
        'updated_at': times.iso(migration.updated_at),
        **hosts(migration, shows_hosts),
    }
    if request.since(23):
        view['migration_type'] = migration.migration_type
        if migration.in_progress and migration.migration_type == MigrationType.LIVE_MIGRATION:
            view['links'] = common.links(request, f'servers/{migration.instance_uuid}/migrations/{migration.id}')
    if request.since(59):
        view['uuid'] = migration.uuid
    if request.since(80):
        view |= {'user_id': migration.user_id, 'project_id': migration.project_id}
    return view


def hosts(migration: Migration, shown: bool) -> dict[str, str | None]:
    """Return the fields that name hosts. They are present but null unless the caller may see hosts."""
    names = ('source_compute', 'source_node', 'dest_compute', 'dest_node', 'dest_host')
    return {name: getattr(migration, name) if shown else None for name in names}
