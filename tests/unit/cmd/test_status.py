# SPDX-License-Identifier: Apache-2.0


import contextlib
import json
import sqlite3

import pytest

from migrator import executors
from migrator.cmd import status
from migrator.db.api import Database
from migrator.objects import service
from migrator.runtime import http_server
from tests.unit.cmd.processes import configure
from tests.unit.db import bare


def placement_of(version):
    """Return the answers of a Placement of a version, as far as the checks need them."""

    def app(environ, start_response):
        start_response('200 OK', [('Content-Type', 'application/json')])
        document = {'versions': [{'max_version': version}], 'resource_classes': []}
        return [json.dumps(document).encode()]

    return app


@pytest.fixture
def placement():
    running = []

    def at(version):
        running.append(http_server.listen(placement_of(version), '127.0.0.1', 0))
        return f'[placement]\nendpoint_override = {running[-1].url}\n'

    yield at
    for one in running:
        one.stop()


def check(arguments, capsys):
    """Return the exit status, and the output in one line."""
    found = status.main([*arguments, 'upgrade', 'check'])
    return found, ' '.join(capsys.readouterr().out.replace('|', ' ').split())


def test_ready_installation_exits_0(tmp_path, placement, capsys):
    found, said = check(configure(tmp_path, placement('1.39')), capsys)
    assert found == 0
    assert said.count('Result: Success') == 6
    assert 'there are no compute services yet' in said


def test_old_schema_and_unreachable_placement_are_failures(tmp_path, capsys):
    found, said = check(configure(tmp_path, schema=False), capsys)
    assert found == 2
    assert said.count("run 'migrator-manage db sync'") == 4
    assert 'Placement is not reachable' in said


def test_a_placement_that_is_too_old_is_a_failure(tmp_path, placement, capsys):
    found, said = check(configure(tmp_path, placement('1.9')), capsys)
    assert found == 2
    assert 'microversion 1.9 at most, and 1.39 is needed' in said


@pytest.mark.parametrize(
    ('version', 'exit_status', 'words'),
    [(service.CURRENT_VERSION, 0, f'1, each of version {service.CURRENT_VERSION}'), (2, 1, 'host1 (2)')],
    ids=['of this release: counted', 'of an older release: a warning'],
)
def test_versions_of_computes_are_checked(tmp_path, placement, capsys, version, exit_status, words):
    arguments = configure(tmp_path, placement('1.39'))
    database = Database(f'sqlite:///{tmp_path}/migrator.sqlite', executors.NativeThreads())
    database.services.report('host1', 'nova-compute', version, 'boot')
    database.close()
    found, said = check(arguments, capsys)
    assert (found, words in said) == (exit_status, True), said


def test_a_conductor_of_an_older_version_is_a_warning_while_it_is_up(tmp_path, placement, capsys):
    arguments = configure(tmp_path, placement('1.39'))
    database = Database(f'sqlite:///{tmp_path}/migrator.sqlite', executors.NativeThreads())
    database.conductors.register('1', 'old1', 60)
    database.services.report('old1', 'nova-conductor', 2)
    found, said = check(arguments, capsys)
    assert (found, 'older than service version' in said, 'old1 (2)' in said) == (1, True, True)
    database.conductors.retire('1', 'old1')
    database.close()
    found, said = check(arguments, capsys)
    assert (found, 'conductors that are up: 0' in said) == (0, True)


def test_migrations_without_uuid_are_a_warning_with_the_command(tmp_path, placement, capsys):
    arguments = configure(tmp_path, placement('1.39'))
    with contextlib.closing(sqlite3.connect(tmp_path / 'migrator.sqlite')) as connection, connection:
        bare.insert(connection.execute, 2)
    found, said = check(arguments, capsys)
    assert found == 1
    assert '2 migrations have none: run migrator-manage db online_data_migrations' in said


def test_unreachable_database_is_a_failure(tmp_path, placement, capsys):
    away = f'{placement("1.39")}[database]\nconnection = postgresql+psycopg2://u:secret@127.0.0.1:1/migrator'
    pytest.importorskip('psycopg2')
    found, said = check(configure(tmp_path, away, schema=False), capsys)
    assert (found, said.count('The database is not reachable'), 'secret' in said) == (2, 4, False)


def test_unexpected_error_exits_255(tmp_path, placement, capsys, monkeypatch):
    monkeypatch.setattr(status.Checks, '_services', lambda self: 1 / 0)
    assert check(configure(tmp_path, placement('1.39')), capsys)[0] == 255


def test_upgrade_check_json_is_one_document(tmp_path, placement, capsys):
    assert status.main([*configure(tmp_path, placement('1.39')), 'upgrade', 'check', '--json']) == 0
    document = json.loads(capsys.readouterr().out)
    assert [check['result'] for check in document['checks']] == [0] * 6


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        ('[conductor]\nlease = soon', "Option [conductor] lease is 'soon'"),
        ('[compute]\nservice_version_cap = 99', 'Option [compute] service_version_cap is 99'),
        ('[upgrade_levels]\nconductor = 9', "Option [upgrade_levels] conductor is '9'"),
    ],
)
def test_a_wrong_option_is_one_line_and_status_2(text, words, tmp_path, capsys):
    assert status.main([*configure(tmp_path, text, schema=False), 'upgrade', 'check']) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1
