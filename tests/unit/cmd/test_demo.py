# SPDX-License-Identifier: Apache-2.0

"""The options and the screen of migrator-demo, without a cloud."""

from __future__ import annotations

import dataclasses
import datetime
import io

import pytest
import rich.console

from migrator.cmd import demo
from migrator.demo import options, screen
from migrator.objects import Migration

START = datetime.datetime(2026, 11, 5, 10, 0, tzinfo=datetime.UTC)


@pytest.fixture
def refused(capsys):
    """Run with wrong options, and return the one line on stderr."""

    def refused(*words):
        assert demo.main([str(word) for word in words]) == 2
        out, err = capsys.readouterr()
        assert out == ''
        assert err.count('\n') == 1, err
        assert err.startswith('migrator-demo: ')
        return err

    return refused


@pytest.mark.parametrize(
    ('option', 'value', 'would_do'),
    [
        ('--hosts', '1', 'a whole number of 2 or more'),
        ('--hosts', 'many', 'a whole number of 2 or more'),
        ('--hosts', '2.5', 'a whole number of 2 or more'),
        ('--instances', '0', 'a whole number of 1 or more'),
        ('--max-concurrent', '0', 'a whole number of 1 or more'),
        ('--guest-memory', '0', 'a whole number of 1 or more'),
        ('--guest-memory', '-5', 'a whole number of 1 or more'),
        ('--dirty-rate', '-1', 'a number of 0 or more'),
        ('--dirty-rate', 'nan', 'a number of 0 or more'),
        ('--bandwidth', '0', 'a number above 0'),
        ('--bandwidth', 'inf', 'a number above 0'),
        ('--bandwidth', 'fast', 'a number above 0'),
        ('--seed', 'x', 'a whole number of 0 or more'),
        ('--serve', '8774', 'such as 127.0.0.1:8774'),
        ('--serve', '127.0.0.1:', 'such as 127.0.0.1:8774'),
        ('--serve', '127.0.0.1:70000', 'such as 127.0.0.1:8774'),
        ('--serve', '0.0.0.0:8774', 'loopback only'),
        ('--serve', '192.0.2.7:8774', 'loopback only'),
        ('--serve', 'example.org:8774', 'loopback only'),
        ('--placement', '[::]:8778', 'loopback only'),
    ],
)
def test_wrong_value_is_refused_with_option_and_allowed_values(refused, option, value, would_do):
    said = refused(f'{option}={value}')
    assert f"{option} is '{value}'" in said
    assert would_do in said


@pytest.mark.parametrize(
    ('words', 'about'),
    [
        (['--instances', 900], '--instances is 900: with --hosts 4'),
        (['--hosts', 2, '--instances', 300, '--guest-memory', 1024], 'room for 128'),
        (['--guest-memory', 10**9], f'--guest-memory is {10**9}'),
        (['--dirty-rate', 10**9], f'--dirty-rate is {10**9:g}'),
        (['--placement', '127.0.0.1:0'], '--serve'),
        (['--serve', '127.0.0.1:0', '--json'], '--json'),
        (['--serve', '127.0.0.1:0', '--kill', 'host1'], '--kill is host1 with --serve'),
        (['--kill', 'host5'], "--kill is 'host5': the hosts are host1 to host4"),
    ],
)
def test_conflicting_options_are_refused_before_anything_starts(refused, words, about):
    assert about in refused(*words)


@pytest.mark.parametrize('words', [['--host', '3'], ['--burn'], ['now'], ['--hosts']])
def test_unknown_option_is_refused_in_one_line(refused, words):
    assert '--help' in refused(*words)


def test_largest_number_of_guests_that_fits_is_accepted(capsys):
    for hosts in (2, 3, 9):
        settings = options.Settings(hosts=hosts, instances=10**6)
        most = int(options.misfit(settings).partition('room for ')[2].split()[0])
        assert options.misfit(options.Settings(hosts=hosts, instances=most)) is None
        assert options.misfit(options.Settings(hosts=hosts, instances=most + 1))


def test_help_has_every_option(capsys):
    assert demo.main(['--help']) == 0
    said = capsys.readouterr().out
    for field in dataclasses.fields(options.Settings):
        assert f'--{field.name.replace("_", "-")}' in said


# --- what it shows ---------------------------------------------------------------------------------------------------


#: What each migration of a test has been, by its uuid.
HISTORIES = {}


def migration(number, *statuses, **fields):
    HISTORIES[f'migration-{number}'] = [
        {'status': status, 'at': (START + datetime.timedelta(seconds=number + 0.5 * later)).isoformat()}
        for later, status in enumerate(statuses)
    ]
    return Migration(
        id=number,
        uuid=f'migration-{number}',
        instance_uuid=f'instance-{number}',
        project_id='demo',
        user_id='demo',
        status=statuses[-1],
        source_compute='host1',
        source_node='host1',
        dest_compute='host2',
        **fields,
    )


def look(*migrations):
    return screen.Look(
        migrations=migrations,
        histories={one.uuid: HISTORIES[one.uuid] for one in migrations},
        names={one.instance_uuid: f'vm-{one.id}' for one in migrations},
        population={'host1': 2, 'host2': 1},
        asked=len(migrations),
        now=START + datetime.timedelta(seconds=60),
    )


@pytest.fixture
def draw():
    """Draw on a terminal of a given size, and return its lines."""

    def draw(seen, width=80, height=24, encoding='utf-8'):
        out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        console = rich.console.Console(file=out, width=width, height=height, color_system=None)
        console.print(screen.Screen(console, 'title').drawing(seen))
        out.flush()
        return out.buffer.getvalue().decode(encoding).splitlines()

    return draw


def test_plain_lines_show_each_change_once_and_in_order():
    out = io.StringIO()
    with screen.Lines(out) as lines:
        lines.show(look(migration(1, 'accepted', 'preparing'), migration(2, 'accepted')))
        lines.show(look(migration(1, 'accepted', 'preparing', 'queued'), migration(2, 'accepted')))
        lines.show(look(migration(1, 'accepted', 'preparing', 'queued'), migration(2, 'accepted')))
    assert [line.split() for line in out.getvalue().splitlines()] == [
        ['0.000', 's', 'vm-1', 'host1', 'accepted'],
        ['0.500', 's', 'vm-1', 'host1', '->', 'host2', 'preparing'],
        ['1.000', 's', 'vm-2', 'host1', 'accepted'],
        ['1.000', 's', 'vm-1', 'host1', '->', 'host2', 'queued'],
    ]
    assert out.getvalue().isascii()


def test_the_screen_shows_memory_queue_and_hosts(draw):
    mib = 1024 * 1024
    running = migration(
        1,
        'accepted',
        'queued',
        'running',
        memory_total=400 * mib,
        memory_remaining=100 * mib,
        memory_processed=300 * mib,
    )
    drawn = draw(look(running, migration(2, 'accepted', 'queued'), migration(3, 'accepted', 'queued')), width=120)
    text = '\n'.join(drawn)
    assert '75%' in text
    assert '300 of 400 MiB' in text
    assert [line.split()[-3:-1] for line in drawn if 'queued' in line] == [['1', '58.0'], ['2', '57.0']]
    assert 'guests on host1 2   host2 1' in text


@pytest.mark.parametrize('width', [80, 100, 120, 200])
def test_screen_from_80_columns_shows_every_cell_in_full(draw, width):
    drawn = draw(look(*(migration(n, 'accepted', 'queued', 'running', 'post-migrating') for n in range(1, 10))), width)
    rows = [line for line in drawn if 'post-migrating' in line]
    assert len(rows) == 9
    assert all('host2' in row and row.rstrip().endswith(' s') and '100%' in row for row in rows)
    assert '\N{HORIZONTAL ELLIPSIS}' not in '\n'.join(drawn)


def test_active_migrations_stay_visible_on_a_low_terminal(draw):
    past = [migration(n, 'accepted', 'completed') for n in range(1, 30)]
    drawn = draw(look(*past, migration(30, 'queued'), migration(31, 'running')), height=15)
    assert len(drawn) < 15
    assert any('vm-31' in line for line in drawn)
    assert any('vm-30' in line for line in drawn)
    assert any('more' in line for line in drawn)


def test_a_terminal_without_unicode_is_drawn_on_in_ascii(draw):
    text = '\n'.join(draw(look(migration(1, 'running')), encoding='ascii'))
    assert 'host1 -> host2' in text


def test_stuck_migration_is_shown_as_stuck(draw):
    assert any('stuck' in line for line in draw(look(migration(1, 'running', stuck_reason='unknown reason'))))
