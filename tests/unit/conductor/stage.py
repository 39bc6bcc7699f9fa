# SPDX-License-Identifier: Apache-2.0


"""A cloud with one guest to migrate, and the checks of a migration that has ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from migrator import context
from migrator.conductor import rpcapi, takeover
from migrator.conductor.migration.context import MigrationContext, Tools
from migrator.db import actions
from migrator.objects import IN_PROGRESS, Instance, Migration
from migrator.placement_client import allocations
from migrator.testing import backends, client
from migrator.testing.cloud import SimulatedCloud
from migrator.virt import driver


class Stage:
    """A cloud with its first guest on host1.

    :param backend: where its database and its Placement are.
    :param dirty_rate: of the guest, in MiB/s; 10,000 never converges.
    :param knobs: of every hypervisor.
    """

    def __init__(
        self,
        backend: backends.Backend,
        hosts: int = 3,
        dirty_rate: float = 10.0,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        conductors: int = 1,
        **knobs: Any,
    ) -> None:
        self.cloud = SimulatedCloud(
            backend.directory, hosts=hosts, seed=seed, options=options, backend=backend, **knobs
        )
        assert self.cloud.simulation is not None
        self.simulation = self.cloud.simulation
        self.database = self.cloud.database
        for number in range(2, conductors + 1):
            self.cloud.start_conductor(f'conductor{number}')
        self.instance = self.cloud.boot('guest', 'host1', dirty_rate=dirty_rate)
        self.conductor_api = rpcapi.ConductorAPI(self.cloud.rpc_for('api', 'api:api'))

    def host(self, name: str) -> Any:
        """Return a hypervisor."""
        return self.cloud.world.hypervisors[name]

    # --- requests of a user ------------------------------------------------------------------------------------------

    def accept(self, host: str | None = None, instance: Instance | None = None, **fields: Any) -> Migration:
        """Commit a migration as the API does, without a message to a conductor."""
        moved = instance or self.instance
        wanted = Migration(
            uuid=self.cloud.world.threads.new_uuid(),
            instance_uuid=moved.uuid,
            project_id=client.PROJECT,
            user_id=client.USER,
            source_compute=moved.host,
            source_node=moved.node,
            requested_host=host,
            **fields,
        )
        self.database.migrations.accept(context.admin_context(), wanted, 'live-migration')
        return self.database.migrations.get(wanted.uuid)

    def begin(self, host: str | None = None, instance: Instance | None = None, **fields: Any) -> Migration:
        """Commit a migration as the API does, and wake a conductor."""
        accepted = self.accept(host, instance, **fields)
        self.conductor_api.live_migrate(context.admin_context(), accepted.uuid)
        return accepted

    def abort(self, migration: Migration, wake: bool = True) -> None:
        """Request the abort of a migration as the API does."""
        wanted = actions.Requests(self.cloud.database.engine)
        assert wanted.request_abort(context.admin_context(), migration, [status.value for status in IN_PROGRESS])
        if wake:
            owner = self.row(migration).owner
            server = self.database.conductors.server_of(owner) if owner else None
            self.conductor_api.wake(context.admin_context(), migration.uuid, server)

    # --- acts of the conductor ---------------------------------------------------------------------------------------

    @property
    def tools(self) -> Tools:
        """The tools of conductor1."""
        return self.cloud.conductors['conductor1'].tools

    def adopt(self, migration: Migration) -> MigrationContext:
        """Let conductor1 take a migration over, and leave the rest to the test."""
        (subject,) = self.do(lambda: takeover.adopt(self.tools, [migration.uuid], self._cast))
        assert isinstance(subject, MigrationContext)
        return subject

    def _cast(self, server: str, method: str, **args: Any) -> None:
        raise AssertionError(f'{method} {args} went to {server}')

    def do(self, act: Callable[[], Any], seconds: float = 60) -> Any:
        """Call a function in a thread of conductor1; return its result, or raise its error."""
        found: list[Any] = []

        def run() -> None:
            try:
                found.append((act(), None))
            except Exception as error:  # noqa: BLE001 -- the test's thread raises it
                found.append((None, error))

        self.cloud.processes['conductor1'].start(run, name='test')
        self.until(lambda: found, seconds)
        result, error = found[0]
        if error is not None:
            raise error
        return result

    # --- observations ------------------------------------------------------------------------------------------------

    def row(self, migration: Migration) -> Migration:
        """Return a migration as read now."""
        return next(one for one in self.cloud.migrations() if one.uuid == migration.uuid)

    def until(self, predicate: Callable[[], Any], seconds: float = 60) -> None:
        """Run the simulation until a predicate is true."""
        self.simulation.run_until(predicate, timeout=seconds)

    def until_status(self, migration: Migration, status: str, seconds: float = 60) -> None:
        """Run the simulation until a migration has a status."""
        self.until(lambda: self.row(migration).status == status, seconds)

    def until_stuck(self, migration: Migration, seconds: float = 60) -> str:
        """Run the simulation until a migration is stuck, and return the reason."""
        self.until(lambda: self.row(migration).stuck_reason, seconds)
        return self.row(migration).stuck_reason or ''

    def end(self, migration: Migration, seconds: float = 300) -> Migration:
        """Run the simulation until a migration has ended, and return it."""
        self.until(lambda: self.row(migration).ended, seconds)
        self.simulation.run_ready()
        return self.row(migration)

    def statuses(self, migration: Migration) -> list[str]:
        """Return the statuses of a migration in order."""
        return [entry['status'] for entry in self.cloud.history_of(self.row(migration))]

    def steps(self, migration: Migration, direction: str = 'do') -> list[tuple[int, str, str]]:
        """Return a migration's log: attempt, step, state."""
        records = self.database.migrations.steps(migration.uuid)
        return [(record.attempt, record.step, record.state) for record in records if record.direction == direction]

    def kill(self, process: str) -> None:
        """Kill a conductor or a compute service at once."""
        self.simulation.kill(self.cloud.processes.pop(process))
        self.cloud.computes.pop(process, None)
        self.cloud.conductors.pop(process, None)

    # --- checks ------------------------------------------------------------------------------------------------------

    def check(self, migration: Migration, host: str, debris: tuple[str, ...] = ()) -> None:
        """Assert that a migration has ended with its guest and all of its allocations on one host.

        :param debris: hosts with a deferred cleanup, where something may be left.
        """
        row = self.row(migration)
        uuid = row.instance_uuid
        cloud = self.cloud
        assert row.ended
        assert (row.stuck_reason, row.waits_for) == (None, None)
        instance = self.database.instances.get(uuid)
        assert (instance.host, instance.node, instance.task_state) == (host, host, None)
        if row.status != 'error':
            assert instance.vm_state == 'active'
            assert cloud.world.active_on(uuid) == [host]
        held = allocations.read(cloud.placement_client, uuid).allocations
        assert held == {driver.node_uuid(host): instance.flavor.resources()}
        assert allocations.read(cloud.placement_client, row.uuid).allocations == {}
        for name, hypervisor in cloud.world.hypervisors.items():
            if name not in (host, *debris):
                assert hypervisor.residue(uuid) == [], name
            assert uuid not in hypervisor.jobs
        for compute in cloud.computes.values():
            assert row.uuid not in compute._waiting_live_migrations
        for conductor in cloud.conductors.values():
            assert not conductor.runner.holds(row.uuid)
        deferred = [cleanup.host for cleanup in self.database.cleanups.list(instance_uuid=uuid)]
        assert sorted(deferred) == sorted(debris)
        assert cloud.world.violations == []
        assert cloud.recorder.compute_to_compute() == []
        action = self.database.actions.list(uuid)[-1]
        assert action.result == ('Success' if row.status == 'completed' else 'Error')


@contextlib.contextmanager
def on(backend: backends.Backend, **options: Any) -> Iterator[Stage]:
    """Build a stage, and stop it at the end."""
    stage = Stage(backend, **options)
    try:
        yield stage
    finally:
        stage.cloud.stop()
