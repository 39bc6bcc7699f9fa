# SPDX-License-Identifier: Apache-2.0

"""What an operator copies to /etc: the units of systemd and the files beside them."""

import configparser
import os
import pathlib
import re
import shutil
import subprocess
import tomllib

import pytest

from migrator.runtime import service

ROOT = pathlib.Path(__file__).resolve().parents[2]
UNITS = sorted(ROOT.glob('etc/systemd/*.service'))
INSTALLED = '/usr/local/lib/migrator/bin/'


def needs(command):
    """Return the path of a command of bindep.txt. In CI it has to be there."""
    found = shutil.which(command)
    if found is None and not os.environ.get('CI'):
        pytest.skip(f'{command} is not installed (tools/packages.sh test installs it)')
    assert found is not None, f'{command} is missing'
    return found


def read(unit):
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str
    parsed.read(unit)
    return parsed


def test_there_is_a_unit_of_each_service_and_it_runs_that():
    assert [unit.stem for unit in UNITS] == ['migrator-api', 'migrator-compute', 'migrator-conductor']
    scripts = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['scripts']
    for unit in UNITS:
        command = read(unit)['Service']['ExecStart'].split()[0]
        assert command == INSTALLED + unit.stem
        assert unit.stem in scripts


def test_units_differ_only_in_what_they_run_and_in_what_libvirt_needs():
    own = {'ExecStart', 'Description', 'After', 'ReadWritePaths', 'PrivateDevices'}
    shared = [{(part, key, value) for part in ('Unit', 'Service', 'Install') for key, value in read(unit)[part].items()
               if key not in own} for unit in UNITS]  # fmt: skip
    assert shared[0] == shared[1] == shared[2]


def test_wrong_configuration_is_not_restarted():
    assert all(read(unit)['Service']['RestartPreventExitStatus'] == str(service.USAGE) for unit in UNITS)


def test_systemd_knows_every_line_of_the_units(tmp_path):
    analyze = needs('systemd-analyze')
    for unit in UNITS:
        text = unit.read_text().replace(INSTALLED, f'{tmp_path}/')
        (tmp_path / unit.stem).symlink_to('/bin/true')
        (tmp_path / unit.name).write_text(text)
        done = subprocess.run(
            [analyze, 'verify', '--man=no', str(tmp_path / unit.name)], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ''), done.stderr


def test_user_of_the_units_is_made_and_owns_the_logs_that_are_rotated():
    sysusers = needs('systemd-sysusers')
    done = subprocess.run(
        [sysusers, '--dry-run', str(ROOT / 'etc/sysusers.d/migrator.conf')], capture_output=True, text=True, check=True
    )
    user = read(UNITS[0])['Service']['User']
    assert f"user '{user}'" in done.stderr or user in pathlib.Path('/etc/passwd').read_text()
    rotated = (ROOT / 'etc/logrotate.d/migrator').read_text()
    assert f'/var/log/{read(UNITS[0])["Service"]["LogsDirectory"]}/*.log' in rotated
    assert f'su {user} {user}' in rotated


def test_wheel_has_every_file_of_etc_that_is_to_be_copied():
    named = tomllib.loads((ROOT / 'pyproject.toml').read_text())['tool']['setuptools']['data-files']
    packed = {path for patterns in named.values() for pattern in patterns for path in ROOT.glob(pattern)}
    there = {path for path in (ROOT / 'etc').rglob('*') if path.is_file() and 'generator' not in path.name}
    assert packed == there


def test_install_page_closes_each_file_to_others_before_it_writes_secrets_to_it():
    page = (ROOT / 'doc/source/install.rst').read_text()
    secret = re.compile(r'\$(secret|database|identity)\b')
    files = [
        (found[1], page[: found.start()])
        for found in re.finditer(r'^ +cat >+ (\S+) <<END\n(.*?)^ +END$', page, re.DOTALL | re.MULTILINE)
        if secret.search(found[2])
    ]
    assert [pathlib.Path(file).name for file, _before in files] == ['keystone.conf', 'placement.conf', 'secrets.conf']
    for file, before in files:
        assert re.search(rf'^ +install .*-m 06[04]0 .*/dev/null {file}$', before, re.MULTILINE), file
