# SPDX-License-Identifier: Apache-2.0
"""Breadth-first search of a system of parts, with shortest traces, quiet states and traps.

A state is one value of each part. Each part's values are numbered as they turn up, and a state is the numbers side by
side in one int. A rule reads some parts and changes some of them; what it yields depends on those parts alone, so it
is run once per combination of their values, and what it changes is remembered as a difference of such ints. So the
rules may be written to be read, and the search is still fast.
"""

from __future__ import annotations

import dataclasses
import gc
import time
from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

#: Bits per part: a million values of each.
_BITS = 20
_ONES = (1 << _BITS) - 1

#: What takes a step: the world by itself, a fault, a user or operator, or something that may take for ever. An end must
#: be in reach by the first.
OWN, FAULT, USER, ENDLESS = 0, 1, 2, 3


class Step(NamedTuple):
    """One successor: what it is called, and the parts that change.

    :ivar broken: which invariant it breaks, if any; what follows a broken invariant is not explored.
    :ivar stuck: why an operator is needed, if so.
    """

    label: str
    changes: Mapping[str, Any]
    by: int = OWN
    broken: str = ''
    stuck: str = ''


@dataclasses.dataclass(frozen=True)
class Rule:
    """What can happen, as a function of some parts.

    :ivar reads: the names of the parts that ``steps`` is called with, in its order; it may change these alone.
    :ivar when: decides from the value of the first of them whether the rule is worth running.
    """

    reads: tuple[str, ...]
    steps: Callable[..., Iterable[Step]]
    when: Callable[[Any], bool] = lambda value: True
    #: Its steps commute with everything else that can happen, now and later: they are taken at once, and alone.
    first: bool = False


@dataclasses.dataclass(frozen=True)
class Invariant:
    """What must hold in every state, as a function of some parts that returns what is broken, or ''."""

    reads: tuple[str, ...]
    broken: Callable[..., str]


@dataclasses.dataclass(frozen=True)
class System:
    """Something to be searched.

    :ivar start: each part's first value.
    :ivar finished: the parts that show whether all is well and over, and the function that decides it.
    :ivar quiet: like an invariant, for states in which only faults, users and operators can change anything.
    :ivar alike: two interchangeable actors: the parts that show whether they are in their one order, and the function
        that decides it; all the parts that name them, and the function that returns these with the names exchanged.
        None: there are none.
    """

    start: Mapping[str, Any]
    rules: tuple[Rule, ...]
    invariants: tuple[Invariant, ...]
    finished: Invariant
    quiet: Invariant
    alike: tuple[tuple[str, ...], Callable[..., bool], tuple[str, ...], Callable[..., Mapping[str, Any]]] | None = None
    #: Describes a trap or a quiet state.
    sketch: Callable[[Mapping[str, Any]], str] = str


@dataclasses.dataclass
class Found:
    """What a search has found. A finding is: its name -> (how often, the shortest trace)."""

    states: int = 0
    steps: int = 0
    depth: int = 0
    seconds: float = 0.0
    complete: bool = False
    finished: int = 0
    violations: dict[str, tuple[int, list[str]]] = dataclasses.field(default_factory=dict)
    stuck: dict[str, tuple[int, list[str]]] = dataclasses.field(default_factory=dict)
    traps: dict[str, tuple[int, list[str]]] = dataclasses.field(default_factory=dict)
    #: What of each kind of end there is, by sketch.
    quiet: dict[str, int] = dataclasses.field(default_factory=dict)


class _Parts:
    """The numbering of every part's values."""

    def __init__(self, system: System) -> None:
        self.names = list(system.start)
        self.shift = {name: _BITS * index for index, name in enumerate(self.names)}
        self.values: dict[str, list[Any]] = {name: [] for name in self.names}
        self.numbers: dict[str, dict[Any, int]] = {name: {} for name in self.names}
        #: Whether they go first, part -> number of its value -> the rules that it wakes.
        self.woken: dict[tuple[bool, str], list[tuple[Any, ...]]] = {}
        self.rules: dict[tuple[bool, str], list[tuple[Rule, tuple[int, dict[int, Any], Any]]]] = {}
        for name in self.names:
            for first in (True, False):
                self.woken[first, name], self.rules[first, name] = [], []
        for rule in system.rules:
            self.rules[rule.first, rule.reads[0]].append((rule, (self.mask(rule.reads), {}, rule)))

    def mask(self, reads: Iterable[str]) -> int:
        return sum(_ONES << self.shift[name] for name in reads)

    def number(self, name: str, value: Any) -> int:
        known = self.numbers[name]
        found = known.get(value)
        if found is None:
            found = known[value] = len(known)
            if found > _ONES:
                raise OverflowError(f'part {name} has more than {_ONES} values')
            self.values[name].append(value)
            for first in (True, False):
                entries = tuple(entry for rule, entry in self.rules[first, name] if rule.when(value))
                self.woken[first, name].append(entries)
        return found

    def read(self, state: int, name: str) -> Any:
        return self.values[name][state >> self.shift[name] & _ONES]

    def difference(self, state: int, changes: Mapping[str, Any]) -> int:
        total = 0
        for name, value in changes.items():
            shift = self.shift[name]
            total += self.number(name, value) - (state >> shift & _ONES) << shift
        return total

    def world(self, state: int) -> dict[str, Any]:
        return {name: self.read(state, name) for name in self.names}


def search(
    system: System, limit: int = 50_000_000, seconds: float = 3600.0, traps: bool = True, until: str | None = None
) -> Found:
    """Explore everything, or up to a limit.

    :param limit: states. :param seconds: after which it is cut.
    :param traps: whether to look for states from which no end can be reached; costs memory.
    :param until: stop at the first broken invariant whose text contains this.
    """
    return _Search(system, traps, until).run(limit, seconds)


class _Search:
    def __init__(self, system: System, traps: bool, until: str | None) -> None:
        self.system = system
        self.traps = traps
        self.until = until
        self._over = False
        self.parts = _Parts(system)
        self.states: list[int] = []
        self.parents = array('i')
        self.labels = array('i')
        self.names: list[str] = []
        self.name_of: dict[str, int] = {}
        self.edges = array('i'), array('i')
        self.quiet: list[int] = []
        self.found = Found()
        self._broken: dict[str, list[int]] = {}
        self._stuck: dict[str, list[int]] = {}
        #: States that break an invariant: nothing behind them is explored.
        self._dead: set[int] = set()
        self._invariants = [(self.parts.mask(invariant.reads), {}, invariant) for invariant in system.invariants]
        self._alike: dict[int, bool] = {}
        self._exchanged: dict[int, int] = {}
        self._exchange_mask = self.parts.mask(system.alike[2]) if system.alike else 0

    def run(self, limit: int, seconds: float) -> Found:
        began = time.monotonic()
        collecting = gc.isenabled()
        gc.disable()  # millions of ints in no cycle: looking for one would take most of the time
        try:
            self.found.complete = self._explore(limit, began + seconds)
            self._look_back()
        finally:
            if collecting:
                gc.enable()
        self.found.states = len(self.states)
        self.found.seconds = time.monotonic() - began
        return self.found

    def _explore(self, limit: int, deadline: float) -> bool:
        parts, states, parents, labels = self.parts, self.states, self.parents, self.labels
        sources, targets = self.edges
        system, traps = self.system, self.traps
        state = sum(parts.number(name, value) << parts.shift[name] for name, value in system.start.items())
        alike_mask = parts.mask(system.alike[0]) if system.alike else 0
        index: dict[int, int] = {state: 0}
        states.append(state)
        parents.append(-1)
        labels.append(-1)
        self._check(state, 0, -1)
        firsts, others = (
            [(parts.shift[name], parts.woken[first, name]) for name in parts.names if parts.rules[first, name]]
            for first in (True, False)
        )
        layer_end, at, steps = 1, 0, 0
        while at < len(states):
            if at == layer_end:
                self.found.depth += 1
                layer_end = len(states)
            if self._dead and at in self._dead:
                at += 1
                continue
            state = states[at]
            changed = False
            for label, by, difference, broken, stuck in self._following(state, firsts, others):
                steps += 1
                if stuck:
                    self._note(self._stuck, stuck, at, label)
                if broken:
                    self._note_broken(broken, at, label)
                    changed = True
                    continue
                if not difference:
                    continue
                then = state + difference
                if alike_mask:
                    then = self._normal(then, then & alike_mask)
                known = index.get(then)
                if known is None:
                    known = index[then] = len(states)
                    states.append(then)
                    parents.append(at)
                    labels.append(label)
                    self._check(then, known, then ^ state)
                if by == OWN and known != at:
                    changed = True
                    if traps:
                        sources.append(at)
                        targets.append(known)
            if not changed:
                self.quiet.append(at)
            at += 1
            if len(states) > limit or self._over:
                return False
            if not at & 4095 and time.monotonic() > deadline:
                return False
        self.found.steps = steps
        return True

    def _following(self, state: int, firsts: list[Any], others: list[Any]) -> list[tuple[int, int, int, str, str]]:
        """Return what can follow: what goes first alone, if there is such a thing."""
        for shift, woken in firsts:
            for mask, memo, rule in woken[state >> shift & _ONES]:
                following = memo.get(state & mask)
                if following is None:
                    following = memo[state & mask] = self._follow(state & mask, rule)
                if following:
                    return following
        found = []
        for shift, woken in others:
            for mask, memo, rule in woken[state >> shift & _ONES]:
                key = state & mask
                following = memo.get(key)
                if following is None:
                    following = memo[key] = self._follow(key, rule)
                found += following
        return found

    def _follow(self, key: int, rule: Rule) -> list[tuple[int, int, int, str, str]]:
        result = []
        for step in rule.steps(*(self.parts.read(key, name) for name in rule.reads)):
            label = self.name_of.setdefault(step.label, len(self.names))
            if label == len(self.names):
                self.names.append(step.label)
            difference = self.parts.difference(key, step.changes)
            if difference or step.broken or step.stuck:
                result.append((label, step.by, difference, step.broken, step.stuck))
        return result

    def _check(self, state: int, number: int, changed: int) -> None:
        """Note each invariant that a new state breaks. Nothing follows such a state.

        :param changed: the bits in which it differs from the state before it, which breaks none.
        """
        for mask, memo, invariant in self._invariants:
            if not changed & mask:
                continue
            key = state & mask
            word = memo.get(key)
            if word is None:
                word = memo[key] = invariant.broken(*(self.parts.read(key, name) for name in invariant.reads))
            if word:
                self._note_broken(word, number, -1)
                self._dead.add(number)

    def _normal(self, state: int, key: int) -> int:
        """Return the state in which the two interchangeable actors are in their one order."""
        in_order = self._alike.get(key)
        if in_order is None:
            in_order = self._alike[key] = self._in_order(key)
        return state if in_order else self._exchange(state)

    def _in_order(self, key: int) -> bool:
        assert self.system.alike is not None
        reads, in_order = self.system.alike[:2]
        return in_order(*(self.parts.read(key, name) for name in reads))

    def _exchange(self, state: int) -> int:
        assert self.system.alike is not None
        reads, exchange = self.system.alike[2:]
        key = state & self._exchange_mask
        difference = self._exchanged.get(key)
        if difference is None:
            changes = exchange(*(self.parts.read(key, name) for name in reads))
            difference = self._exchanged[key] = self.parts.difference(key, changes)
        return state + difference

    def _note_broken(self, word: str, at: int, label: int) -> None:
        self._note(self._broken, word, at, label)
        self._over = self._over or (self.until is not None and self.until in word)

    @staticmethod
    def _note(where: dict[str, list[int]], word: str, at: int, label: int) -> None:
        known = where.get(word)
        if known is None:
            where[word] = [1, at, label]
        else:
            known[0] += 1

    def trace(self, at: int, last: int = -1) -> list[str]:
        """Return the labels of the steps that lead to a state, and one more."""
        labels = [self.names[last]] if last >= 0 else []
        while at > 0:
            labels.append(self.names[self.labels[at]])
            at = self.parents[at]
        return labels[::-1]

    # --- afterwards --------------------------------------------------------------------------------------------------

    def _look_back(self) -> None:
        found, parts, system = self.found, self.parts, self.system
        goal_mask, goals = parts.mask(system.finished.reads), {}
        finished = bytearray(len(self.states))
        for at, state in enumerate(self.states):
            key = state & goal_mask
            word = goals.get(key)
            if word is None:
                word = goals[key] = system.finished.broken(*(parts.read(key, n) for n in system.finished.reads)) == ''
            finished[at] = word
        found.finished = sum(finished)
        for at in self.quiet:
            world = parts.world(self.states[at])
            word = system.quiet.broken(*(world[name] for name in system.quiet.reads))
            if word and found.complete:
                self._note(self._broken, word, at, -1)
            sketch = system.sketch(world)
            found.quiet[sketch] = found.quiet.get(sketch, 0) + 1
        for word, (count, at, label) in sorted(self._broken.items(), key=lambda item: item[1][1]):
            found.violations[word] = count, self.trace(at, label)
        for word, (count, at, label) in self._stuck.items():
            found.stuck[word] = count, self.trace(at, label)
        if self.traps and found.complete:
            self._find_traps(finished)

    def _find_traps(self, reached: bytearray) -> None:
        """Mark backwards all from which an end can be reached by the world's own steps; the others are traps."""
        sources, targets = self.edges
        count = len(self.states)
        begins = array('i', bytes(4 * (count + 1)))
        for target in targets:
            begins[target + 1] += 1
        for at in range(count):
            begins[at + 1] += begins[at]
        place, back = array('i', begins), array('i', bytes(4 * len(sources)))
        for source, target in zip(sources, targets, strict=True):
            back[place[target]] = source
            place[target] += 1
        work = [at for at in range(count) if reached[at]]
        # Broken invariants are reported by themselves.
        for at in self._dead.union(at for _count, at, _label in self._broken.values()):
            if not reached[at]:
                reached[at] = 1
                work.append(at)
        while work:
            at = work.pop()
            for source in back[begins[at] : begins[at + 1]]:
                if not reached[source]:
                    reached[source] = 1
                    work.append(source)
        first: dict[str, list[int]] = {}
        for at in range(count):
            if not reached[at]:
                self._note(first, self.system.sketch(self.parts.world(self.states[at])), at, -1)
        for word, (number, at, _label) in first.items():
            self.found.traps[word] = number, self.trace(at)
