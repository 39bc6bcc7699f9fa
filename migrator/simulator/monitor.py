# SPDX-License-Identifier: Apache-2.0
"""Looks at a simulated cloud after every event, and notes what must never be, with the virtual time.

    watcher = Watcher(cloud)
    ...
    assert_holds(watcher.snapshot(), seen=watcher.violations)

An event is a transaction, a write to Placement, a message sent, arrived or answered, and an effect on a hypervisor.
What a test counts is not touched: neither statements, nor requests, nor messages. The hooks are put around methods, so
that a test's own (``engine.boundary``, ``bus.faults``) may be set and reset at will.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

from migrator.compute import rpcapi, work
from migrator.db import tables
from migrator.objects import Migration, MigrationStatus, protocol
from migrator.saga import log
from migrator.simulator import reader
from migrator.simulator.epoch_check import EpochCheck
from migrator.simulator.invariants import check
from migrator.simulator.invariants.check import Violation
from migrator.simulator.world import World
from migrator.testing.bus import Message, Pending
from migrator.testing.cloud import Cloud
from migrator.virt.fake import acts, hypervisor

#: What is looked at when a job starts, and not by the table's function: see :meth:`Watcher._note_start`.
APART = 'I10'
#: Seconds that a planned stop may take, besides ``stop_timeout``.
STOP = 2.0
#: Seconds within which a migration says what it waits for: several times as long as it may take without any fault.
SILENCE = 300.0
#: The tables of which something is looked at after a commit that has written to them.
ROWS = frozenset(tables.TABLES)
#: Those of which something is only looked at together with the others: they change with every sign of life.
ASIDE = frozenset({'services', 'compute_nodes'})
#: What a message alone may break, where neither rows nor books nor guests have changed.
OF_MESSAGES = frozenset({'I11', 'I12', 'I13', 'I16', 'I17', 'I21', 'I22'})


class Monitor:
    """Looks at a cloud from now on.

    :param cloud: simulated: no crossing lies within a look, so that it sees one moment.
    :ivar violations: what was found, each once, in order.
    :ivar logs: what the services log, formatted.
    :ivar looks: how often it has looked.
    """

    def __init__(self, cloud: Cloud) -> None:
        if cloud.simulation is None:
            raise ValueError('only a simulated cloud stands still while it is looked at')
        self.cloud = cloud
        self.violations: list[Violation] = []
        self.logs: list[str] = []
        self.looks = 0
        self._found: set[Violation] = set()
        self._reader = reader.Reader(cloud)
        self._tables: dict[str, list[tables.Row]] = {}
        self._rows: dict[str, Any] = {}
        self._before: dict[str, Migration] = {}
        self._books: dict[str, Any] = {}
        self._changed = set(ROWS)
        self._read_at: dict[str, int] = {}
        self._effects = -1
        self._trees_changed = True
        self._consumers: set[str] = set()
        self._heard = 0
        self._fence = EpochCheck()
        #: Migration -> where it stands, and since when it has stood there and not said what it waits for.
        self._silent: dict[str, tuple[Any, float]] = {}
        #: (boot, migration) -> its place in the order in which they came into the queue.
        self._arrivals: dict[tuple[str, str], int] = {}
        #: (boot, migration) -> the limit under which it has got its slot, if that was lowered since.
        self._slots: dict[tuple[str, str], int] = {}
        self._highest_limit: dict[str, int] = {}
        self._handler = _Keeper(self.logs)
        self._logger = logging.getLogger('migrator')
        self._level = self._logger.level
        self._install()
        self.look()

    def close(self) -> None:
        """Keep no more logs, and close what was opened."""
        self._logger.removeHandler(self._handler)
        self._logger.setLevel(self._level)
        self._reader.close()

    def snapshot(self) -> World:
        """Return the whole world as it is now, with what was logged; hosts have the highest limit that they had."""
        world = World(**self._reader.everything(self.logs))
        world.hosts = {
            name: reader.with_limit(host, max(host.limit, self._highest_limit.get(name, 0)))
            for name, host in world.hosts.items()
        }
        return world

    # --- events ------------------------------------------------------------------------------------------------------

    def _install(self) -> None:
        cloud = self.cloud
        self._logger.addHandler(self._handler)
        self._logger.setLevel(logging.DEBUG)
        cloud.engine.on_commit = self._after_commit
        _around(
            cloud.adapter, 'request', lambda _result, url, method, **more: self._after_placement(url, method, **more)
        )
        # What was held on its way: nobody knows what it was.
        _around(cloud.adapter, 'deliver', lambda _result: self._after_placement('', 'late'))
        _around(cloud.bus, 'send', lambda _result, *_args: self.look())
        # Before it is handled, and when it has been.
        _put(cloud.bus, '_deliver', self._watch_delivery(cloud.bus._deliver))
        _around(cloud.bus, 'answer', self._after_answer)
        cloud.world.acts.on_begin = self._before_act
        cloud.world.acts.in_progress = self._is_in_progress
        cloud.world.log = _Told(cloud.world.log, self._after_effect)
        for compute in cloud.computes.values():
            self._watch_compute(compute)
        _around(cloud, 'start_compute', lambda compute, *_args: self._watch_compute(compute))

    def _after_commit(self) -> None:
        writes = self.cloud.backend.writes
        changed = {table for table in ROWS if self._read_at.get(table) != writes[table]}
        if changed:
            self._changed |= changed
            self._read_at = {table: writes[table] for table in ROWS}
            if not changed <= ASIDE:
                self.look()

    def _after_placement(self, url: str, method: str, **more: Any) -> None:
        if method == 'GET':
            return
        if url == '/allocations':
            self._consumers |= more['json'].keys()
        elif url.startswith('/allocations/'):
            self._consumers.add(url.rpartition('/')[2])
        else:
            self._trees_changed = True
        self.look()

    def _watch_delivery(self, deliver: Callable[..., None]) -> Callable[..., None]:
        def watched(message: Message, pending: Pending | None) -> None:
            if message.target.topic == rpcapi.TOPIC:
                self._fence.arrived(message, pending)
            deliver(message, pending)
            self.look()

        return watched

    def _after_answer(self, _result: None, message: Message, pending: Pending) -> None:
        if message.target.topic == rpcapi.TOPIC:
            for what in self._fence.answered(pending, json.loads(message.body).get('result')):
                self._note('I16', what)
        self.look()

    def _after_effect(self, effect: hypervisor.Effect) -> None:
        if effect.effect == 'job started':
            self._note_start(effect)
        self.look()

    def _is_in_progress(self, migration_uuid: str) -> bool:
        return any(row.uuid == migration_uuid and row.object.in_progress for row in self._tables['migrations'])

    def _before_act(self, host: str, method: str, instance_uuid: str, migration_uuid: str) -> None:
        """Note a cleanup that is about to remove a guest where the database has it."""
        if method not in acts.REMOVING:
            return
        guest = self.cloud.world.hypervisors[host].describe(instance_uuid)
        rows = {row.object.uuid: row.object for row in self._tables['migrations']}
        instance = self._rows['instances'].get(instance_uuid)
        migration = rows.get(migration_uuid)
        if instance is None or instance.host != host or migration is None or migration.in_progress:
            return
        if guest.present and guest.state != protocol.GuestState.WAITING:
            self.cloud.world.acts.removals.append(
                f'{host}: {method} for migration {migration_uuid}, which has ended, of guest {instance_uuid}, which is '
                f'{guest.state} there, where the database has it'
            )

    def _watch_compute(self, compute: Any) -> None:
        if compute is None:
            return  # its start has failed
        stop, resize = compute.cleanup_host, compute._queue.resize

        def resized(limit: int) -> None:
            before = compute._queue.limit
            resize(limit)
            self._keep_slots(compute, before)

        _put(compute._queue, 'resize', resized)

        def watched() -> None:
            begun, paused = self._now(), compute.threads.paused_for
            stop()
            # Nobody stops in time who is not let run.
            begun += compute.threads.paused_for - paused
            patience = compute.conf.compute.stop_timeout if compute.conf.compute.stop_running == 'wait' else 0
            if self._now() - begun > STOP + patience:
                self._note('I13', f'{compute.host} took {self._now() - begun:.1f} s to stop')

        _put(compute, 'cleanup_host', watched)

    def _keep_slots(self, compute: Any, limit: int) -> None:
        """Note who has got a slot under an earlier limit: it runs, whether its job has started yet or not."""
        without = compute._live_migration_executor._waiting
        queued = {uuid for uuid, future in compute._waiting_live_migrations.items() if future in without}
        for uuid, record in compute._orders._records.items():
            if work.LIVE_MIGRATION in record.works and uuid not in queued:
                key = (compute.boot_id, uuid)
                self._slots[key] = max(limit, self._slots.get(key, 0))

    def _note_start(self, effect: hypervisor.Effect) -> None:
        """Look at the start of a job: whether there was a slot, and whether it was its turn."""
        host, compute = effect.host, self.cloud.computes.get(effect.host)
        if compute is None:
            return
        mine = [
            migration.uuid
            for migration in self._rows.get('migrations', {}).values()
            if migration.instance_uuid == effect.instance_uuid
        ]
        limit = max([compute._queue.limit, *(self._slots.get((compute.boot_id, uuid), 0) for uuid in mine)])
        running = len(self.cloud.world.hypervisors[host].jobs)
        if running > limit:
            self._note('I10', f'{host} started job number {running}, its limit is {limit}')
        waiting = list(compute._waiting_live_migrations)
        place = next((self._arrivals[key] for uuid in mine if (key := (compute.boot_id, uuid)) in self._arrivals), None)
        # What waits and was not there at the last look came after all that was.
        latest = len(self._arrivals)
        earlier = [uuid for uuid in waiting if self._arrivals.get((compute.boot_id, uuid), latest) < (place or 0)]
        # With several slots, others may have got theirs and not have said so yet.
        if len(earlier) >= limit:
            self._note('I10', f'{host} started {mine[0]} before {", ".join(earlier)}, which came first')

    # --- a look ------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Look now."""
        self.looks += 1
        outside = self._reader.outside()
        # Only what was sent since the last look: there may be very many.
        outside['messages'], self._heard = outside['messages'][self._heard :], len(outside['messages'])
        for name, host in outside['hosts'].items():
            self._highest_limit[name] = max(host.limit, self._highest_limit.get(name, 0))
            for uuid in host.waiting:
                self._arrivals.setdefault((host.boot_id, uuid), len(self._arrivals))
        if self._changed:
            self._read_rows()
        books_changed = self._trees_changed or bool(self._consumers)
        if self._trees_changed:
            self._books = self._reader.providers()
        elif self._consumers:
            self._books = self._reader.held_by(self._consumers, self._books)
        world = World(providers=self._books, before=self._before, **self._rows, **outside)
        everything = self._changed or books_changed or self._effects != len(world.effects)
        self._effects = len(world.effects)
        for invariant in check.INVARIANTS:
            if not everything and invariant.id not in OF_MESSAGES:
                continue
            if invariant.when is check.When.ALWAYS and invariant.id != APART:
                for what in invariant.function(world):
                    self._note(invariant.id, what)
        self._note_silence(world)
        self._before = self._rows['migrations']
        self._changed.clear()
        self._consumers.clear()
        self._trees_changed = False

    def _note_silence(self, world: World) -> None:
        """Note which migrations have neither got any further nor said why, by their rows alone: I7 while it lasts.

        A copy and a turn in the queue need no reason, but if an abort is to end them.
        """
        lasts = (MigrationStatus.QUEUED, MigrationStatus.RUNNING)
        for uuid, row in world.migrations.items():
            stands = row.status, row.outcome, row.attempt, row.abort_requested_at
            on_its_way = row.status in lasts and row.outcome is None and row.abort_requested_at is None
            observed = row.waits_for or row.stuck_reason or on_its_way
            if row.ended or observed or stands != self._silent.get(uuid, (None, 0.0))[0]:
                self._silent[uuid] = None if row.ended or observed else stands, world.at
            elif world.at - self._silent[uuid][1] > SILENCE:
                self._note('I7', f'migration {uuid} is {row.status}, and has not said for long what it waits for')

    def _read_rows(self) -> None:
        """Read the rows that may have changed: the migrations in progress, and those that were at the last look."""
        for table in self._changed:
            self._tables[table] = self.cloud.backend.tables.read(table)
        found = {table: [row.object for row in rows] for table, rows in self._tables.items()}
        concerned = {one.uuid for one in found['migrations'] if one.in_progress} | self._before.keys()
        journal: dict[str, list[log.StepRecord]] = {uuid: [] for uuid in concerned}
        for row in self._tables['saga_steps']:
            if row.saga in journal:
                journal[row.saga].append(row.object)
        self._rows = {
            'services': found['services'],
            'nodes': {one.host: one for one in found['compute_nodes']},
            'cleanups': found['host_debts'],
            'instances': {one.uuid: one for one in reversed(found['instances'])},
            'migrations': {one.uuid: one for one in found['migrations'] if one.uuid in concerned},
            'marked': frozenset(row.uuid for row in self._tables['migrations'] if row.in_progress_instance_uuid),
            'journal': journal,
        }

    def _now(self) -> float:
        return float(self._reader.outside()['at'])

    def _note(self, id_: str, what: str) -> None:
        violation = Violation(id_, what, self._now())
        if violation not in self._found:
            self._found.add(violation)
            self.violations.append(violation)


class _Told(list[hypervisor.Effect]):
    """The log of effects, which tells of each."""

    def __init__(self, effects: Sequence[hypervisor.Effect], tell: Callable[[hypervisor.Effect], None]):
        super().__init__(effects)
        self._tell = tell

    def append(self, effect: hypervisor.Effect) -> None:
        """Log an effect."""
        super().append(effect)
        self._tell(effect)


class _Keeper(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))


def _put(owner: object, name: str, value: Any) -> None:
    """Put a function in place of a method of one object."""
    setattr(owner, name, value)


def _around(owner: object, name: str, after: Callable[..., None]) -> None:
    """Have ``after(result, *args)`` called after each call of a method of one object, however that ends."""
    method = getattr(owner, name)

    def told(*args: Any, **kwargs: Any) -> Any:
        result = None
        try:
            result = method(*args, **kwargs)
            return result
        finally:
            after(result, *args, **kwargs)

    _put(owner, name, told)
