# SPDX-License-Identifier: Apache-2.0

"""What was measured: kept in a JSON file, printed as a table, and compared with another measurement."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.mutants.mutant import Mutant
from tests.mutants.mutants import BY_NAME

UNCAUGHT = 'not caught'


@dataclasses.dataclass
class Result:
    """What became of one mutant.

    :ivar digest: of the change that was measured.
    :ivar passed: the stages that did not see it.
    :ivar caught_by: the stage that did, or None.
    :ivar test: which test failed first.
    :ivar again: whether that test fails by itself too; None: not known. A race may need luck to be seen.
    :ivar seconds: how long each stage took.
    """

    digest: str
    passed: list[str] = dataclasses.field(default_factory=list)
    caught_by: str | None = None
    test: str | None = None
    again: bool | None = None
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)


Results = dict[str, Result]


def read(path: pathlib.Path) -> Results:
    """Return the results in a file; none if there is no such file."""
    if not path.exists():
        return {}
    return {name: Result(**fields) for name, fields in json.loads(path.read_text(encoding='utf-8')).items()}


def write(path: pathlib.Path, results: Mapping[str, Result]) -> None:
    """Write results, in one piece: a reader, or the next run, finds the old file or the new one."""
    fields: dict[str, Any] = {name: dataclasses.asdict(one) for name, one in sorted(results.items())}
    fresh = path.with_name(f'{path.name}.part')
    fresh.write_text(json.dumps(fields, indent=1) + '\n', encoding='utf-8')
    os.replace(fresh, path)


def line(name: str, result: Result, stages: Iterable[str]) -> str:
    """Return what is printed when a mutant has ended."""
    seconds = sum(result.seconds.get(stage, 0.0) for stage in stages)
    once = ', not again by itself' if result.again is False else ''
    found = f'{result.caught_by} ({result.test}{once})' if result.caught_by else UNCAUGHT.upper()
    return f'{name}: {found}, {seconds:.0f} s'


def table(results: Mapping[str, Result], stages: Sequence[str]) -> str:
    """Return how many mutants each stage has caught, and which nothing has."""
    count = collections.Counter(one.caught_by or UNCAUGHT for one in results.values())
    rows = [(name, count[name], _spent(results, name)) for name in stages]
    rows += [(name, count[name], _spent(results, name)) for name in sorted(set(count) - {*stages, UNCAUGHT})]
    rows.append((UNCAUGHT, count[UNCAUGHT], 0.0))
    lines = ['', f'{"stage":<18} {"mutants":>7} {"minutes":>8}']
    lines += [f'{name:<18} {number:>7} {seconds / 60:>8.1f}' for name, number, seconds in rows]
    left = [name for name, one in results.items() if one.caught_by is None]
    if left:
        lines += ['', 'Not caught:']
        lines += [f'  {name}: {_breaks(name)}' for name in left]
    once = [name for name, one in results.items() if one.again is False]
    if once:
        lines += ['', 'Caught by a test that passes when it runs alone:']
        lines += [f'  {name}: {results[name].test}' for name in once]
    return '\n'.join(lines)


def _spent(results: Mapping[str, Result], stage: str) -> float:
    return sum(one.seconds.get(stage, 0.0) for one in results.values())


def _breaks(name: str) -> str:
    mutant: Mutant | None = BY_NAME.get(name)
    return mutant.breaks if mutant is not None else '(there is no such mutant any more)'


def compare(before: Mapping[str, Result], after: Mapping[str, Result]) -> tuple[str, list[str]]:
    """Return both stages of each mutant, and the mutants that only the first measurement has caught.

    A mutant that was not measured again counts as not caught, unless it was taken off the list or has changed.
    """
    lines = [f'{"mutant":<48} {"before":<18} {"after":<18}']
    lost = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        mark = ''
        if old is not None and old.caught_by and not (new and new.caught_by) and name in BY_NAME:
            if BY_NAME[name].digest == old.digest:
                lost.append(name)
                mark = '  LOST'
        lines.append(f'{name:<48} {_stage(old):<18} {_stage(new):<18}{mark}'.rstrip())
    return '\n'.join(lines), lost


def _stage(result: Result | None) -> str:
    return 'not measured' if result is None else result.caught_by or UNCAUGHT
