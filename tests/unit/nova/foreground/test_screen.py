# SPDX-License-Identifier: Apache-2.0

"""The screen of ``migrator-drain start`` on a terminal of 80 columns and 24 lines, as a golden file.

MIGRATOR_GOLDEN=write writes the file anew.
"""

import dataclasses
import io
import os
import pathlib

import rich.console

from migrator.operator.watch import commands, screen

GOLDEN = pathlib.Path(__file__).parent / 'golden' / 'screen.txt'
#: The looks that are kept: the first one, a copy, the moment between a migration and its guest at the destination, ...
LOOKS = (0, 3, 7, 20)
#: What stands there for the uuid of the guest that is locked.
UUID = '6ef5d0b8-0d2b-4d36-9d3a-0d7b0a6c3c11'


class Terminal:
    """A terminal, and what it shows at each look."""

    def __init__(self):
        self.looks, self._events = [], []

    def __enter__(self):
        return self

    def __exit__(self, *_exc_info):
        pass

    def note(self, text):
        raise AssertionError(text)

    def show(self, picture):
        out = io.StringIO()
        console = rich.console.Console(
            file=out, width=80, height=24, highlight=False, color_system=None, legacy_windows=False, _environ={}
        )
        self._events = [*self._events, *picture.events][-screen._EVENTS :]
        console.print(screen.draw(dataclasses.replace(picture, events=self._events), console))
        lines = [line.rstrip() for line in out.getvalue().splitlines()]
        assert picture.status is not None or len(lines) < 24
        self.looks.append('\n'.join(lines))


def test_screen_of_a_drain_is_the_golden_one(operator, nova, monkeypatch):
    for number in range(14):
        guest = nova.add_guest(f'web-{number:02}')
        nova.ticks[guest] = 6
        if number == 1:
            nova.servers[guest]['locked'], locked = True, guest
    terminal = Terminal()
    monkeypatch.setattr(commands, 'make_view', lambda _as_json: terminal)
    assert operator.run('start', 'host1')[0] == 1
    for look in terminal.looks:
        moving = [line for line in look.splitlines() if ' running ' in line or ' queued ' in line]
        assert not [line for line in moving if '...' in line], 'the destination is known'
    text = '\n\n'.join([*(terminal.looks[at] for at in LOOKS), terminal.looks[-1], '']).replace(locked, UUID)
    if os.environ.get('MIGRATOR_GOLDEN') == 'write':
        GOLDEN.write_text(text, encoding='utf-8')
    assert text == GOLDEN.read_text(encoding='utf-8')
