# SPDX-License-Identifier: Apache-2.0

"""tools/elsewhere.sh on a machine where it cannot begin."""

import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(('ci', 'status'), [('', 0), ('true', 1)])
@pytest.mark.parametrize(('user', 'reason'), [('1000', 'it needs root'), ('0', 'there is no debootstrap')])
def test_machine_that_lacks_something_is_named_and_only_ci_fails(tmp_path, user, reason, ci, status):
    for name, text in {'id': f'echo {user}', 'dirname': 'echo tools'}.items():
        (tmp_path / name).write_text(f'#!/bin/sh\n{text}\n')
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ['/bin/bash', 'tools/elsewhere.sh', 'trixie'],
        cwd=ROOT,
        env={'PATH': str(tmp_path), 'CI': ci, 'TMPDIR': str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (status, '')
    assert f'migrator: left out: {reason}' in done.stderr
    assert {one.name for one in tmp_path.iterdir()} == {'id', 'dirname'}
