# SPDX-License-Identifier: Apache-2.0

"""The user's view of a cloud: boot guests and send REST requests, whatever the cloud is made of."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import webob

from migrator.conductor import registry
from migrator.db import saga_log
from migrator.db.api import Database
from migrator.objects import Flavor, Instance, Migration
from migrator.placement_client.client import PlacementClient

PROJECT = 'demo'
USER = 'demo'


class Exchange(NamedTuple):
    """One request to the REST API with its response."""

    method: str
    path: str
    body: Any
    #: The microversion that the request names.
    version: str
    token: str
    status: int
    #: The body of the response: the document if it is JSON, else the text.
    answer: Any
    request_id: str


class Client:
    """The interface of a cloud for its user.

    :ivar database: the database of the services.
    :ivar placement_client: a client of the cloud's Placement.
    :ivar world: the hypervisors: a :class:`migrator.testing.hypervisor.hypervisor.FakeWorld`, or a proxy of a remote
        one.
    :ivar history: every request to the REST API with its response, in the order of the responses.
    """

    database: Database
    placement_client: PlacementClient
    world: Any

    def __init__(self) -> None:
        self.history: list[Exchange] = []

    def new_uuid(self) -> str:
        """Return a new uuid."""
        raise NotImplementedError

    def served(self, request: webob.Request) -> webob.Response:
        """Return the REST API's response to a request; the history does not record it."""
        raise NotImplementedError

    # --- instances ---------------------------------------------------------------------------------------------------

    def boot(
        self, name: str, host: str, memory_mb: int = 512, vcpus: int = 1, dirty_rate: float = 0.0, **fields: Any
    ) -> Instance:
        """Start a guest on a host, with its row and its allocation.

        :param memory_mb: the memory in MiB.
        :param dirty_rate: how fast the guest dirties its memory, in MiB/s.
        :param fields: other fields of the instance.
        """
        flavor = fields.pop('flavor', None) or Flavor(name=f'm{memory_mb}', vcpus=vcpus, memory_mb=memory_mb, root_gb=1)
        wanted = {'project_id': PROJECT, 'user_id': USER, **fields}
        instance = Instance(uuid=self.new_uuid(), name=name, host=host, node=host, flavor=flavor, **wanted)
        stored = registry.create_instance(self.database, self.placement_client, instance)
        self.world.hypervisors[host].spawn(stored, dirty_rate=dirty_rate)
        return stored

    # --- requests of users -------------------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        version: str = '2.80',
        token: str = 'admin',
    ) -> webob.Response:
        """Send one request to the REST API and return its response.

        :param path: below ``/v2.1``, or a path that begins with ``/migrator/``.
        """
        prefix = '' if path.startswith('/migrator/') else '/v2.1'
        request = webob.Request.blank(f'{prefix}{path}', method=method)
        request.headers['X-Auth-Token'] = token
        request.headers['OpenStack-API-Version'] = f'compute {version}'
        if body is not None:
            request.content_type = 'application/json'
            request.body = json.dumps(body).encode()
        response = self.served(request)
        is_document = response.content_type == 'application/json' and response.body
        answer = response.json if is_document else response.body.decode(errors='replace')
        request_id = response.headers.get('X-OpenStack-Request-Id', '')
        self.history.append(Exchange(method, path, body, version, token, response.status_int, answer, request_id))
        return response

    def live_migrate(self, instance: Instance | str, host: str | None = None, version: str = '2.80') -> webob.Response:
        """Request a live migration and return the response."""
        uuid = instance if isinstance(instance, str) else instance.uuid
        arguments: dict[str, Any] = {'host': host, 'block_migration': 'auto'}
        if tuple(map(int, version.split('.'))) < (2, 25):
            arguments = {'host': host, 'block_migration': False, 'disk_over_commit': False}
        return self.request('POST', f'/servers/{uuid}/action', {'os-migrateLive': arguments}, version=version)

    def migrations(self, instance: Instance | None = None) -> list[Migration]:
        """Return the migrations of one instance, or of all, the oldest first."""
        filters = {'instance_uuid': instance.uuid} if instance is not None else None
        return list(reversed(self.database.migrations.list(filters)))

    def histories(self) -> dict[str, list[dict[str, Any]]]:
        """Return each status that each migration has had, by the migration's uuid."""
        uuids = [migration.uuid for migration in self.migrations()]
        return {uuid: saga_log.history(entries) for uuid, entries in self.database.migrations.read_logs(uuids).items()}

    def history_of(self, migration: Migration) -> list[dict[str, Any]]:
        """Return each status that a migration has had."""
        return saga_log.history(self.database.migrations.read_log(migration.uuid))

    def idle(self) -> bool:
        """Return whether no migration is in progress."""
        return not self.database.migrations.list(in_progress=True)
