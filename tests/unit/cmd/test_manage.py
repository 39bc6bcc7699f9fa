# SPDX-License-Identifier: Apache-2.0

"""migrator-manage against real SQLite files: exit statuses, one line on stderr, and no password in it."""

import json
import os
import pathlib
import sqlite3
import sys
import time

import pytest

from migrator import exception
from migrator.cmd import manage
from migrator.db.schema import sync
from tests import forked, templates
from tests.unit.cmd import processes

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.delenv('OS_DATABASE__CONNECTION', raising=False)


@pytest.fixture
def run(capsys):
    """Run a command, and return exit status, stdout and stderr."""

    def run(*words):
        status = manage.main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert err.count('\n') == (1 if err else 0), err
        return status, out, err

    return run


@pytest.fixture
def configured(tmp_path):
    """Return a configuration file that names this connection."""

    def configured(connection):
        file = tmp_path / 'migrator.conf'
        file.write_text(f'[database]\nconnection = {connection}\n')
        return file

    return configured


@pytest.fixture
def sqlite(tmp_path, configured):
    return configured(f'sqlite:///{tmp_path}/migrator.sqlite')


def test_sync_upgrades_the_schema_and_can_be_repeated(run, sqlite):
    assert run('--config-file', sqlite, 'db', 'sync') == (
        0,
        f'The database schema is at {sync.head()}, and was at nothing.\n',
        '',
    )
    assert run('db', 'sync', '--config-file', sqlite) == (0, f'The database schema is at {sync.head()} already.\n', '')


def test_sync_answers_in_json(run, sqlite):
    status, out, err = run('--config-file', sqlite, 'db', 'sync', '--json')
    assert (status, json.loads(out), err) == (0, {'version': sync.head(), 'before': None, 'changed': True}, '')


def test_version_exits_0_only_for_the_needed_schema(run, sqlite):
    status, out, err = run('--config-file', sqlite, '--json', 'db', 'version')
    assert (status, json.loads(out)) == (1, {'version': None, 'wanted': sync.head(), 'current': False})
    assert 'migrator-manage db sync' in err
    run('--config-file', sqlite, 'db', 'sync')
    status, out, err = run('--config-file', sqlite, '--json', 'db', 'version')
    assert (status, json.loads(out)['current'], err) == (0, True, '')


@pytest.mark.parametrize('verb', ['sync', 'version'])
def test_a_schema_of_another_commit_is_left_alone(run, sqlite, tmp_path, verb):
    run('--config-file', sqlite, 'db', 'sync')
    with sqlite3.connect(tmp_path / 'migrator.sqlite') as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    status, _out, err = run('--config-file', sqlite, 'db', verb)
    assert status == 1
    assert '9999' in err
    assert 'another commit of migrator has written it' in err


def test_the_environment_may_name_the_connection(run, monkeypatch, tmp_path):
    monkeypatch.setenv('OS_DATABASE__CONNECTION', f'sqlite:///{tmp_path}/there.sqlite')
    assert run('db', 'sync')[0] == 0
    assert (tmp_path / 'there.sqlite').exists()


def test_a_command_prints_no_warning_of_a_library(tmp_path):
    arguments = processes.configure(tmp_path)
    with processes.running(tmp_path, 'manage', *arguments, 'drain', 'plan', 'host1', fresh=True) as command:
        assert command.status() == 1, command.text()
        assert [line[:35] for line in command.lines()] == ['migrator-manage: Compute host host1'], command.text()


def test_ctrl_c_while_the_command_line_is_read_is_one_line(run, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(manage, 'make_parser', interrupted)
    assert run('db', 'version') == (130, '', 'migrator-manage: interrupted\n')


def test_missing_connection_exits_2_with_option_and_example(run):
    status, out, err = run('db', 'sync')
    assert (status, out) == (2, '')
    assert '[database] connection' in err
    assert 'postgresql+psycopg2://USER:PASSWORD@HOST/migrator' in err


@pytest.mark.parametrize(
    'connection',
    [
        'migrator.sqlite',
        'postgresql:/u:secret@host/migrator',
        'postgresql://u:secret@host:port/migrator',
        'nosuch://u:secret@host/migrator',
        'postgresql+nosuch://u:secret@host/migrator',
        'postgresql+pg8000://u:se@cret@host/migrator',
    ],
)
def test_invalid_url_exits_2_without_its_password(run, configured, connection):
    status, _out, err = run('--config-file', configured(connection), 'db', 'sync')
    assert status == 2
    assert '[database] connection' in err
    assert 'give ' in err or 'install it' in err
    assert 'secret' not in err
    assert 'cret@' not in err


def test_unreachable_server_is_reported_at_once_without_its_password(run, configured, unused_port):
    pytest.importorskip('psycopg2')
    began = time.monotonic()
    connection = f'postgresql+psycopg2://u:secret@127.0.0.1:{unused_port}/migrator'
    status, _out, err = run('--config-file', configured(connection), 'db', 'sync')
    assert status == 3
    assert 'The database is not reachable' in err
    assert 'secret' not in err
    assert time.monotonic() - began < 10


def test_file_that_cannot_be_opened_exits_2_with_the_option(run, configured, tmp_path):
    status, _out, err = run('--config-file', configured(f'sqlite:///{tmp_path}/no/such/folder/x.sqlite'), 'db', 'sync')
    assert status == 2
    assert err.startswith('migrator-manage: Option [database] connection is ')
    assert 'unable to open database file' in err
    assert err.count('\n') == 1


def test_refused_password_exits_2_and_is_not_printed(run, configured, tmp_path, monkeypatch):
    pytest.importorskip('psycopg2')

    def refuse(engine):
        reason = '(psycopg2.OperationalError) FATAL:  password authentication failed for user "migrator"'
        raise exception.DatabaseUnreachable(reason=reason)

    monkeypatch.setattr(sync, 'check', refuse)
    status, _out, err = run(
        '--config-file', configured('postgresql+psycopg2://migrator:guessed@db/migrator'), 'migration', 'list'
    )
    assert status == 2
    assert '[database] connection' in err
    assert 'password authentication failed' in err
    assert 'guessed' not in err
    assert err.count('\n') == 1


def test_closed_pipe_prints_nothing(tmp_path):
    """``migrator-manage ... | head -1`` once printed a traceback."""
    database = templates.database(tmp_path)
    environment = {**os.environ, 'OS_DATABASE__CONNECTION': f'sqlite:///{database}'}
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, '-m', 'migrator.cmd.manage', 'migration', 'list']
    with os.fdopen(writing, 'wb') as unread:
        done = forked.run(command, stdout=unread, env=environment, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stderr) == (141, '')


def test_file_that_is_not_a_database_is_reported_in_one_line(run, configured, tmp_path):
    (tmp_path / 'poem.txt').write_text('shall I compare thee to a summer night?\n' * 100)
    status, _out, err = run('--config-file', configured(f'sqlite:///{tmp_path}/poem.txt'), 'db', 'sync')
    assert status == 1
    assert 'file is not a database' in err


@pytest.mark.parametrize('text', [None, '[database\n', 'connection = x\n'])
def test_a_configuration_file_that_cannot_be_read_is_usage(run, tmp_path, text):
    file = tmp_path / 'bad.conf'
    if text:
        file.write_text(text)
    status, _out, err = run('--config-file', file, 'db', 'sync')
    assert status == 2
    assert 'bad.conf' in err


def test_an_option_of_the_wrong_kind_is_usage(run, tmp_path):
    file = tmp_path / 'migrator.conf'
    file.write_text(f'[database]\nconnection = sqlite:///{tmp_path}/x.sqlite\nretry_interval = soon\n')
    status, _out, err = run('--config-file', file, 'db', 'sync')
    assert status == 2
    assert 'retry_interval' in err


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        ('[placement]\ntimeout = x', "Option [placement] timeout is 'x': "),
        ('[DEFAULT]\nservice_down_time = x', "Option [DEFAULT] service_down_time is 'x': "),
        ('[conductor]\nlease =', "Option [conductor] lease is '': give a number of 1 or more."),
    ],
)
def test_invalid_option_is_reported_with_value_and_accepted_values(run, tmp_path, text, said):
    file = tmp_path / 'migrator.conf'
    file.write_text(f'[database]\nconnection = sqlite:///{tmp_path}/x.sqlite\n{text}\n')
    status, _out, err = run('--config-file', file, 'db', 'version')
    assert (status, err.startswith(f'migrator-manage: {said}'), 'give ' in err) == (2, True, True)


@pytest.mark.parametrize('words', [(), ('db',), ('db', 'burn'), ('cloud',), ('db', 'sync', '--loud'), ('--js', 'db')])
def test_unknown_command_exits_2(run, words):
    status, out, err = run(*words)
    assert (status, out) == (2, '')
    assert err.startswith('migrator-manage')
    assert '--help' in err


def test_help_exits_0_with_the_exit_statuses(capsys):
    assert manage.main(['--help']) == 0
    assert 'Exit status: 0 success' in capsys.readouterr().out
