# SPDX-License-Identifier: Apache-2.0

"""The notifications that follow from the logs of migrations that end badly, and the ids of all."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from migrator.conductor.notifications import payload, phases
from migrator.objects import Flavor, Instance, Migration
from migrator.saga.log import Entry

UUID = '11111111-1111-4111-8111-111111111111'
FIRST = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
CHOSEN = {'input': {'host': 'b', 'node': 'b.node'}}


def migration(**fields: Any) -> Migration:
    return Migration(
        **{
            'uuid': UUID,
            'instance_uuid': UUID,
            'project_id': 'blue',
            'user_id': 'ada',
            'source_compute': 'a',
            'source_node': 'a.node',
            **fields,
        }
    )


def log(*entries: tuple[Any, ...]) -> list[Entry]:
    """Return a log of ``(kind, step or status, payload)``, an entry each second."""
    found = []
    for seq, (kind, name, *more) in enumerate(entries, 1):
        given = dict(more[0]) if more else {}
        step = None if kind == 'status' else name
        given |= {'status': name} if kind == 'status' else {}
        at = FIRST + datetime.timedelta(seconds=seq)
        found.append(Entry(kind, step=step, payload=given, seq=seq, at=at))
    return found


def sent(row: Migration, *entries: tuple[Any, ...]) -> list[str]:
    found = phases.phases(row, log(*entries))
    return [f'{one.event_type.removeprefix("instance.")} {one.host}' for one in found]


BEGUN = (('status', 'accepted'), ('status', 'preparing'), ('intent', 'move_allocation', CHOSEN))
PREPARED = (*BEGUN, ('intent', 'pre_live_migration'), ('done', 'pre_live_migration'), ('intent', 'live_migration'))
PRE = ['live_migration_pre.start b', 'live_migration_pre.end b']
COLD = 'migration'


def test_a_check_that_fails_sends_nothing_as_in_nova() -> None:
    undone = (
        ('undo_intent', 'check_can_live_migrate_destination'),
        ('undo_done', 'check_can_live_migrate_destination'),
    )
    assert sent(migration(), *BEGUN, *undone, ('undo_done', 'move_allocation'), ('status', 'failed')) == []


@pytest.mark.parametrize(
    ('outcome', 'end'), [(None, 'live_migration_rollback.error a'), ('forward', 'live_migration_post.error a')]
)
def test_an_abandoned_live_migration_ends_with_an_error(outcome: str | None, end: str) -> None:
    row = migration(outcome=outcome, failure='Abandoned by ada.')
    entries = (*PREPARED, ('stuck', None, {'reason': 'x'}), ('status', 'error'))
    assert sent(row, *entries) == [*PRE, end]
    last = phases.phases(row, log(*entries))[-1]
    assert (last.fault, last.task_state) == ('Abandoned by ada.', None)


def test_an_evacuation_without_a_host_that_can_take_the_guest_ends_with_an_error() -> None:
    row = migration(migration_type='evacuation', failure='No valid host was found.')
    assert sent(row, ('status', 'accepted'), ('status', 'failed')) == ['evacuate a', 'rebuild.error a']


def test_each_host_that_cannot_start_the_guest_of_an_evacuation_is_an_error() -> None:
    row = migration(migration_type='evacuation', failure='both failed')
    second = {'input': {'host': 'c', 'node': 'c'}}
    failed = ('failed', 'evacuate', {'result': {'reason': 'no disk'}})
    entries = (*BEGUN, ('intent', 'evacuate'), failed, ('intent', 'move_allocation', second), ('intent', 'evacuate'))
    expected = ['evacuate a', 'rebuild.start b', 'rebuild.error b', 'rebuild.start c', 'rebuild.error c']
    assert sent(row, *entries, failed, ('status', 'failed')) == expected


@pytest.mark.parametrize(('ending', 'errors'), [('cancelled', 1), ('error', 1)])
def test_a_cold_migration_that_ends_after_its_parts_have_ended_is_an_error(ending: str, errors: int) -> None:
    row = migration(migration_type=COLD, failure='Aborted: requested by ada.')
    parts = (('intent', 'migrate_disk_and_power_off'), ('done', 'migrate_disk_and_power_off'))
    found = sent(row, *BEGUN, *parts, ('status', ending))
    assert found == ['resize.start a', 'resize.end a', 'resize.error a']
    assert sum('error' in one for one in found) == errors


def test_a_request_comes_before_the_next_entry_or_before_the_end() -> None:
    abort = ['live_migration_abort.start a', 'live_migration_abort.end a']
    between = FIRST + datetime.timedelta(seconds=4.5)
    assert sent(migration(abort_requested_at=between), *PREPARED) == [PRE[0], *abort, PRE[1]]
    found = phases.phases(migration(abort_requested_at=between), log(*PREPARED))
    assert [one.at for one in found if 'abort' in one.action] == [between] * 2
    late = FIRST + datetime.timedelta(hours=1)
    ended = (*PREPARED, ('status', 'cancelled'))
    assert sent(migration(abort_requested_at=late), *PREPARED) == PRE
    assert sent(migration(abort_requested_at=late), *ended) == [*PRE, *abort]
    cold = sent(migration(abort_requested_at=late, migration_type=COLD), *ended)
    assert not [one for one in cold if 'abort' in one], 'a drain aborts it, and nova has no such action'


def test_what_a_later_release_writes_is_ignored() -> None:
    assert sent(migration(), *PREPARED, ('paused', 'live_migration'), ('status', 'resting')) == PRE


def test_an_id_depends_on_the_entry_and_the_name_alone() -> None:
    flavor = Flavor(name='m1', extra_specs={'hw:cpu_policy': 'dedicated'})
    instance = Instance(uuid=UUID, name='My VM', project_id='blue', user_id='bob', host='z', node='z', flavor=flavor)
    found = phases.phases(migration(), log(*PREPARED))
    ids = [payload.notification(migration(), instance, one, 'c1').message_id for one in found]
    later = instance.replace(host='y', vm_state='error')
    again = [payload.notification(migration(owner='x', epoch=7), later, one, 'c2').message_id for one in found]
    assert ids == again
    assert len(set(ids)) == 2
