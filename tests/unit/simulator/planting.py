# SPDX-License-Identifier: Apache-2.0

"""Functions that plant violations in simulated clouds and find them."""

import contextlib
import copy
import sqlite3

from migrator import context
from migrator.objects import Migration
from migrator.placement_client import allocation_state, allocations
from migrator.simulator.invariants import check
from migrator.simulator.world import World
from migrator.testing.client import Exchange
from migrator.testing.cloud import SimulatedCloud
from migrator.testing.hypervisor.hypervisor import Effect, FakeGuest
from migrator.testing.rpc import Recorded
from migrator.virt import driver

DATABASES = ('migrator', 'placement')
UNKNOWN = '00000000-0000-4000-8000-000000000000'


@contextlib.contextmanager
def simulated(directory, **what):
    cloud = SimulatedCloud(directory, hosts=3, **what)
    try:
        yield cloud
    finally:
        cloud.stop()


@contextlib.contextmanager
def put_back(cloud):
    """Restore everything that a test may change."""
    for name in DATABASES:
        backup(cloud.backend.directory / f'{name}.sqlite', cloud.backend.directory / f'{name}.kept')
    lists = [cloud.world.log, cloud.world.violations, cloud.recorder.messages, cloud.history]
    dicts = [compute._waiting_live_migrations for compute in cloud.computes.values()]
    for hypervisor in cloud.world.hypervisors.values():
        dicts += [hypervisor.guests, hypervisor.residues, hypervisor.jobs]
    kept_lists, kept_dicts = [list(one) for one in lists], [dict(one) for one in dicts]
    residues = [(parts, set(parts)) for host in cloud.world.hypervisors.values() for parts in host.residues.values()]
    guests = [(one, copy.copy(one)) for host in cloud.world.hypervisors.values() for one in host.guests.values()]
    epochs = [(one, one.epoch) for host in cloud.computes.values() for one in host._runner._records.values()]
    yield
    for name in DATABASES:
        backup(cloud.backend.directory / f'{name}.kept', cloud.backend.directory / f'{name}.sqlite')
    for one, kept in zip(lists, kept_lists, strict=True):
        one[:] = kept
    for one, kept in zip(dicts, kept_dicts, strict=True):
        one.clear()
        one.update(kept)
    for parts, kept in residues:
        parts.clear()
        parts.update(kept)
    for guest, kept in guests:
        vars(guest).update(vars(kept))
    for record, epoch in epochs:
        record.epoch = epoch
    for compute in cloud.computes.values():
        compute._runner.queue._closed = False


def backup(origin, copy_):
    with contextlib.closing(sqlite3.connect(origin)) as here, contextlib.closing(sqlite3.connect(copy_)) as there:
        here.backup(there)


def found(cloud, quiet=True, logs=()):
    """Return the ids of the invariants that do not hold."""
    return {violation.id for violation in check.check(World.of(cloud, logs), quiet)}


def sql(cloud, statement, *values, database='migrator'):
    with contextlib.closing(sqlite3.connect(cloud.backend.directory / f'{database}.sqlite')) as connection, connection:
        assert connection.execute(statement, values).rowcount == 1


def write(cloud, consumer, host, generation, **amounts):
    """Write a wrong allocation of a consumer."""
    held = {driver.node_uuid(host): {'VCPU': 1, 'MEMORY_MB': 512, 'DISK_GB': 1, **amounts}} if host else {}
    holder = allocation_state.Consumer(uuid=consumer, consumer_type='INSTANCE', project_id='demo', user_id='demo')
    allocations.write_all(
        cloud.placement_client, [allocations.Write(consumer=holder, allocations=held, generation=generation)]
    )


def generation(cloud, consumer):
    return allocations.read(cloud.placement_client, consumer).generation


def add_guest(cloud, host, state='running'):
    """Add a guest of the instance to a hypervisor, without any service."""
    hypervisor = cloud.world.hypervisors[host]
    hypervisor.guests[cloud.instance.uuid] = FakeGuest(cloud.instance.uuid, state=state)


def leave(cloud, host, *parts):
    """Leave parts of the instance's guest on a host."""
    residues = cloud.world.hypervisors[host].residues
    residues[cloud.instance.uuid] = residues.get(cloud.instance.uuid, set()) | set(parts)


def step_log(cloud, kind, step, payload='{}', seq=99):
    sql(
        cloud,
        'INSERT INTO saga_log (migration, seq, at, epoch, attempt, kind, step, payload)'
        " VALUES (?, ?, '2026-01-01 00:00:00.000000', 1, 1, ?, ?, ?)",
        cloud.migration.uuid,
        seq,
        kind,
        step,
        payload,
    )


def fence_off(cloud, host):
    sql(cloud, "UPDATE services SET forced_down = 1 WHERE host = ? AND binary = 'nova-compute'", host)


def defer(cloud, host):
    sql(
        cloud,
        'INSERT INTO cleanups (host, migration_uuid, instance_uuid, step, reason, epoch, created_at)'
        " VALUES (?, ?, ?, 'post_live_migration_at_source', 'planted', 1, '2026-01-01 00:00:00.000000')",
        host,
        cloud.migration.uuid,
        cloud.instance.uuid,
    )


def effect(cloud, host, what, who='hypervisor', at=None):
    entry = Effect(2000.0, host, what, cloud.instance.uuid, who)
    cloud.world.log.insert(len(cloud.world.log) if at is None else at, entry)


def exchange(cloud, method, path, status, **fields):
    default = {'body': None, 'version': '2.80', 'token': 'admin', 'answer': '', 'request_id': 'req-unknown'}
    cloud.history.append(Exchange(method=method, path=path, status=status, **{**default, **fields}))


def live_migrate(cloud, status, **fields):
    path = f'/servers/{cloud.instance.uuid}/action'
    exchange(cloud, 'POST', path, status, body={'os-migrateLive': {'host': None}}, **fields)


def shown(cloud, status, **fields):
    migration = {'id': cloud.migration.id, 'status': status}
    exchange(cloud, 'GET', '/os-migrations', 200, answer={'migrations': [migration]}, **fields)


def accept(cloud):
    """Accept a migration without a message to a conductor; no time passes."""
    migration = Migration(
        uuid=UNKNOWN,
        instance_uuid=cloud.instance.uuid,
        project_id='demo',
        user_id='demo',
        source_compute='host2',
        source_node='host2',
    )
    cloud.database.migrations.accept(context.admin_context(), migration, 'live-migration')


def abort(cloud):
    exchange(cloud, 'DELETE', f'/servers/{cloud.instance.uuid}/migrations/{cloud.migration.id}', 202)


def send(cloud, sender, target, method):
    message = Recorded(sender, target, method, 'call', 1, cloud.migration.uuid)
    cloud.recorder.messages.append(message)
