# SPDX-License-Identifier: Apache-2.0

"""A step of a host is one row, from which every list of steps follows, and its body."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]

ROW = """    HostStep(name='warm_up_at_source', at=_SOURCE, saga=_LIVE, undo='cool_down_at_source', ends=True,
             exchanges=True),
    HostStep(name='cool_down_at_source', at=_SOURCE, saga=_LIVE, ends=True, restores=True, removes=True),
    HostStep(name='live_migration', at="""
BODY = """    @step(rpcapi.SHORT_WAIT)
    def warm_up_at_source(self, work: Work, instance: Instance) -> None:
        pass

    @step(cancels=True)
    def cool_down_at_source(self, work: Work, instance: Instance) -> None:
        pass

    @step(rpcapi.SHORT_WAIT)
    def pre_live_migration(self"""
FOUND = """
import oslo_messaging
from migrator.compute.manager import ComputeManager
from migrator.objects import steps
from migrator.simulator.workloads import plans
from migrator.testing.hypervisor import acts

new = 'warm_up_at_source', 'cool_down_at_source'
served = oslo_messaging.ExplicitRPCAccessPolicy()
for step in new:
    assert step in steps.COMMANDS and step in steps.AT_SOURCE and step in steps.ENDING
    assert served.is_allowed(ComputeManager, step)
    assert step in acts.ACTING
    assert step in plans.HANGS[3] and step in plans.HANGS[4]
assert steps.UNDOS[new[0]] == new[1]
assert new[0] in steps.EXCHANGING and new[1] in steps.RESTORING and new[1] in steps.REMOVING
"""


def test_a_new_step_of_a_host_needs_two_files_of_the_product(tmp_path: pathlib.Path) -> None:
    tree = tmp_path / 'migrator'
    shutil.copytree(ROOT / 'migrator', tree, ignore=shutil.ignore_patterns('__pycache__'))
    for name, old, new in (
        ('objects/steps.py', "    HostStep(name='live_migration', at=", ROW),
        ('compute/steps.py', '    @step(rpcapi.SHORT_WAIT)\n    def pre_live_migration(self', BODY),
    ):
        text = (tree / name).read_text(encoding='utf-8')
        assert text.count(old) == 1
        (tree / name).write_text(text.replace(old, new), encoding='utf-8')
    done = subprocess.run(
        [sys.executable, '-c', FOUND],
        env={**os.environ, 'PYTHONPATH': str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
