# SPDX-License-Identifier: Apache-2.0

"""The base of the commands of migrator-manage: tables, times and arguments."""

import argparse
import datetime

import pytest
from oslo_config import cfg

from migrator import context, exception, executors
from migrator.cmd import manage
from migrator.operator.cli import command as manage_command

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def test_table_in_pipe_has_one_line_per_row_and_dash_in_empty_cell():
    long = 'x' * 5000
    lines = manage_command.table(('ONE', 'TWO'), [(long, None), ('', 'ü'), (1, NOW)]).splitlines()
    assert lines[0].split() == ['ONE', 'TWO']
    assert lines[1].split() == [long, '-']
    assert lines[2].split() == ['-', 'ü']
    assert lines[3].endswith('  2026-01-01 00:00:00')
    assert len(lines) == 4


def test_a_narrow_terminal_folds_cells_and_loses_nothing(monkeypatch):
    monkeypatch.setattr('sys.stdout.isatty', lambda: True, raising=False)
    monkeypatch.setenv('COLUMNS', '40')
    lines = manage_command.table(('ONE', 'TWO'), [('a' * 60, 'b' * 60)]).splitlines()
    assert max(map(len, lines)) <= 40
    assert ''.join(lines).count('a') == 60
    assert ''.join(lines).count('b') == 60


def test_markup_in_a_cell_is_printed_as_text():
    assert '[red]x[/red] :smile:' in manage_command.table(('A',), [('[red]x[/red] :smile:',)])


@pytest.mark.parametrize(
    ('seconds', 'words'),
    [
        (0.4, '0 s'), (99.9, '99 s'), (100, '1 min 40 s'), (600, '10 min'), (5999, '99 min 59 s'), (7200, '2 h'),
        (7260, '2 h 1 min'), (47 * 3600, '47 h'), (48 * 3600, '2 d'), (53 * 3600, '2 d 5 h'), (-30, '30 s'),
    ],
)  # fmt: skip
def test_span_in_words(seconds, words):
    assert manage_command.span(seconds) == words


def test_ago_in_words():
    assert manage_command.ago(NOW - datetime.timedelta(seconds=3), NOW) == '3 s ago'
    assert manage_command.ago(None, NOW) is None


def test_a_uuid_is_spelled_as_the_database_has_it():
    assert manage_command.uuid('6EF5D0B80D2B4D369D3A0D7B0A6C3C11') == '6ef5d0b8-0d2b-4d36-9d3a-0d7b0a6c3c11'
    with pytest.raises(argparse.ArgumentTypeError, match="'web' is not a uuid"):
        manage_command.uuid('web')


@pytest.mark.parametrize('text', ['999999d', '365001d', 'soon', '0001-01-01T00:00:00+14:00'])
def test_time_that_no_calendar_has_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match='an age of at most 365000d'):
        manage_command.past(text)


def test_age_is_a_span():
    assert manage_command.past('365000d') == datetime.timedelta(days=365000)
    assert manage_command.past('90m') == datetime.timedelta(minutes=90)


@pytest.mark.parametrize('text', ['0', '-1', '1.5', '1e3', '', '9999999999', '9' * 5000, '٣'])
def test_the_refusal_of_an_invalid_number_names_both_bounds(text):
    with pytest.raises(argparse.ArgumentTypeError) as raised:
        manage_command.at_least(1)(text)
    assert str(raised.value) == f'{text[:40]!r} is not a whole number from 1 to 999999999'


def test_the_bounds_themselves_are_accepted():
    assert [manage_command.at_least(1)(text) for text in ('1', '999999999')] == [1, manage_command.MOST]


@pytest.mark.parametrize(
    ('given', 'command'),
    [
        ({'config_file': []}, 'migrator-manage'),
        ({'config_file': ['/a.conf', 'my b.conf']}, "migrator-manage --config-file /a.conf --config-file 'my b.conf'"),
        (
            {'config_file': ['/a.conf'], 'config_dir': ['/a.d']},
            'migrator-manage --config-file /a.conf --config-dir /a.d',
        ),
        ({'config_file': [], 'config_dir': ['a$b']}, "migrator-manage --config-dir 'a$b'"),
    ],
)
def test_a_command_that_is_printed_names_the_configuration_that_was_given(given, command):
    asked = manage_command.Asked(cfg.ConfigOpts(), argparse.Namespace(**given), executors.NativeThreads())
    assert asked.command == command


def test_wake_is_refused_with_an_unknown_upgrade_level(tmp_path):
    file = tmp_path / 'migrator.conf'
    file.write_text('[DEFAULT]\ntransport_url = fake://\n[upgrade_levels]\nconductor = train\n')
    asked = manage_command.Asked(manage.read_conf([str(file)]), argparse.Namespace(), executors.NativeThreads())
    with pytest.raises(exception.ConfigurationError, match=r'\[upgrade_levels\] conductor'):
        asked.wake(context.admin_context(), 'some-uuid', None)
