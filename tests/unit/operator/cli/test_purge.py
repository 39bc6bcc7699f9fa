# SPDX-License-Identifier: Apache-2.0
"""migrator-manage migration purge."""

import re

import pytest

from migrator.db import api


@pytest.fixture
def history(operator):
    """Three migrations of one guest that ended two minutes ago."""
    cloud = operator.cloud
    instance = cloud.boot('one', 'host1')
    for host in ('host2', 'host3', 'host1'):
        assert cloud.live_migrate(instance, host).status_int == 202
        cloud.wait()
    cloud.world.threads.sleep(120)
    return [one.id for one in reversed(cloud.database.migrations.list())]


def left(operator):
    return sorted(one.id for one in operator.cloud.database.migrations.list())


def soon(operator):
    return operator.cloud.database.services.now().isoformat()


def test_a_dry_run_shows_how_many_and_changes_nothing(operator, history):
    text = operator.observed('migration', 'purge', '--before', '1m', '--dry-run')
    assert '2 migrations that ended before' in text
    assert '1 more is kept' in text
    assert 'Nothing was changed.' in text
    assert left(operator) == history
    document = operator.json('migration', 'purge', '--before', '1m', '--dry-run')
    assert (document['dry_run'], document['found'], document['purged'], document['left']) == (True, 2, 0, 2)
    status, out = operator.pastes(text.splitlines()[-1].strip())
    assert (status, left(operator)) == (0, history[2:])
    assert '2 migrations' in out


def test_migrations_that_ended_before_are_purged_and_counted(operator, history):
    document = operator.json('migration', 'purge', '--before', soon(operator))
    assert re.fullmatch(r'[-0-9]{10}T[0-9:]{8}\.[0-9]{6}', document.pop('before'))
    assert document.pop('saga_log') > 10
    assert document == {'dry_run': False, 'found': 2, 'purged': 2, 'left': 0, 'kept': 1, 'instance_actions': 2}
    assert left(operator) == history[2:]
    assert operator.json('migration', 'purge', '--before', soon(operator))['found'] == 0
    assert 'completed' in operator.observed('migration', 'show', history[2])


def test_migrations_that_ended_after_stay(operator, history):
    for before in ('1970-01-01', '2h', '400d', '2000-01-01T00:00:00Z'):
        assert operator.json('migration', 'purge', '--before', before)['purged'] == 0, before
    assert left(operator) == history


def test_purge_deletes_at_most_max_rows(operator, history):
    text = operator.observed('migration', 'purge', '--before', '1m', '--max-rows', '1')
    assert '1 migration that ended before' in text
    assert '1 more can be purged' in text
    assert left(operator) == history[1:]


def test_migrations_are_purged_in_batches(operator, history, monkeypatch):
    monkeypatch.setattr(api, 'PURGE_BATCH', 1)
    assert operator.json('migration', 'purge', '--before', '1m')['purged'] == 2
    assert left(operator) == history[2:]


@pytest.mark.parametrize('before', ['yesterday', '', '30', 'd', '-1d', '30x', '2026-13-01', '9999999999d', '1d\n'])
def test_an_invalid_time_is_named_and_exits_2(refused, before):
    said = refused('migration', 'purge', f'--before={before}')
    assert f'argument --before: {before!r} is not a time' in said
    assert '2026-01-31T12:00:00Z' in said
    assert '30d' in said


@pytest.mark.parametrize('words', [(), ('--before', '1d', '--max-rows', '0'), ('--before', '1d', '--max-rows', 'all')])
def test_other_wrong_usage(refused, words):
    assert refused('migration', 'purge', *words)
