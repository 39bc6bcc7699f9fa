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

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from migrator.compute import rpcapi
from migrator.simulator import reader
from migrator.simulator.invariants import check
from migrator.simulator.invariants.check import GUESTS, HOLDINGS, Violation
from migrator.simulator.monitoring.aborts import Aborts
from migrator.simulator.monitoring.act_check import ActCheck
from migrator.simulator.monitoring.boots import Boots
from migrator.simulator.monitoring.drain_requests import DrainRequests
from migrator.simulator.monitoring.epoch_check import EpochCheck
from migrator.simulator.monitoring.holdings import Holdings
from migrator.simulator.monitoring.maintenances import Maintenances
from migrator.simulator.monitoring.queues import Queues
from migrator.simulator.monitoring.remedies import Remedies
from migrator.simulator.monitoring.rows import ASIDE, Rows
from migrator.simulator.monitoring.silence import Silence
from migrator.simulator.world import World
from migrator.testing.bus import Message, Pending
from migrator.testing.cloud import Cloud
from migrator.testing.hypervisor import hypervisor

#: The invariant that is checked when a job starts, by :meth:`Monitor._note_start` and not by the table's function.
APART = 'I10'
#: Seconds that a planned stop may take in addition to ``stop_timeout``.
STOP = 2.0
#: The invariants that a message alone may break, without a change of rows, allocations or guests.
OF_MESSAGES = frozenset({'I11', 'I12', 'I13', 'I16', 'I17', 'I21', 'I22'})
_AT_EVERYTHING = [one for one in check.INVARIANTS if one.when is check.When.ALWAYS and one.id != APART]
_AT_MESSAGES = [one for one in _AT_EVERYTHING if one.id in OF_MESSAGES]


@dataclasses.dataclass
class _Look:
    """What the last look has seen: the number of effects and messages, and the moment."""

    effects: int = -1
    messages: int = 0
    moment: tuple[int, int] = -1, -1


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
        self.looks = 0
        self._found: set[Violation] = set()
        self._reader = reader.Reader(cloud)
        self._rows = Rows(cloud.backend)
        self._holdings = Holdings(self._reader)
        self._queues = Queues()
        self._boots = Boots()
        #: The id of an invariant -> a function that yields how a world at a look breaks it.
        self._lookers = {
            'I7': Silence().look,
            'I9': Aborts(cloud).look,
            'I16': self._boots.look,
            'I22': ActCheck(cloud, self._rows).look,
            'I25': DrainRequests().look,
            'I30': Remedies().look,
            'I32': Maintenances(cloud).look,
        }
        self._epoch_check = EpochCheck()
        self._last = _Look()
        self._world: World | None = None
        self._collector = _LogCollector()
        self.logs = self._collector.lines
        self._install()
        self.look()

    def close(self) -> None:
        """Stop collecting logs and close the reader."""
        self._collector.close()
        self._reader.close()

    def snapshot(self) -> World:
        """Return a snapshot of the whole world with all logs; the limit of a host is the highest that it had."""
        world = World(**self._reader.everything(self.logs))
        for name, host in world.hosts.items():
            host.limit = max(host.limit, self._queues.highest_limit.get(name, 0))
        return world

    # --- events ------------------------------------------------------------------------------------------------------

    def _install(self) -> None:
        cloud = self.cloud
        cloud.database.engine.on_commit = self._after_commit
        _around(
            cloud.adapter, 'request', lambda _result, url, method, **more: self._after_placement(url, method, **more)
        )
        _around(cloud.adapter, 'deliver', lambda _result: self._after_late_requests())
        _replace(cloud.bus, 'send', self._watch_sending(cloud.bus.send))
        # The epoch check needs each message before the server handles it.
        _replace(cloud.bus, '_deliver', self._watch_delivery(cloud.bus._deliver))
        _around(cloud.bus, 'answer', self._after_answer)
        cloud.world.acts.in_progress = self._rows.is_in_progress
        cloud.world.log = _NotifyingList(cloud.world.log, self._after_effect)
        for compute in cloud.computes.values():
            self._watch_compute(compute)
        _around(cloud, 'start_compute', lambda compute, *_args: self._watch_compute(compute))

    def _after_commit(self) -> None:
        if self._rows.note_commit():
            self.look()

    def _after_placement(self, url: str, method: str, **more: Any) -> None:
        if self._holdings.note_request(url, method, **more):
            self.look()

    def _after_late_requests(self) -> None:
        self._holdings.note_unknown_requests()
        self.look()

    def _watch_sending(self, send: Callable[..., None]) -> Callable[..., None]:
        def watched(message: Message, pending: Pending | None) -> None:
            looks = self.looks
            self._boots.sent(message)
            try:
                send(message, pending)
            finally:
                # A message that was delivered has been looked at, unless other threads have run since.
                if self.looks == looks or self._last.moment != self._now_and_passes():
                    self.look()

        return watched

    def _now_and_passes(self) -> tuple[int, int]:
        scheduler = self.cloud.simulation.scheduler  # type: ignore[union-attr]  # __init__ has checked it
        return scheduler.timers.time, scheduler.passes

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

    def _watch_compute(self, compute: Any) -> None:
        if compute is None:
            return  # the start has failed
        stop = compute.cleanup_host
        self._queues.watch(compute)

        def watched() -> None:
            begun, paused = self._now(), compute.threads.paused_for
            stop()
            # A paused process cannot stop, so that the pause does not count.
            begun += compute.threads.paused_for - paused
            patience = compute.conf.compute.stop_timeout if compute.conf.compute.stop_running == 'wait' else 0
            if self._now() - begun > STOP + patience:
                self._note('I13', f'{compute.host} took {self._now() - begun:.1f} s to stop')

        _replace(compute, 'cleanup_host', watched)

    def _note_start(self, effect: hypervisor.Effect) -> None:
        """Check at the start of a job that a slot was free and that no earlier migration waits."""
        compute = self.cloud.computes.get(effect.host)
        if compute is not None:
            running = len(self.cloud.world.hypervisors[effect.host].jobs)
            rows = self._rows.migrations.values()
            mine = [one for one in rows if one.instance_uuid == effect.instance_uuid]
            for what in self._queues.check_start(compute, running, mine, {one.uuid: one.id for one in rows}):
                self._note(APART, what)

    # --- a look ------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Check all invariants that may have changed since the last look."""
        self.looks += 1
        self._last.moment = self._now_and_passes()
        # Only the messages since the last look are checked, since a run has very many.
        outside = self._reader.outside(self._last.messages)
        self._last.messages += len(outside['messages'])
        self._queues.look(outside['hosts'])
        rows_changed = bool(self._rows.changed)
        if rows_changed:
            self._rows.read()
        holdings_changed = self._holdings.read()
        world = self._world_of(outside)
        changed = self._rows.changed | ({HOLDINGS} if holdings_changed else set())
        if changed - ASIDE or self._last.effects != len(world.effects):
            changed.add(GUESTS)
        everything = bool(changed)
        self._last.effects = len(world.effects)
        for invariant in _AT_EVERYTHING if everything else _AT_MESSAGES:
            if everything and not invariant.may_have_changed(changed):
                continue
            for what in invariant.function(world):
                self._note(invariant.id, what)
        for id_, looker in self._lookers.items():
            for what in looker(world):
                self._note(id_, what)
        self._rows.end_look()

    def _world_of(self, outside: Mapping[str, Any]) -> World:
        """Return the world at this look. There is only one, which changes."""
        rows = self._rows
        found = {
            **rows.values,
            **outside,
            'providers': self._holdings.providers,
            'before': rows.before,
            'histories_before': rows.histories_before,
            'drains_before': rows.drains_before,
        }
        if self._world is None:
            self._world = World(**found)
        vars(self._world).update(found)
        return self._world

    def _now(self) -> float:
        return self._reader.times()[0]

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
    """A collector of the log lines of the services, from its creation until :meth:`close`."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._logger = logging.getLogger('migrator')
        self._level_before = self._logger.level
        self._logger.addHandler(self)
        self._logger.setLevel(logging.DEBUG)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(self.format(record))

    def close(self) -> None:
        """Stop collecting."""
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level_before)
        super().close()


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
