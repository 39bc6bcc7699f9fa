# SPDX-License-Identifier: Apache-2.0


"""A toy saga, its world, and a subject whose log survives the death of its executor."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from migrator.saga import executor, log
from migrator.saga.saga import (
    Back,
    Done,
    Failed,
    Forward,
    GoOn,
    Kind,
    Lost,
    Parked,
    Saga,
    Settlement,
    Step,
    Stuck,
    Verdict,
)


class Crash(BaseException):
    """The process that runs the saga is killed here."""


class Refused(Exception):
    """The guard refuses a commit."""


@dataclasses.dataclass
class Stored:
    """The contents of the database."""

    records: dict[tuple[int, str, str], log.StepRecord] = dataclasses.field(default_factory=dict)
    attempt: int = 1
    outcome: str | None = None
    ended: str | None = None


class World:
    """The world that the steps act on, and a log of everything that was done.

    :param crash_at: the number of the boundary at which the process is killed; None: never.
    :ivar effects: name -> the attempt in which the effect was made.
    :ivar log: ``do NAME``, ``undo NAME`` and ``commit ...``, in order.
    :ivar scripts: ``do NAME``, ``undo NAME`` or ``settle`` -> the verdicts of the next calls; later calls act.
    """

    def __init__(self, crash_at: int | None = None) -> None:
        self.effects: dict[str, int] = {}
        self.log: list[str] = []
        self.statuses: list[str] = []
        self.stored = Stored()
        self.scripts: dict[str, list[Any]] = {}
        self.refuse_commits = 0
        self.crash_at = crash_at
        self.boundaries = 0
        self.abort_reason: str | None = None
        self.is_abandoned = False
        self.unsent: set[str] = set()
        self.no_effect: dict[str, str] = {}
        self.attempts = 1

    def boundary(self) -> None:
        """Kill the process here if this is the chosen boundary."""
        number, self.boundaries = self.boundaries, self.boundaries + 1
        if number == self.crash_at:
            self.crash_at = None
            raise Crash(number)

    def scripted(self, what: str) -> Any:
        """Return the next verdict that a test has scripted, or None."""
        answers = self.scripts.get(what)
        return answers.pop(0) if answers else None

    def dones(self) -> set[tuple[int, str, str]]:
        """Return the keys of the records of what is done or undone."""
        return {key for key, record in self.stored.records.items() if record.state == 'done'}

    def acts(self) -> list[str]:
        """Return the log without the commits."""
        return [line for line in self.log if not line.startswith('commit')]

    def commits(self) -> list[str]:
        """Return the contents of each commit."""
        return [line.removeprefix('commit ') for line in self.log if line.startswith('commit')]


class Times:
    """The times of the toy: the keys that were tried, and those that have ended."""

    def __init__(self) -> None:
        self.tried: list[tuple[int, str, str]] = []
        self.ended: list[tuple[int, str, str]] = []

    def trying(self, key: tuple[int, str, str]) -> contextlib.AbstractContextManager[None]:
        self.tried.append(key)
        return contextlib.nullcontext()

    def end(self, key: tuple[int, str, str]) -> None:
        self.ended.append(key)


class Subject:
    """One boot of the owner of a toy saga. A new one reads what is stored."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.step_log = log.StepLog(world.stored.records.values())
        self.times = Times()
        self.failure: Failed | None = None
        self.ending: str | None = None
        self.beginning = False

    @property
    def attempt(self) -> int:
        return self.world.stored.attempt

    @property
    def outcome(self) -> str | None:
        return self.world.stored.outcome

    @property
    def ended(self) -> bool:
        return self.world.stored.ended is not None

    @property
    def is_abandoned(self) -> bool:
        return self.world.is_abandoned

    @property
    def abort_reason(self) -> str | None:
        return self.world.abort_reason or (self.failure.reason if self.failure else None)

    def need_not_settle(self, step: str) -> bool:
        return step in self.world.unsent

    def enter(self, status: str) -> None:
        self.world.statuses.append(status)

    def commit(self, records: Sequence[log.StepRecord], outcome: str | None = None) -> None:
        world, stored = self.world, self.world.stored
        world.boundary()
        if world.refuse_commits:
            world.refuse_commits -= 1
            raise Refused
        assert stored.ended is None, 'nothing is written after the end'
        assert outcome is None or stored.outcome in (None, outcome), 'an outcome never changes'
        words = [f'{record.direction} {record.step} {record.state}' for record in records]
        words += [f'outcome {outcome}'] if outcome else []
        words += [f'end {self.ending}'] if self.ending else []
        words += ['next attempt'] if self.beginning else []
        world.log.append('commit ' + ', '.join(words))
        for record in records:
            stored.records[record.key] = dataclasses.replace(record, stored=True)
        stored.outcome = outcome or stored.outcome
        stored.ended = self.ending
        stored.attempt += self.beginning
        self.beginning = False
        self.step_log.commit(records, epoch=1)
        world.boundary()

    def has_next_attempt(self) -> bool:
        return self.attempt < self.world.attempts

    def begin_next_attempt(self, records: Sequence[log.StepRecord]) -> None:
        self.beginning = True
        self.commit(records)
        self.failure = None

    def undone(self, records: Sequence[log.StepRecord]) -> None:
        lost = any((record.result or {}).get('lost') for record in self.step_log.all())
        self.ending = 'lost' if lost else 'undone'
        self.commit(records)


def do(name: str, effect: bool = True, result: Mapping[str, Any] | None = None) -> Callable[[Subject], Verdict]:
    """Return a function that makes an effect, or returns what the test has scripted."""

    def body(subject: Subject) -> Verdict:
        world = subject.world
        world.boundary()
        world.log.append(f'do {name}')
        scripted = world.scripted(f'do {name}')
        if isinstance(scripted, tuple):  # the effect is made, but the verdict does not report it
            scripted = scripted[0]
            world.effects[name] = subject.attempt
        if scripted is not None:
            world.boundary()
            return scripted
        if effect:
            world.effects[name] = subject.attempt
        world.boundary()
        return Done(result)

    return body


def undo(*names: str) -> Callable[[Subject], Verdict]:
    """Return a function that takes effects back, or returns what the test has scripted."""

    def body(subject: Subject) -> Verdict:
        world = subject.world
        world.boundary()
        world.log.append(f'undo {names[0]}')
        scripted = world.scripted(f'undo {names[0]}')
        if scripted is not None:
            return scripted
        for name in names:
            world.effects.pop(name, None)
        world.boundary()
        return Done()

    return body


def intent(name: str) -> Callable[[Subject], Mapping[str, Any] | Verdict]:
    """Return an intent that fixes the attempt, or returns what the test has scripted."""

    def body(subject: Subject) -> Mapping[str, Any] | Verdict:
        return subject.world.scripted(f'intent {name}') or {'attempt': subject.attempt}

    return body


def leap(subject: Subject) -> Verdict:
    """Make the effect of the pivot, and park. Only settle decides whether it has happened."""
    verdict = do('leap')(subject)
    return Parked('the leap') if isinstance(verdict, Done) else verdict


def settle(subject: Subject) -> Settlement:
    """Decide by the effect of the pivot."""
    world = subject.world
    world.boundary()
    world.log.append('settle')
    scripted = world.scripted('settle')
    if scripted is not None:
        return scripted
    if 'leap' in world.effects:
        return Forward({'leapt': True})
    if subject.abort_reason is not None:
        return Back(subject.abort_reason)
    return GoOn()


def finish(subject: Subject) -> Verdict:
    """End the saga with the next commit."""
    subject.world.boundary()
    subject.world.log.append('do finish')
    subject.ending = 'finished'
    return Done()


def toy() -> Saga[Subject]:
    """Return a saga with a check, a shared undo, an undo that waits for another, and a pair."""
    clear = undo('look', 'prepare')
    return Saga(
        Step('book', Kind.COMPENSATABLE, do=do('book'), undo=undo('book'), intent=intent('book'), status='booking'),
        Step('look', Kind.COMPENSATABLE, do=do('look', result={'seen': 1}), undo=clear),
        Step('ask', Kind.COMPENSATABLE, do=do('ask', effect=False)),
        Step('prepare', Kind.COMPENSATABLE, do=do('prepare'), undo=clear, intent=intent('prepare')),
        Step(
            'leap',
            Kind.PIVOT,
            do=leap,
            undo=undo('leap'),
            intent=intent('leap'),
            undo_after='prepare',
            status='leaping',
            no_effect=lambda subject: subject.world.no_effect.get('leap'),
        ),
        Step('flip', Kind.RETRIABLE, do=do('flip'), status=lambda subject: f'flipped {subject.attempt}'),
        (
            Step('left', Kind.RETRIABLE, do=do('left'), intent=intent('left')),
            Step('right', Kind.RETRIABLE, do=do('right'), intent=intent('right')),
        ),
        Step('tidy', Kind.RETRIABLE, do=do('tidy'), intent=intent('tidy')),
        Step('finish', Kind.RETRIABLE, do=finish),
        settle=settle,
    )


def run_once(world: World) -> Parked | Stuck | None:
    """Run the saga with a new executor and a new subject, as after a restart."""
    return executor.SagaExecutor(lambda _subject: toy(), Subject(world)).run()


def run(world: World, lives: int = 20) -> World:
    """Run the saga to its end, with a new boot after every crash, refusal and pause."""
    for _ in range(lives):
        try:
            if run_once(world) is None:
                return world
        except (Crash, Refused):
            pass
    raise AssertionError(f'it does not end: {world.log[-20:]}')


__all__ = ['Back', 'Crash', 'Failed', 'Forward', 'GoOn', 'Lost', 'Parked', 'Refused', 'Stuck', 'Subject', 'World']
