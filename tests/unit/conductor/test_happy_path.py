# SPDX-License-Identifier: Apache-2.0

"""The size of the path of one migration without a fault: files, and frames to a message.

It begins at the conductor, with the row of an accepted migration. The frames are those between the function of a step
and the method of the RPC client, which is counted too.
"""

from __future__ import annotations

import pathlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import migrator
from tests.unit.conductor.stage import Stage

ROOT = pathlib.Path(migrator.__file__).parent
#: A reader who follows one migration opens this many files at most.
MOST = 49
#: The hypervisor's driver, and what stands in for the rest of the world in a test.
LEFT_OUT = ('virt/', 'testing/', 'simulator/', 'db/sql/watching.py')
#: The functions between that of a step and the RPC client.
MOST_FRAMES = 6


def frames_to(frame: Any) -> list[str]:
    """Return the functions between a step's and the caller of ``frame``; none if no step runs."""
    found: list[str] = []
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename.endswith('/saga/executor.py'):
            return found[-2::-1]
        found.append(frame.f_code.co_name)
    return []


def test_one_migration_goes_through_few_files(build: Callable[..., Stage]) -> None:
    seen: set[str] = set()
    calls: list[list[str]] = []
    counting = False

    def note(frame: Any, event: str, _argument: object) -> None:
        if counting and event == 'call':
            seen.add(frame.f_code.co_filename)
            if frame.f_code.co_filename.endswith('/compute/rpcapi.py') and frame.f_code.co_name == 'send':
                calls.append([*frames_to(frame), frame.f_locals['command'].step])

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        stage = build()
        counting = True
        migration = stage.begin()
        assert stage.end(migration).status == 'completed'
        counting = False
    finally:
        threading.setprofile(None)
        sys.setprofile(before)
    inside = [pathlib.Path(name).relative_to(ROOT).as_posix() for name in seen if name.startswith(f'{ROOT}/')]
    opened = sorted(name for name in inside if not name.startswith(LEFT_OUT))
    assert 'conductor/tasks/live_migrate.py' in opened
    assert 'compute/steps.py' in opened
    assert len(opened) <= MOST, '\n'.join(opened)
    assert {call[-1] for call in calls} >= {'pre_live_migration', 'live_migration', 'post_live_migration_at_source'}
    assert max(map(len, calls)) <= MOST_FRAMES, max(calls, key=len)
