# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from migrator import exception, executors
from migrator.conductor.migration.context import StepTimes
from migrator.conductor.migration.replies import Replies
from migrator.conductor.migration.waiting import Ledger
from migrator.conductor.runner import Runner
from migrator.objects import Migration, protocol, reasons
from migrator.objects.reasons import Reason, StuckKind, WaitKind
from migrator.saga import log
from migrator.saga.saga import Kind, Parked, Saga, Step, Stuck
from migrator.testing.simulation.threads import Simulation
from tests.reasons import NOT_STUCK

NOTHING = Parked(Reason.of(WaitKind.POLL, 'host1'))


def stuck(reason: str) -> Stuck:
    return Stuck(Reason.of(StuckKind.UNKNOWN_GUEST, reason=reason))


class Row(types.SimpleNamespace):
    """A row without a database."""

    wait, waits_for = Migration.wait, Migration.waits_for
    stuck, stuck_reason = Migration.stuck, Migration.stuck_reason

    def replace(self, **fields: Any) -> Row:
        self.__dict__.update(fields)
        return self


class Subject:
    """A migration whose run is a function of the test."""

    def __init__(self, clock: executors.Clock, uuid: str = 'm1') -> None:
        self.row = Row(
            uuid=uuid,
            instance_uuid='i1',
            request_id='req-1',
            task='live-migration',
            **NOT_STUCK,
            **reasons.columns('wait', None),
            retry_requested_at=None,
            abort_requested_at=None,
            abandon_requested_at=None,
            checked_at=None,
            status='running',
            outcome=None,
            attempt=1,
            epoch=1,
            hosts=['host1'],
        )
        self.source = 'host1'
        self.step_log = log.StepLog()
        self.attempt, self.outcome, self.ended, self.abort_reason = 1, None, False, None
        self.is_abandoned = False
        self.boots: dict[str, str] = {}
        self.stuck = None
        self.ledger, self.replies = Ledger(clock), Replies(clock, settling=False)
        self.times = StepTimes(clock, lambda *_step: None, None, '', uuid, lambda key: self.step_log.is_ours(*key))
        self.tools = types.SimpleNamespace(
            server='conductor',
            broker=types.SimpleNamespace(check=lambda: None),
            threads=types.SimpleNamespace(clock=clock),
            options=types.SimpleNamespace(service_down_time=60.0),
            database=types.SimpleNamespace(migrations=types.SimpleNamespace(note_progress=lambda *_args: True)),
        )
        self.became: list[Subject] = []
        self.noted: list[str | None] = []

    def become(self, fresh: Subject) -> None:
        self.became.append(fresh)

    def set(self, **fields: Any) -> None:
        self.row.replace(**fields)

    def log_stuck(self, reason: Reason | None) -> None:
        self.noted.append(reason and str(reason))

    def commit(self, records: Any = (), outcome: Any = None) -> None:
        assert not records, 'this saga writes nothing'


class Scene:
    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.threads = simulation.process('conductor')
        self.act: Callable[[Subject], Any] = lambda subject: NOTHING
        self.runs: list[str] = []
        self.fresh: Subject | None = self.subject()
        self.reloads = 0
        step = Step('act', Kind.PIVOT, do=self.do)
        saga: Saga[Any] = Saga(step, settle=lambda subject: NOTHING)
        pool = executors.BoundedExecutor(8, self.threads)
        self.runner = Runner(self.threads, pool, lambda _subject: saga, self.reload)

    def subject(self, uuid: str = 'm1') -> Subject:
        return Subject(self.threads.clock, uuid)

    def do(self, subject: Subject) -> Any:
        self.runs.append(subject.row.uuid)
        return self.act(subject)

    def reload(self, uuid: str) -> Any:
        self.reloads += 1
        return self.fresh

    def hold(self) -> tuple[Any, list[int]]:
        """Have runs wait for an event; return it, and how many have run at the same time."""
        gate, running, most = self.threads.event(), [0], [0]

        def act(subject: Subject) -> Parked:
            running[0] += 1
            most[0] = max(most[0], running[0])
            gate.wait()
            running[0] -= 1
            return NOTHING

        self.act = act
        return gate, most


@pytest.fixture
def scene(seed: int | None) -> Iterator[Scene]:
    with Simulation(seed=seed) as simulation:
        yield Scene(simulation)


def test_taken_migration_runs_at_once_and_parks_without_a_thread(scene: Scene) -> None:
    scene.runner.take(scene.subject())
    scene.simulation.run_ready()
    assert scene.runs == ['m1']
    assert scene.runner.holds('m1')
    assert [subject.ledger.last.what for subject in scene.runner.held()] == ['a poll of host1']
    assert list(scene.threads.threads) == []


@pytest.mark.seeds(None, 1, 2, 3)
def test_migration_woken_during_its_run_runs_again_afterwards(scene: Scene) -> None:
    gate, most = scene.hold()
    scene.runner.take(scene.subject())
    scene.simulation.run_ready()
    for _ in range(5):
        scene.threads.start(lambda: scene.runner.wake('m1'), name='wake')
    scene.simulation.run_ready()
    assert scene.runs == ['m1']
    gate.set()
    scene.simulation.run_ready()
    assert (scene.runs, most) == (['m1', 'm1'], [1])


@pytest.mark.seeds(None, 1, 2, 3)
def test_two_migrations_run_at_the_same_time(scene: Scene) -> None:
    gate = scene.threads.event()
    scene.act = lambda subject: gate.wait() and NOTHING
    for uuid in ('m1', 'm2'):
        scene.runner.take(scene.subject(uuid))
    scene.simulation.run_ready()
    assert sorted(scene.runs) == ['m1', 'm2']
    gate.set()


def test_unknown_migration_cannot_be_woken(scene: Scene) -> None:
    assert not scene.runner.wake('m1')
    scene.runner.take(scene.subject())
    assert scene.runner.wake('m1')


def test_report_and_observation_are_recorded_before_the_next_run(scene: Scene) -> None:
    subject = scene.subject()
    scene.runner.take(subject)
    scene.simulation.run_ready()
    about = {'migration_uuid': 'm1', 'host': 'host1', 'boot_id': 'b', 'epoch': 1}
    report = protocol.Report(**about, step='live_migration', state='running')
    guest = protocol.Guest(instance_uuid='i1')
    scene.runner.wake('m1', report=report)
    scene.runner.wake('m1', observation=protocol.Observation(**about, guest=guest, reports=[report]))
    scene.simulation.run_ready()
    assert list(subject.replies.reports) == [('host1', 'live_migration')]
    assert list(subject.replies.seen) == ['host1']


def test_row_is_read_again_only_if_others_may_have_changed_it(scene: Scene) -> None:
    subject = scene.subject()
    scene.runner.take(subject)
    scene.runner.wake('m1')
    scene.simulation.run_ready()
    assert scene.reloads == 0
    scene.runner.wake('m1', reread=True)
    scene.simulation.run_ready()
    assert (scene.reloads, subject.became) == (1, [scene.fresh])


@pytest.mark.seeds(None, 1, 2, 3)
def test_change_during_a_read_causes_another_read(scene: Scene) -> None:
    reload = scene.reload

    def reload_and_change(uuid: str) -> Any:
        found = reload(uuid)
        if scene.reloads == 1:
            scene.runner.wake('m1', reread=True)
        return found

    scene.runner._reload = reload_and_change
    scene.runner.take(scene.subject())
    scene.simulation.run_ready()
    scene.runner.wake('m1', reread=True)
    scene.simulation.run_ready()
    assert scene.reloads == 2


def test_refused_write_causes_a_read_and_another_run(scene: Scene) -> None:
    def act(subject: Subject) -> Parked:
        if len(scene.runs) == 1:
            raise exception.NotOwner(migration_uuid='m1', owner='o', epoch=1)
        return NOTHING

    scene.act = act
    subject = scene.subject()
    scene.runner.take(subject)
    scene.simulation.run_ready()
    assert (scene.runs, subject.became) == (['m1', 'm1'], [scene.fresh])


def test_migration_of_another_owner_is_released(scene: Scene) -> None:
    scene.fresh = None
    scene.runner.take(scene.subject())
    scene.simulation.run_ready()
    scene.runner.wake('m1', reread=True)
    scene.simulation.run_ready()
    assert not scene.runner.holds('m1')
    assert scene.runs == ['m1']


@pytest.mark.parametrize(
    'error', [exception.DatabaseUnreachable(reason='it is away'), ZeroDivisionError('a mistake of ours')]
)
def test_error_is_tried_again_later_from_the_stored_row(scene: Scene, error: Exception) -> None:
    def act(subject: Subject) -> Parked:
        raise error

    scene.act = act
    subject = scene.subject()
    scene.runner.take(subject)
    scene.simulation.run_ready()
    assert scene.runner.holds('m1')
    assert subject.ledger.wake_at is not None
    assert subject.ledger.wake_at > scene.threads.clock.monotonic()
    scene.act = lambda subject: NOTHING
    scene.runner.wake('m1')
    scene.simulation.run_ready()
    assert (len(scene.runs), scene.reloads) == (2, 1)


def test_row_is_read_again_after_the_thread_of_a_run_was_ended(scene: Scene) -> None:
    """What the run had not committed is lost, so the memory of it does not count."""

    def act(subject: Subject) -> Parked:
        raise GeneratorExit

    scene.act = act
    scene.runner.take(scene.subject())
    with contextlib.suppress(GeneratorExit):
        scene.simulation.run_ready()
    scene.act = lambda subject: NOTHING
    scene.runner.wake('m1')
    scene.simulation.run_ready()
    assert (len(scene.runs), scene.reloads) == (2, 1)


def test_three_equal_errors_in_a_row_make_it_stuck(scene: Scene) -> None:
    errors = [
        ValueError('odd'),
        ValueError('odd'),
        ValueError('other'),
        *[KeyError('uuid')] * 2,
        KeyError('uuid\udc80'),
    ]
    errors += [KeyError('uuid\udc80')] * 2
    scene.fresh = subject = scene.subject()
    scene.runner.take(subject)
    scene.simulation.run_ready()
    reasons = []
    for error in errors:

        def act(subject: Subject, error: Exception = error) -> Parked:
            raise error

        scene.act = act
        scene.runner.wake('m1')
        scene.simulation.run_ready()
        reasons.append(subject.row.stuck_reason)
    assert reasons[:-1] == [None] * (len(errors) - 1)
    assert "Conductor conductor meets the same unexpected error each time: KeyError: 'uuid\\udc80'" in reasons[-1]
    assert reasons[-1].isascii()
    scene.act = lambda subject: NOTHING
    scene.runner.wake('m1')
    scene.simulation.run_ready()
    assert subject.row.stuck_reason is None


def test_second_take_does_not_run_it_twice(scene: Scene) -> None:
    """A sweep may find the row while a request brings the same migration."""
    gate, most = scene.hold()
    for _ in range(2):
        scene.runner.take(scene.subject())
        scene.simulation.run_ready()
    gate.set()
    scene.simulation.run_ready()
    assert (scene.runs, most, scene.reloads) == (['m1', 'm1'], [1], 1)


def test_error_during_a_read_is_tried_again(scene: Scene) -> None:
    def fail(uuid: str) -> Any:
        raise exception.DatabaseUnreachable(reason='it is away')

    subject = scene.subject()
    scene.runner.take(subject)
    scene.simulation.run_ready()
    reload, scene.runner._reload = scene.runner._reload, fail
    scene.runner.wake('m1', reread=True)
    scene.simulation.run_ready()
    assert (scene.runner.holds('m1'), subject.ledger.wake_at is None) == (True, False)
    scene.runner._reload = reload
    scene.runner.wake('m1')
    scene.simulation.run_ready()
    assert subject.became == [scene.fresh]


def test_stuck_reason_is_written_once_and_kept(scene: Scene) -> None:
    subject = scene.subject()
    scene.act = lambda subject: stuck('odd')
    scene.runner.take(subject)
    scene.simulation.run_ready()
    scene.runner.wake('m1')
    scene.simulation.run_ready()
    assert subject.noted == ['odd']
    assert scene.runner.holds('m1')


def test_other_words_of_the_reason_are_written_to_the_row_and_are_no_news(scene: Scene) -> None:
    subject = scene.subject()
    for words in ('host1 is down', 'host1 has no guest', 'host1 has no guest'):
        scene.act = lambda subject, words=words: stuck(words)
        if not scene.runner.holds('m1'):
            scene.runner.take(subject)
        else:
            scene.runner.wake('m1')
        scene.simulation.run_ready()
        assert subject.row.stuck_reason == words
    assert subject.noted == ['host1 is down']


def test_migration_of_another_owner_is_not_logged_as_stuck(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """A conductor that was paused observes the results of its successor."""
    subject = scene.subject()

    def refused(records: Any = (), outcome: Any = None) -> None:
        raise exception.NotOwner(migration_uuid='m1', owner='me', epoch=1)

    subject.commit = refused  # type: ignore[method-assign]  # the guard of the commit
    scene.act = lambda subject: stuck('it fits no case')
    scene.fresh = None
    scene.runner.take(subject)
    scene.simulation.run_ready()
    assert not scene.runner.holds('m1')
    assert 'stuck' not in caplog.text


def test_ended_migration_is_released(scene: Scene) -> None:
    subject = scene.subject()
    subject.ended = True
    scene.runner.take(subject)
    scene.simulation.run_ready()
    assert not scene.runner.holds('m1')
    assert scene.runs == []


@pytest.mark.seeds(None, 1, 2, 3)
def test_drop_all_stops_runs_at_their_next_pause(scene: Scene) -> None:
    gate = scene.threads.event()
    scene.act = lambda subject: gate.wait() and NOTHING
    scene.runner.take(scene.subject())
    scene.simulation.run_ready()
    scene.runner.wake('m1')
    scene.runner.drop_all()
    gate.set()
    scene.simulation.run_ready()
    assert (scene.runs, scene.runner.held()) == (['m1'], [])


@pytest.mark.seeds(None, 1, 2, 3)
@pytest.mark.parametrize('owns', [False, True])
def test_late_read_of_an_ended_boot_leaves_the_migration_to_the_next_one(scene: Scene, owns: bool) -> None:
    gate = scene.threads.event()

    def reload(uuid: str) -> Any:
        gate.wait()
        return scene.fresh if owns else None

    scene.runner.take(scene.subject())
    scene.simulation.run_ready()
    scene.runner._reload = reload
    scene.runner.wake('m1', reread=True)
    scene.simulation.run_ready()
    scene.runner.drop_all()
    again = scene.subject()
    scene.runner.take(again)
    scene.simulation.run_ready()
    gate.set()
    scene.simulation.run_ready()
    assert scene.runner.held() == [again]
    assert scene.runs == ['m1', 'm1'], 'one run of each boot'
