# SPDX-License-Identifier: Apache-2.0

"""The wheel, built by pip from the files that git tracks. pip downloads what it needs."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
#: Runs a compute host in an environment that has nothing but migrator.
HOST = ROOT / 'tests' / 'real' / 'installed_host.py'
pytestmark = pytest.mark.slow


def tracked():
    done = subprocess.run(['git', 'ls-files'], cwd=ROOT, capture_output=True, text=True, check=True)
    return [pathlib.PurePath(line) for line in done.stdout.splitlines() if (ROOT / line).is_file()]


@pytest.fixture
def tree(tmp_path):
    """Return a copy of this tree with the files that git tracks."""
    for path in tracked():
        (tmp_path / 'tree' / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / 'tree' / path)
    return tmp_path / 'tree'


def test_wheel_has_each_file_of_the_package_and_each_that_an_operator_copies(tree, tmp_path):
    made = tmp_path / 'made'
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
    named = {
        'migrator/db/schema/env.py',
        'migrator/db/schema/versions/baseline.py',
        'migrator/testing/driver_contract.py',
        f'{share}/migrator.conf.sample',
    }
    named |= {f'{share}/policy.yaml.sample', f'{share}/systemd/migrator-api.service'}
    assert named <= packed


def first_command(page):
    """Return the first command that a page has."""
    return re.search(r'::\n\n {4}(.+)\n', (ROOT / page).read_text())[1]


@pytest.mark.timeout(600)
def test_first_command_of_the_pages_installs_migrator_drain_and_a_host(tree, tmp_path):
    command = first_command('README.rst')
    assert command == first_command('doc/source/empty-a-host-of-openstack.rst')
    subprocess.run([sys.executable, '-m', 'venv', tmp_path / 'venv'], check=True)
    # the path of an activated environment; PIP_USER would have pip refuse it
    scripts = tmp_path / 'venv' / 'bin'
    machine = {**os.environ, 'PATH': f'{scripts}:{os.environ["PATH"]}', 'PIP_USER': '0', 'PYTHONPATH': ''}
    subprocess.run(['sh', '-c', command], cwd=tree, env=machine, check=True)
    done = subprocess.run(
        ['migrator-drain', '--help'], cwd=tmp_path, env=machine, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith('usage: migrator-drain ')
    found = shutil.which('migrator-drain', path=machine['PATH'])
    assert found == str(scripts / 'migrator-drain')
    subprocess.run(['pip', 'install', '--quiet', 'eventlet'], env=machine, check=True)
    for threads in ('native', 'patched'):
        done = subprocess.run(
            [scripts / 'python', '-W', 'ignore', HOST, threads], cwd=tmp_path, env=machine, capture_output=True,
            text=True, check=False, timeout=120,
        )  # fmt: skip
        assert (done.stdout, done.returncode) == ('futurist.DynamicThreadPoolExecutor\n', 0), done.stderr
