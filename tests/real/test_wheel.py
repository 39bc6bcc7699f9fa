# SPDX-License-Identifier: Apache-2.0

"""The wheel, built by pip from the files that git tracks. pip downloads what builds it."""

import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


def tracked():
    done = subprocess.run(['git', 'ls-files'], cwd=ROOT, capture_output=True, text=True, check=True)
    return [pathlib.PurePath(line) for line in done.stdout.splitlines() if (ROOT / line).is_file()]


def test_wheel_has_each_file_of_the_package_and_each_that_an_operator_copies(tmp_path):
    tree, made = tmp_path / 'tree', tmp_path / 'made'
    for path in tracked():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tree / path)
    command = [sys.executable, '-m', 'pip', 'wheel', '--quiet', '--no-deps', '--wheel-dir', str(made), str(tree)]
    subprocess.run(command, check=True)
    (wheel,) = made.glob('openstack_migrator-*.whl')
    name = '-'.join(wheel.name.split('-')[:2])
    with zipfile.ZipFile(wheel) as opened:
        packed = {one for one in opened.namelist() if '.dist-info/' not in one}
    package = {str(path) for path in tracked() if path.parts[0] == 'migrator'}
    share = f'{name}.data/data/share/migrator'
    copied = {
        f'{share}/{path.relative_to("etc")}'.replace('migrator/migrator/', 'migrator/')
        for path in tracked()
        if path.parts[0] == 'etc' and 'generator' not in path.name
    }
    assert packed == package | copied
    # what an operator, alembic and the author of a driver look for by name
    revisions = {f'migrator/db/schema/versions/{path.name}' for path in ROOT.glob('migrator/db/schema/versions/0*.py')}
    named = {'migrator/db/schema/env.py', 'migrator/testing/driver_contract.py', f'{share}/migrator.conf.sample'}
    named |= {f'{share}/policy.yaml.sample', f'{share}/systemd/migrator-api.service', *revisions}
    assert named <= packed
