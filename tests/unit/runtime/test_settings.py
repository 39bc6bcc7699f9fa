# SPDX-License-Identifier: Apache-2.0

"""Where the configuration of a service comes from."""

import os
import pathlib
import shutil
import subprocess

import pytest
from oslo_config import cfg

from migrator import exception
from migrator.runtime import settings
from tests.unit.test_units import ROOT, needs

SECRET = 'postgresql+psycopg2://migrator:from-systemd@database/migrator'


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A configuration file, and a directory of credentials beside it."""
    (tmp_path / 'credentials').mkdir()
    (tmp_path / 'credentials/secrets.conf').write_text(f'[database]\nconnection = {SECRET}\n[DEFAULT]\nhost = other\n')
    (tmp_path / 'migrator.conf').write_text('[DEFAULT]\nhost = alpha\n')
    monkeypatch.setenv('CREDENTIALS_DIRECTORY', str(tmp_path / 'credentials'))
    return tmp_path / 'migrator.conf'


def read(*argv):
    from migrator.cmd import api

    conf = settings.read('migrator-api', argv or None)
    settings.complete(conf, [api.KIND.register])
    return conf


def test_credentials_of_systemd_are_read_and_a_named_file_wins_over_them(file):
    conf = read('--config-file', str(file))
    assert (conf.database.connection, conf.host) == (SECRET, 'alpha')


def test_secret_in_the_environment_wins_over_files(file, monkeypatch):
    monkeypatch.setenv('OS_DATABASE__CONNECTION', 'sqlite://')
    assert read('--config-file', str(file)).database.connection == 'sqlite://'


def test_directory_of_the_command_line_replaces_credentials(file, tmp_path):
    (tmp_path / 'of-command-line').mkdir()
    conf = read('--config-file', str(file), '--config-dir', str(tmp_path / 'of-command-line'))
    assert conf.database.connection is None


def test_wsgi_application_of_a_unit_reads_its_directory_and_then_credentials(file, tmp_path, monkeypatch):
    (tmp_path / 'directory').mkdir()
    (tmp_path / 'directory/migrator.conf').write_text('[DEFAULT]\nhost = alpha\n[api]\nlisten_port = 18774\n')
    monkeypatch.setenv('OS_MIGRATOR_CONFIG_DIR', str(tmp_path / 'directory'))
    conf = read()
    assert (conf.database.connection, conf.host, conf.api.listen_port) == (SECRET, 'other', 18774)


@pytest.mark.parametrize(
    'text', ['connection {secret}', '[database]\n= {secret}', '  {secret}', '[{secret}', 'password = {secret}'],
)  # fmt: skip
def test_syntax_error_of_a_file_with_secrets_names_its_line_and_not_its_text(file, tmp_path, text):
    secrets = tmp_path / 'credentials/secrets.conf'
    lines = ['# ours', '', *text.format(secret='s3cr3t').splitlines()]
    secrets.write_text('\n'.join(lines))
    with pytest.raises(exception.ConfigurationError) as caught:
        read('--config-file', str(file))
    assert 's3cr3t' not in str(caught.value)
    assert str(secrets) in str(caught.value)
    assert f'line {len(lines)}: ' in str(caught.value)


@pytest.mark.parametrize('unit', ['migrator-api', 'migrator-compute', 'migrator-conductor'])
def test_systemd_knows_the_drop_in_that_loads_a_secret(tmp_path, unit):
    """As the page on security has it."""
    analyze = needs('systemd-analyze')
    text = (ROOT / f'etc/systemd/{unit}.service').read_text()
    (tmp_path / f'{unit}.service').write_text(text.replace('/usr/local/lib/migrator/bin/', f'{tmp_path}/'))
    shutil.copy('/bin/true', tmp_path / unit)
    drop_ins = tmp_path / 'migrator-.service.d'
    drop_ins.mkdir()
    page = (ROOT / 'doc/source/security.rst').read_text()
    line = next(one.strip() for one in page.splitlines() if one.strip().startswith('LoadCredential='))
    (drop_ins / 'secrets.conf').write_text(f'[Service]\n{line}\n')
    environment = {**os.environ, 'SYSTEMD_UNIT_PATH': f'{tmp_path}:'}
    done = subprocess.run(
        [analyze, 'verify', '--man=no', str(tmp_path / f'{unit}.service')],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ''), done.stderr
    assert line.partition(':')[2] == '/etc/migrator/secrets.conf'
    assert pathlib.Path(line.partition('=')[2].partition(':')[0]).suffix == '.conf'


MISSPELT = """\
[DEFAULT]
max_concurent_live_migrations = 3
debug = true
[databse]
connection = x
[database]
max_retires = 3
[compute]
foo_bar = 1
[placement]
username = migrator
"""
AT_START = [
    'No service has the option [DEFAULT] max_concurent_live_migrations. Is max_concurrent_live_migrations meant?',
    'No service has the option [compute] foo_bar, so it has no effect.',
]


def test_option_that_no_service_has_is_a_warning_at_start_and_of_the_upgrade_check(tmp_path, caplog):
    file = tmp_path / 'migrator.conf'
    file.write_text(MISSPELT)
    conf = settings.read('migrator-api', ['--config-file', str(file)])
    settings.warn_of_unknown_options(conf)
    assert [record.args[0] for record in caplog.records] == AT_START
    assert {*settings.unknown_options(conf)} == {
        *AT_START,
        'No service has the section [databse]. Is [database] meant?',
        'No service has the option [database] max_retires. Is max_retries meant?',
    }


def test_sample_configuration_has_no_option_that_is_unknown(tmp_path):
    text = (ROOT / 'etc/migrator/migrator.conf.sample').read_text()
    every = [line.removeprefix('#') for line in text.splitlines() if not line.startswith(('# ', '##')) and line != '#']
    file = tmp_path / 'migrator.conf'
    file.write_text('\n'.join(line for line in every if line.startswith('[') or '=' in line))
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(file)], project='migrator')
    assert settings.unknown_options(conf) == []


def test_sections_are_found_in_any_case_and_one_that_auth_section_names_is_known(tmp_path):
    file = tmp_path / 'migrator.conf'
    file.write_text('[Database]\nmax_retries = 3\n[placement]\nauth_section = keystone\n[keystone]\nusername = x\n')
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(file)], project='migrator')
    assert settings.unknown_options(conf) == []
