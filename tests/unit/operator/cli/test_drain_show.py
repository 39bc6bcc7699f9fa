# SPDX-License-Identifier: Apache-2.0

"""What both clients show of a drain that has left guests, was retried, or was restored."""

import io
import json
import types

import pytest
import rich.console
from cliff.formatters import shell, value

from migrator.operator.osc import drain as osc
from migrator.operator.watch import screen, subjects
from tests.unit.operator.cli.test_drain import getter, openstack, shown_of

UNLOCK = 'openstack server unlock'


class Site:
    """An operator of a host with one guest that can move and one that is locked."""

    def __init__(self, operator):
        self.operator, self.cloud = operator, operator.cloud
        self.locked, self.free = (self.cloud.boot(name, 'host1', memory_mb=1024) for name in ('locked', 'free'))
        self.lock('owner')

    def lock(self, by):
        self.cloud.database.instances.update(self.locked.uuid, locked_by=by)

    def act(self, verb, *words):
        uuid = self.operator.json('drain', verb, *words)['uuid']
        self.cloud.simulation.run_until(lambda: self.cloud.database.drains.get(uuid).ended, timeout=900)
        return uuid

    def shown(self, name):
        return self.operator.observed('drain', 'show', name).splitlines()

    def words(self, name):
        columns, values = openstack(self.cloud, osc.ShowDrain, name)
        return {column: str(one) for column, one in zip(columns, values, strict=True)}


@pytest.fixture
def site(operator):
    return Site(operator)


def test_guest_that_is_left_is_shown_once_with_its_command(site):
    uuid = site.act('start', 'host1')
    guest, where = f'locked ({site.locked.uuid})', 'locked'
    head, line, command, *checks, stays, again, report = site.shown('host1')
    assert head == f'Drain {uuid} of host1: incomplete: 1 of 2 left.'
    assert (line, command) == (
        f'{guest}: blocked. It is locked by its owner. Drain the host with --locked move, or unlock the guest:',
        f'    {UNLOCK} {site.locked.uuid}',
    )
    assert checks == [
        f'guests at the hypervisor: {where} ({site.locked.uuid}, running)',
        f'guests in the database: {guest}',
        f'allocations in Placement: of {guest}',
        'pending cleanups: none',
    ]
    assert stays.startswith('host1 stays disabled until ')
    assert again == f'To try again: migrator-manage --config-file {site.operator.file} drain retry {uuid}'
    assert report.endswith(f' drain report {uuid}')
    words = site.words('host1')
    assert words['members'].splitlines() == [line, command]
    assert words['checks'].splitlines() == checks
    assert words['message'].splitlines() == [stays, f'To try again: openstack host drain retry {uuid}']
    (listed,) = site.operator.json('drain', 'list')['drains']
    assert 'guests at the hypervisor' not in listed['message']
    assert (
        f'locked: It is locked by its owner. Drain the host with --locked move, or unlock the guest: {UNLOCK}'
        in listed['message']
    )


def test_guest_that_has_left_since_needs_no_command(site):
    site.act('start', 'host1')
    site.lock(None)
    assert site.cloud.live_migrate(site.locked, 'host2').status_int == 202
    site.cloud.wait()
    assert (
        f'locked ({site.locked.uuid}): blocked in this drain, but on host2 now. Nothing is left to do for it.'
        in site.shown('host1')
    )
    assert UNLOCK not in '\n'.join(site.shown('host1'))


def test_retried_drain_names_its_retry_and_advises_nothing_else(site):
    first = site.act('start', 'host1')
    site.lock(None)
    second = site.act('retry', first)
    assert site.shown(first)[1:-1] == [
        f'It was retried: drain {second} has its guests. To see them: migrator-manage --config-file '
        f'{site.operator.file} drain show {second}'
    ]
    assert f'It is the retry of drain {first}.' in site.shown(second)
    assert [row['RESULT'] for row in site.operator.rows('drain', 'list')] == [
        'completed: 2 moved',
        f'incomplete: 1 of 2 left; retried by {second[:8]}',
    ]
    assert [one['retried_by'] for one in site.operator.json('drain', 'list')['drains']] == [None, second]
    words = site.words(first)
    assert (words['retried_by'], words['members'], words['checks']) == (second, f'see drain {second}', '')
    assert words['message'].endswith(f'To see them: openstack host drain show {second}')


def test_incomplete_restore_is_restored_again_and_has_no_checks_of_the_drain(site):
    site.lock(None)
    uuid = site.act('start', 'host1')
    assert site.words(uuid)['members'] == 'all of them have moved'
    site.lock('owner')
    site.act('restore', uuid)
    _, line, command, again, _ = site.shown('host1')
    assert line.startswith(f'locked ({site.locked.uuid}): blocked. It is locked')
    assert command == f'    {UNLOCK} {site.locked.uuid}'
    assert again.startswith('To bring back the others once nothing is in the way: migrator-manage ')
    assert again.endswith(f' drain restore {uuid}')
    words = site.words(uuid)
    assert words['checks'] == ''
    assert words['message'].endswith(f': openstack host drain restore {uuid}')
    site.lock(None)
    site.act('restore', uuid)
    assert site.words(uuid)['members'] == 'all of them are back'
    assert site.shown(uuid)[1] == '2 of 2 guests came back to host1.'


def test_cancelled_drain_says_that_its_host_is_enabled_and_how_to_try_again(site):
    uuid = site.operator.json('drain', 'start', 'host1')['uuid']
    drains = site.cloud.database.drains
    site.cloud.simulation.run_until(lambda: drains.counts([uuid])[uuid]['blocked'] == 1)
    site.act('cancel', uuid)
    head, message, line, again, _ = site.shown(uuid)
    assert head.endswith(': cancelled: 1 of 2 left.')
    assert message.endswith('1 of 2 guests had moved. host1 is enabled again.')
    assert line.startswith(f'locked ({site.locked.uuid}): cancelled. The drain was cancelled. It is locked')
    assert 'To try again: ' in again


def test_guest_that_was_moved_on_is_shown_once_by_a_restored_drain(site):
    site.lock(None)
    uuid = site.act('start', 'host1', '--destination', 'host2')
    assert site.cloud.live_migrate(site.free, 'host3').status_int == 202
    site.cloud.wait()
    site.act('restore', uuid)
    head, line, _ = site.shown(uuid)
    assert head.endswith(': restored: 1 back.')
    assert line == f'free ({site.free.uuid}): gone. It is on host3, and not where the drain had put it.'


def test_running_drain_shows_the_reasons_of_guests_below_the_table(site):
    uuid = site.operator.json('drain', 'start', 'host1')['uuid']
    drains = site.cloud.database.drains
    site.cloud.simulation.run_until(lambda: drains.counts([uuid])[uuid]['blocked'] == 1)
    shown = site.shown(uuid)
    (header,) = (number for number, line in enumerate(shown) if line.startswith('GUEST'))
    assert 'REASON' not in shown[header]
    assert shown[header + 3 :] == [
        f'locked ({site.locked.uuid}): blocked. It is locked by its owner. Drain the host with --locked move, or '
        'unlock the guest:',
        f'    {UNLOCK} {site.locked.uuid}',
    ]
    site.cloud.wait()


@pytest.mark.parametrize('command', ['openstack host drain show x', ''])
def test_watch_on_a_small_terminal_shows_reasons_and_commands_in_full(site, command):
    uuid = site.operator.json('drain', 'start', 'host1')['uuid']
    subject = subjects.Drain(getter(site.cloud), site.cloud.database.drains.now, uuid, command=command)

    def drawn():
        out = io.StringIO()
        console = rich.console.Console(file=out, width=80, height=24, color_system=None)
        console.print(screen.draw(subject.look(), console))
        return out.getvalue()

    drains = site.cloud.database.drains
    site.cloud.simulation.run_until(lambda: drains.counts([uuid])[uuid]['blocked'] == 1)
    running = drawn()
    assert len(running.splitlines()) <= 24
    site.cloud.simulation.run_until(lambda: drains.get(uuid).ended, timeout=900)
    ended = drawn()
    for text in (running, ended):
        assert '\N{HORIZONTAL ELLIPSIS}' not in text
        assert f'{UNLOCK} {site.locked.uuid}' in ' '.join(text.split())
    if command:
        assert f'    {UNLOCK} {site.locked.uuid}' in running
        assert ' '.join(ended.split()).count('It is locked by its owner.') == 1
        assert ' What to do: openstack host drain show x' in ended


def test_value_and_shell_have_empty_texts_and_json(site):
    uuid = site.act('start', 'host1')
    for formatter in (value.ValueFormatter(), shell.ShellFormatter()):
        name = type(formatter).__name__.removesuffix('Formatter').lower()
        columns, values = openstack(site.cloud, osc.ShowDrain, '-f', name, uuid)
        printed = dict(zip(columns, (one.machine_readable() for one in values), strict=True))
        assert (printed['reason'], printed['deadline'], printed['status']) == ('', '', 'incomplete')
        assert json.loads(printed['guests'])['moved'] == 1
        assert json.loads(printed['checks'])[3] == {'what': 'pending cleanups', 'left': []}
        out = types.SimpleNamespace(text='')
        given = types.SimpleNamespace(variables=[], prefix='', columns=[])
        out.write = lambda text, out=out: setattr(out, 'text', out.text + text)
        formatter.emit_one(columns, values, out, given)
        assert 'None' not in out.text
    assert shown_of(site.cloud, osc.ShowDrain, uuid)['reason'] is None


def test_list_of_openstack_leaves_the_message_to_show(site):
    site.act('start', 'host1')
    columns, (row,) = openstack(site.cloud, osc.ListDrain)
    assert 'Message' not in columns
    assert all(len(str(cell)) <= 36 for cell in row)
