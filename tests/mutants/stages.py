# SPDX-License-Identifier: Apache-2.0

"""The stages in which tests look for a mutant, cheapest first.

When the layout of the tests changes, this is the only file of the harness to change.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence

#: The options of pytest without pytest-xdist.
ALONE = ('-x', '-q', '-p', 'no:cacheprovider')
OPTIONS = (*ALONE, '-n', '0')
PYTEST = ('-m', 'pytest')

#: What one run of Python gets as arguments: paths of tests.
Paths = Sequence[str]


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage.

    :ivar runs: returns the runs of the stage, one after the other, from the root of a tree, the mutated file, and the
        stages that have passed.
    :ivar limit: seconds after which a run counts as hanging. A run that hangs has caught the mutant.
    :ivar module: the module that Python runs.
    :ivar options: further options of pytest.
    :ivar needs: a Python module without which the stage says nothing.
    """

    name: str
    runs: Callable[[pathlib.Path, str, Collection[str]], Sequence[Paths]]
    limit: float
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    module: Sequence[str] = PYTEST
    options: Sequence[str] = OPTIONS
    needs: str | None = None


def _fixed(*paths: str) -> Callable[[pathlib.Path, str, Collection[str]], Sequence[Paths]]:
    return lambda root, file, passed: [paths]


def _near(root: pathlib.Path, file: str, passed: Collection[str]) -> Sequence[Paths]:
    """Return the mirrored test file and its siblings of the same prefix, then the mirrored package."""
    path = pathlib.PurePosixPath(file)
    folder = pathlib.PurePosixPath('tests/unit', *path.parts[1:-1])
    files = sorted(str(folder / found.name) for found in (root / folder).glob(f'test_{path.stem}*.py'))
    package = pathlib.PurePosixPath('tests/unit', path.parts[1])
    return [paths for paths in (files, [str(package)] if (root / package).is_dir() else []) if paths]


def _unit(root: pathlib.Path, file: str, passed: Collection[str]) -> Sequence[Paths]:
    """Return all unit tests but those that have passed already."""
    package = pathlib.PurePosixPath('tests/unit', pathlib.PurePosixPath(file).parts[1])
    return [['tests/unit', *([f'--ignore={package}'] if 'near' in passed and (root / package).is_dir() else [])]]


_SHORT = ('tests/simulation/test_matrix.py', 'tests/simulation/test_seeds.py', 'tests/simulation/test_reexecution.py')

STAGES = (
    Stage('near', _near, 600),
    Stage('unit', _unit, 1800),
    Stage('simulation-short', _fixed(*_SHORT), 900, {'MIGRATOR_CELLS': '40', 'MIGRATOR_SEEDS': '60'}),
    Stage('functional', _fixed('tests/functional'), 2400),
    Stage(
        'simulation',
        _fixed('tests/simulation'),
        3600,
        {'MIGRATOR_SEEDS': '60', 'MIGRATOR_CELLS': '2', 'MIGRATOR_AUDITED': '200'},
    ),
    Stage('real-placement', _fixed('tests/functional'), 2400, options=(*OPTIONS, '--real-placement')),
    Stage('eventlet', _fixed(), 900, module=('-m', 'tests.patched'), options=ALONE, needs='eventlet'),
    Stage('seeds', _fixed('tests/simulation/test_seeds.py'), 2400, {'MIGRATOR_SEEDS': '1000'}),
    Stage('real', _fixed('tests/real', '--ignore=tests/real/libvirt'), 3600, {'CI': 'true'}, needs='pymysql'),
)
BY_NAME = {stage.name: stage for stage in STAGES}

#: What can be given in place of a stage. `test` is what `make test` runs, `ci` what .ci/run does.
GROUPS = {
    'test': ('near', 'unit', 'simulation-short', 'functional'),
    'ci': ('near', 'unit', 'simulation-short', 'functional', 'simulation', 'real-placement', 'eventlet', 'seeds'),
}


def chosen(names: Sequence[str]) -> list[Stage]:
    """Return the named stages, and those of the named groups, cheapest first.

    :raises KeyError: there is no such stage or group.
    """
    wanted = {one for name in names for one in GROUPS.get(name, (name,))}
    unknown = wanted - set(BY_NAME)
    if unknown:
        raise KeyError(sorted(unknown)[0])
    return [stage for stage in STAGES if stage.name in wanted]
