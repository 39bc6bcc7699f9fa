# SPDX-License-Identifier: Apache-2.0

"""The picture of guests that move, on terminals of several sizes and as lines."""

import datetime
import io
import json

import pytest
import rich.console

from migrator.operator.watch import screen

START = datetime.datetime(2026, 11, 5, 10, 0, tzinfo=datetime.UTC)
MIB = 1024 * 1024


def later(seconds):
    return START + datetime.timedelta(seconds=seconds)


def row(number, status='running', **fields):
    more = {'destination': 'host2', 'began_at': later(number), **fields}
    return screen.Row(key=f'guest-{number}', name=f'vm-{number}', source='host1', status=status, **more)


def picture(*rows, **fields):
    return screen.Picture(title='title', rows=rows, now=later(60), **fields)


def event(seconds, text):
    return screen.Event(later(seconds), text, {'kind': 'member', 'text': text})


@pytest.fixture
def draw():
    """Draw on a terminal of a given size, and return its lines."""

    def draw(seen, width=80, height=24, encoding='utf-8'):
        out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        console = rich.console.Console(file=out, width=width, height=height, color_system=None)
        console.print(screen.draw(seen, console))
        out.flush()
        return out.buffer.getvalue().decode(encoding).splitlines()

    return draw


def test_wide_screen_shows_memory_rate_place_and_end(draw):
    running = row(1, total=400 * MIB, remaining=100 * MIB, processed=300 * MIB, rate=50.4 * MIB, expected=later(90))
    drawn = draw(picture(running, row(2, 'queued', place=1), foot='1 of 2', notes=['it waits']), width=120)
    (first,) = [line for line in drawn if 'vm-1' in line]
    assert first.split()[-5:] == ['50', 'MiB/s', '59.0', 's', '10:01:30']
    assert '75%' in first
    assert any('queued' in line and 'no. 1' in line for line in drawn)
    assert drawn[-2:] == [' it waits', ' 1 of 2']


def test_host_of_a_guest_that_stays_there_is_shown_once(draw):
    (first,) = [line for line in draw(picture(row(1, destination='host1'))) if 'vm-1' in line]
    assert first.split()[:3] == ['vm-1', 'host1', 'running']


@pytest.mark.parametrize('width', [80, 100, 120, 200])
def test_screen_from_80_columns_shows_every_cell_in_full(draw, width):
    rows = [row(n, 'post-migrating', rate=9999 * MIB, expected=later(n), place=200) for n in range(1, 10)]
    drawn = [line for line in draw(picture(*rows), width) if 'post-migrating' in line]
    assert len(drawn) == 9
    assert all('host2' in line and '100%' in line and 'no. 200' in line and ' s' in line for line in drawn)
    assert '\N{HORIZONTAL ELLIPSIS}' not in '\n'.join(drawn)


def test_guests_on_their_way_stay_visible_on_a_low_terminal(draw):
    past = [row(n, 'moved', ended_at=later(n + 1)) for n in range(1, 30)]
    events = [event(n, f'event {n}') for n in range(4)]
    drawn = draw(picture(*past, row(30, 'queued'), row(31), events=events, foot='foot'), height=18)
    assert len(drawn) < 18
    for shown in ('vm-31', 'vm-30', 'more', 'event 3', 'foot'):
        assert any(shown in line for line in drawn), shown


def test_terminal_without_unicode_is_drawn_on_in_ascii(draw):
    assert 'host1 -> host2' in '\n'.join(draw(picture(row(1)), encoding='ascii'))


def test_stuck_migration_is_shown_as_stuck(draw):
    assert any('stuck' in line for line in draw(picture(row(1, is_stuck=True))))


def test_control_characters_of_names_do_not_reach_the_terminal(draw):
    seen = picture(
        screen.Row(key='1', name='a\x1b[2Jb', source='host1', status='running'), notes=['c\x07'], foot='d\x1b'
    )
    assert '\x1b' not in '\n'.join(draw(seen))
    assert '\x07' not in '\n'.join(draw(seen))


def test_lines_are_the_events_and_the_notes_that_are_new():
    out, errors = io.StringIO(), io.StringIO()
    with screen.Lines(out, errors) as lines:
        lines.show(picture(events=[event(1, 'vm-1: moving')], notes=['waits for a slot']))
        lines.note('away')
        lines.note('away')
        lines.show(picture(notes=['waits for a slot']))
        lines.show(picture(events=[event(2, 'drain: completed (all is well)')], notes=['all is well']))
    assert out.getvalue().splitlines() == [
        '10:00:01  vm-1: moving',
        '10:01:00  waits for a slot',
        '10:00:02  drain: completed (all is well)',
    ]
    assert errors.getvalue() == 'away\n'


def test_json_lines_are_the_documents_of_the_events():
    out = io.StringIO()
    screen.Lines(out, io.StringIO(), as_json=True).show(picture(events=[event(1, 'x')], notes=['not JSON']))
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [{'kind': 'member', 'text': 'x'}]


def test_screen_keeps_the_last_events_and_shows_a_note_until_the_next_picture():
    out = io.StringIO()
    console = rich.console.Console(file=out, width=100, height=30, force_terminal=True, color_system=None)
    with screen.Screen(console) as shown:
        shown.show(picture(row(1), events=[event(1, 'first')]))
        shown.note('The API is away.')
        assert 'The API is away.' in out.getvalue()
        out.truncate(0)
        shown.show(picture(row(1), events=[event(2, 'second')]))
        assert 'first' in out.getvalue()
        assert 'second' in out.getvalue()
        assert 'away' not in out.getvalue()


def test_event_is_wrapped_and_the_newest_ones_have_room_first(draw):
    why = 'the compute service of its host is down. Start it: systemctl start migrator-compute. ' * 2
    events = [event(n, f'vm-{n}: blocked ({why})') for n in range(8)]
    drawn = draw(picture(*(row(n) for n in range(9)), events=events, foot='foot'))
    text = ' '.join(' '.join(drawn).split())
    assert (len(drawn) <= 24, '…' in text) == (True, False)
    assert f'vm-7: blocked ({why.strip()} )' in text or f'vm-7: blocked ({why})' in text
    assert 'vm-0: blocked' not in text
    assert sum('host1' in line for line in drawn) >= 2


def test_notes_that_have_no_room_leave_the_table_and_are_shown_by_a_command(draw):
    notes = [f'guest-{number}: blocked. It is locked.' for number in range(40)]
    shown = picture(
        *(row(n) for n in range(9)), on_screen=notes, events=[event(1, 'x')], command='show it', foot='foot'
    )
    drawn = draw(shown)
    assert len(drawn) <= 24
    assert ' All of it: show it' in drawn
    assert sum('host1' in line for line in drawn) >= 2
    last = draw(picture(on_screen=notes, status=1))
    assert sum('It is locked.' in line for line in last) == 40


def test_note_is_wrapped_and_what_has_no_room_is_shown_by_a_command(draw):
    long = ' '.join(f'guest-{number} waits for its user.' for number in range(40))
    drawn = draw(picture(notes=['It waits for a slot. ' * 6, long], command='migrator-manage drain show x'))
    assert not any('…' in line for line in drawn)
    assert ' '.join(' '.join(drawn).split()).count('It waits for a slot.') == 6
    assert drawn[-1] == ' All of it: migrator-manage drain show x'
