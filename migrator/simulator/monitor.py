# SPDX-License-Identifier: Apache-2.0

"""A monitor that checks the invariants of a simulated cloud after every event.

    monitor = Monitor(cloud)
    ...
    assert_holds(monitor.snapshot(), seen=monitor.violations)

An event is a transaction, a write to Placement, a message that was sent, delivered or answered, or an effect on a
hypervisor. The monitor does not change what a test counts: statements, requests and messages. It wraps methods, so that
a test may set and reset its own hooks (``engine.boundary``, ``bus.faults``).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

from migrator.compute import rpcapi, work
from migrator.db import saga_log
from migrator.objects import Migration, MigrationStatus, protocol
from migrator.saga import log
from migrator.simulator import reader
from migrator.simulator.epoch_check import EpochCheck
from migrator.simulator.invariants import check
from migrator.simulator.invariants.check import Violation
from migrator.simulator.world import World
from migrator.testing import tables
from migrator.testing.bus import Message, Pending
from migrator.testing.cloud import Cloud
from migrator.virt.fake import acts, hypervisor

#: The invariant that is checked when a job starts, by :meth:`Monitor._note_start` and not by the table's function.
APART = 'I10'
#: Seconds that a planned stop may take in addition to ``stop_timeout``.
STOP = 2.0
#: Seconds within which a migration must record what it waits for. Without faults it takes a fraction of it.
SILENCE = 300.0
#: The tables that are read again after a commit has written to them.
ROWS = frozenset(tables.TABLES)
#: Tables whose change alone causes no look, since every heartbeat changes them.
ASIDE = frozenset({'services', 'compute_nodes'})
#: The invariants that a message alone may break, without a change of rows, allocations or guests.
OF_MESSAGES = frozenset({'I11', 'I12', 'I13', 'I16', 'I17', 'I21', 'I22'})


class Monitor:
    """A monitor of a cloud, from its creation until :meth:`close`.

    :param cloud: a simulated cloud. A look contains no crossing, so that it sees a single moment.
    :ivar violations: the violations that were found, each once, in order.
    :ivar logs: the log lines of the services, formatted.
    :ivar looks: the number of looks.
    """

    def __init__(self, cloud: Cloud) -> None:
        if cloud.simulation is None:
            raise ValueError('the cloud to monitor is not simulated: a look needs a SimulatedCloud, which stands still')
        self.cloud = cloud
        self.violations: list[Violation] = []
        self.logs: list[str] = []
        self.looks = 0
        self._found: set[Violation] = set()
        self._reader = reader.Reader(cloud)
        self._tables: dict[str, list[tables.Row]] = {}
        self._rows: dict[str, Any] = {}
        self._before: dict[str, Migration] = {}
        self._histories_before: dict[str, list[dict[str, Any]]] = {}
        #: uuid -> how many entries its log had, and what they added up to.
        self._added_up: dict[str, tuple[int, list[log.StepRecord], list[dict[str, Any]]]] = {}
        self._providers: dict[str, Any] = {}
        self._changed = set(ROWS)
        self._read_at: dict[str, int] = {}
        self._effects = -1
        self._trees_changed = True
        self._consumers: set[str] = set()
        self._messages_seen = 0
        self._epoch_check = EpochCheck()
        #: Migration -> its progress, and since when it has had that progress without a recorded wait.
        self._silent: dict[str, tuple[Any, float]] = {}
        #: (boot, migration) -> its position in the order of arrival in the queue.
        self._arrivals: dict[tuple[str, str], int] = {}
        #: (boot, migration) -> the limit at the time it got its slot, if the limit was lowered since.
        self._slots: dict[tuple[str, str], int] = {}
        self._highest_limit: dict[str, int] = {}
        self._handler = _LogCollector(self.logs)
        self._logger = logging.getLogger('migrator')
        self._level = self._logger.level
        self._install()
        self.look()

    def close(self) -> None:
        """Stop collecting logs and close the reader."""
        self._logger.removeHandler(self._handler)
        self._logger.setLevel(self._level)
        self._reader.close()

    def snapshot(self) -> World:
        """Return a snapshot of the whole world with all logs; the limit of a host is the highest that it had."""
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
        # The delivered requests are unknown, so that everything is read again.
        _around(cloud.adapter, 'deliver', lambda _result: self._after_placement('', 'late'))
        _around(cloud.bus, 'send', lambda _result, *_args: self.look())
        # The epoch check needs each message before the server handles it.
        _replace(cloud.bus, '_deliver', self._watch_delivery(cloud.bus._deliver))
        _around(cloud.bus, 'answer', self._after_answer)
        cloud.world.acts.on_begin = self._before_act
        cloud.world.acts.in_progress = self._is_in_progress
        cloud.world.log = _NotifyingList(cloud.world.log, self._after_effect)
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
                self._epoch_check.arrived(message, pending)
            deliver(message, pending)
            self.look()

        return watched

    def _after_answer(self, _result: None, message: Message, pending: Pending) -> None:
        if message.target.topic == rpcapi.TOPIC:
            for what in self._epoch_check.answered(pending, json.loads(message.body).get('result')):
                self._note('I16', what)
        self.look()

    def _after_effect(self, effect: hypervisor.Effect) -> None:
        if effect.effect == 'job started':
            self._note_start(effect)
        self.look()

    def _is_in_progress(self, migration_uuid: str) -> bool:
        return any(row.uuid == migration_uuid and row.object.in_progress for row in self._tables['migrations'])

    def _before_act(self, host: str, method: str, instance_uuid: str, migration_uuid: str) -> None:
        """Note a cleanup that is about to remove a guest from its host in the database."""
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
                f'{host}: {method} for the ended migration {migration_uuid} removes guest {instance_uuid}, which is '
                f'{guest.state} there, from its host in the database'
            )

    def _watch_compute(self, compute: Any) -> None:
        if compute is None:
            return  # the start has failed
        stop, resize = compute.cleanup_host, compute._queue.resize

        def resized(limit: int) -> None:
            before = compute._queue.limit
            resize(limit)
            self._keep_slots(compute, before)

        _replace(compute._queue, 'resize', resized)

        def watched() -> None:
            begun, paused = self._now(), compute.threads.paused_for
            stop()
            # A paused process cannot stop, so that the pause does not count.
            begun += compute.threads.paused_for - paused
            patience = compute.conf.compute.stop_timeout if compute.conf.compute.stop_running == 'wait' else 0
            if self._now() - begun > STOP + patience:
                self._note('I13', f'{compute.host} took {self._now() - begun:.1f} s to stop')

        _replace(compute, 'cleanup_host', watched)

    def _keep_slots(self, compute: Any, limit: int) -> None:
        """Note the migrations that got a slot under an earlier limit, whether their jobs have started or not."""
        without = compute._live_migration_executor._waiting
        queued = {uuid for uuid, future in compute._waiting_live_migrations.items() if future in without}
        for uuid, record in compute._orders._records.items():
            if work.LIVE_MIGRATION in record.works and uuid not in queued:
                key = (compute.boot_id, uuid)
                self._slots[key] = max(limit, self._slots.get(key, 0))

    def _note_start(self, effect: hypervisor.Effect) -> None:
        """Check at the start of a job that a slot was free and that no earlier migration waits."""
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
        # A waiting migration that the last look did not see came after all that it saw.
        latest = len(self._arrivals)
        earlier = [uuid for uuid in waiting if self._arrivals.get((compute.boot_id, uuid), latest) < (place or 0)]
        # With several slots, earlier migrations may have got one without having left the queue yet.
        if len(earlier) >= limit:
            self._note('I10', f'{host} started {mine[0]} before {", ".join(earlier)}, which arrived earlier')

    # --- a look ------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Check all invariants that may have changed since the last look."""
        self.looks += 1
        outside = self._reader.outside()
        # Only the messages since the last look are checked, since a run has very many.
        messages = outside['messages']
        outside['messages'], self._messages_seen = messages[self._messages_seen :], len(messages)
        for name, host in outside['hosts'].items():
            self._highest_limit[name] = max(host.limit, self._highest_limit.get(name, 0))
            for uuid in host.waiting:
                self._arrivals.setdefault((host.boot_id, uuid), len(self._arrivals))
        if self._changed:
            self._read_rows()
        placement_changed = self._trees_changed or bool(self._consumers)
        if self._trees_changed:
            self._providers = self._reader.providers()
        elif self._consumers:
            self._providers = self._reader.held_by(self._consumers, self._providers)
        world = World(
            providers=self._providers,
            before=self._before,
            histories_before=self._histories_before,
            **self._rows,
            **outside,
        )
        everything = self._changed or placement_changed or self._effects != len(world.effects)
        self._effects = len(world.effects)
        for invariant in check.INVARIANTS:
            if not everything and invariant.id not in OF_MESSAGES:
                continue
            if invariant.when is check.When.ALWAYS and invariant.id != APART:
                for what in invariant.function(world):
                    self._note(invariant.id, what)
        self._note_silence(world)
        self._before, self._histories_before = self._rows['migrations'], self._rows['histories']
        self._changed.clear()
        self._consumers.clear()
        self._trees_changed = False

    def _note_silence(self, world: World) -> None:
        """Note the migrations whose rows show for too long neither progress nor a reason: I7 during a run.

        A copy and a wait in the queue need no reason, unless an abort was requested.
        """
        lasts = (MigrationStatus.QUEUED, MigrationStatus.RUNNING)
        for uuid, row in world.migrations.items():
            stands = row.status, row.outcome, row.attempt, row.abort_requested_at
            on_its_way = row.status in lasts and row.outcome is None and row.abort_requested_at is None
            observed = row.waits_for or row.stuck_reason or on_its_way
            if row.ended or observed or stands != self._silent.get(uuid, (None, 0.0))[0]:
                self._silent[uuid] = None if row.ended or observed else stands, world.at
            elif world.at - self._silent[uuid][1] > SILENCE:
                self._note(
                    'I7', f'migration {uuid} is {row.status}, without progress or a recorded wait for {SILENCE:g} s'
                )

    def _read_rows(self) -> None:
        """Read the changed tables; keep the migrations that are in progress or were so at the last look."""
        for table in self._changed:
            self._tables[table] = self.cloud.backend.tables.read(table)
        found = {table: [row.object for row in rows] for table, rows in self._tables.items()}
        concerned = {one.uuid for one in found['migrations'] if one.in_progress} | self._before.keys()
        logs: dict[str, list[log.Entry]] = {uuid: [] for uuid in concerned}
        for row in self._tables['saga_log']:
            if row.migration in logs:
                logs[row.migration].append(row.object)
        known, self._added_up = self._added_up, {}
        for uuid, entries in logs.items():
            before = known.get(uuid)
            self._added_up[uuid] = (
                before
                if before is not None and before[0] == len(entries)
                else (len(entries), log.records(entries), saga_log.history(entries))
            )
        self._rows = {
            'services': found['services'],
            'nodes': {one.host: one for one in found['compute_nodes']},
            'cleanups': found['host_debts'],
            'instances': {one.uuid: one for one in reversed(found['instances'])},
            'migrations': {one.uuid: one for one in found['migrations'] if one.uuid in concerned},
            'marked': frozenset(row.uuid for row in self._tables['migrations'] if row.in_progress_instance_uuid),
            'journal': {uuid: found[1] for uuid, found in self._added_up.items()},
            'histories': {uuid: found[2] for uuid, found in self._added_up.items()},
        }

    def _now(self) -> float:
        return float(self._reader.outside()['at'])

    def _note(self, id_: str, what: str) -> None:
        violation = Violation(id_, what, self._now())
        if violation not in self._found:
            self._found.add(violation)
            self.violations.append(violation)


class _NotifyingList(list[hypervisor.Effect]):
    """A log of effects that calls a function after each effect."""

    def __init__(self, effects: Sequence[hypervisor.Effect], notify: Callable[[hypervisor.Effect], None]):
        super().__init__(effects)
        self._notify = notify

    def append(self, effect: hypervisor.Effect) -> None:
        """Append an effect and call the function."""
        super().append(effect)
        self._notify(effect)


class _LogCollector(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))


def _replace(owner: object, name: str, value: Any) -> None:
    """Replace a method of one object by a function."""
    setattr(owner, name, value)


def _around(owner: object, name: str, after: Callable[..., None]) -> None:
    """Call ``after(result, *args)`` after each call of a method of one object, however the call ends."""
    method = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = None
        try:
            result = method(*args, **kwargs)
            return result
        finally:
            after(result, *args, **kwargs)

    _replace(owner, name, wrapped)
