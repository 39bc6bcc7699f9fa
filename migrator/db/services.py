# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Services and their hypervisors: who reports, in which boot, and what it has."""

from __future__ import annotations

import builtins
import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from migrator import exception, executors
from migrator.db import engine as engines
from migrator.db import models, rows, types
from migrator.objects import base, compute_node
from migrator.objects import service as service_objects

Service = service_objects.Service
ComputeNode = compute_node.ComputeNode
_T = models.Service
_N = models.ComputeNode


@dataclasses.dataclass(frozen=True)
class Place:
    """A compute host as a possible destination.

    :ivar uuid: of the root of its tree in Placement.
    :ivar service: its compute service.
    :ivar seen_at: the database's time at which this was read.
    :ivar inbound: how many migrations in progress are on their way to it.
    :ivar owes: whether it owes a debt for the instance that is to be moved.
    """

    host: str
    node: str
    uuid: str
    service: Service
    seen_at: datetime.datetime
    inbound: int
    owes: bool


class Services:
    """The rows of ``services`` and ``compute_nodes``."""

    def __init__(self, engine: engines.Engine, threads: executors.Threads) -> None:
        self._engine = engine
        self._threads = threads

    @engines.retried
    def report(self, host: str, binary: str, version: int, boot_id: str | None = None) -> None:
        """Write that a service is alive; a first report makes its row. A boot_id that is None is left as it is."""
        with self._engine.writer() as session:
            self.write_report(session, host, binary, version, boot_id)

    def write_report(self, session: Any, host: str, binary: str, version: int, boot_id: str | None) -> None:
        """Write a report within a transaction under way."""
        values: dict[str, Any] = {'version': version, 'last_seen_up': types.now()}
        if boot_id is not None:
            values['boot_id'] = boot_id
        found = session.execute(sa.update(_T).where(_T.host == host, _T.binary == binary).values(**values))
        if not found.rowcount:
            session.execute(sa.insert(_T).values(uuid=self._threads.new_uuid(), host=host, binary=binary, **values))

    @engines.retried
    def heartbeat(self, host: str, boot_id: str) -> bool:
        """Write that a compute is alive in the boot that is known.

        :returns: whether it is that boot; if not, nothing was written and the compute must start anew.
        """
        with self._engine.writer() as session:
            found: Any = session.execute(
                sa.update(_T)
                .where(_T.host == host, _T.binary == service_objects.COMPUTE_BINARY, _T.boot_id == boot_id)
                .values(last_seen_up=types.now())
            )
            return bool(found.rowcount)

    def write_node(self, session: Any, node: ComputeNode) -> None:
        """Write a hypervisor within a transaction under way."""
        values = {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}
        for automatic in ('id', 'created_at', 'updated_at'):
            del values[automatic]
        values['providers'] = base.to_primitive(node.providers)
        found = session.execute(sa.update(_N).where(_N.host == node.host).values(**values))
        if not found.rowcount:
            session.execute(sa.insert(_N).values(**values))

    def list(self, binary: str | None = None, host: str | None = None) -> builtins.list[Service]:
        """Return the services, by id."""
        query = sa.select(_T).order_by(_T.id)
        if binary:
            query = query.where(_T.binary == binary)
        if host:
            query = query.where(_T.host == host)
        with self._engine.reader() as session:
            return [rows.service(row) for row in session.execute(query).scalars()]

    def get(self, service_id: int | str) -> Service:
        """Return one service by its integer id or its uuid.

        :raises migrator.exception.ServiceNotFound: there is none.
        """
        column = _T.id if isinstance(service_id, int) else _T.uuid
        with self._engine.reader() as session:
            row = session.execute(sa.select(_T).where(column == service_id)).scalar_one_or_none()
            if row is None:
                raise exception.ServiceNotFound(service_id=service_id)
            return rows.service(row)

    def get_compute(self, host: str) -> Service:
        """Return the compute service of a host.

        :raises migrator.exception.ComputeHostNotFound: there is none.
        """
        found = self.list(binary=service_objects.COMPUTE_BINARY, host=host)
        if not found:
            raise exception.ComputeHostNotFound(host=host)
        return found[0]

    @engines.retried
    def update(self, service_id: int, **values: Any) -> None:
        """Change what an operator may change: disabled, disabled_reason, forced_down."""
        with self._engine.writer() as session:
            session.execute(sa.update(_T).where(_T.id == service_id).values(**values))

    def list_nodes(self, limit: int | None = None, marker: str | None = None) -> builtins.list[ComputeNode]:
        """Return the hypervisors, by id.

        :param marker: the uuid of the last one of the page before.
        :raises migrator.exception.MarkerNotFound: no hypervisor has the marker's uuid.
        """
        query = sa.select(_N).order_by(_N.id)
        with self._engine.reader() as session:
            if marker is not None:
                last = session.execute(sa.select(_N.id).where(_N.uuid == marker)).scalar()
                if last is None:
                    raise exception.MarkerNotFound(marker=marker)
                query = query.where(_N.id > last)
            if limit is not None:
                query = query.limit(limit)
            return [rows.node(row) for row in session.execute(query).scalars()]

    def get_node(self, node_id: int | str) -> ComputeNode:
        """Return one hypervisor by its integer id or its uuid.

        :raises migrator.exception.HypervisorNotFound: there is none.
        """
        column = _N.id if isinstance(node_id, int) else _N.uuid
        with self._engine.reader() as session:
            row = session.execute(sa.select(_N).where(column == node_id)).scalar_one_or_none()
            if row is None:
                raise exception.HypervisorNotFound(hypervisor_id=node_id)
            return rows.node(row)

    def places(
        self, instance_uuid: str, uuids: Sequence[str] | None = None, host: str | None = None
    ) -> builtins.list[Place]:
        """Return compute hosts as possible destinations of an instance.

        :param uuids: only those whose tree in Placement has one of these roots.
        :param host: only this one.
        """
        moving = models.Migration
        inbound = (
            sa.select(sa.func.count())
            .where(moving.dest_compute == _N.host, moving.in_progress_instance_uuid.is_not(None))
            .scalar_subquery()
        )
        debt = models.HostDebt
        owes = sa.exists().where(debt.host == _N.host, debt.instance_uuid == instance_uuid)
        query = (
            sa.select(_N.host, _N.node, _N.uuid, _T, inbound, owes, types.now())
            .join(_T, sa.and_(_T.host == _N.host, _T.binary == service_objects.COMPUTE_BINARY))
            .order_by(_N.host)
        )
        if uuids is not None:
            query = query.where(_N.uuid.in_(builtins.list(uuids)))
        if host is not None:
            query = query.where(_N.host == host)
        with self._engine.reader() as session:
            return [
                Place(found, node, uuid, rows.service(service), types.aware(now), int(count), bool(debts))
                for found, node, uuid, service, count, debts, now in session.execute(query)
            ]

    def now(self) -> datetime.datetime:
        """Return the database's time."""
        with self._engine.reader() as session:
            moment: Any = session.execute(sa.select(types.now())).scalar_one()
            return types.aware(moment)
