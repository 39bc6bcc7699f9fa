# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import dataclasses

from migrator.saga import log


def record(step: str = 'book', state: str = 'intent', attempt: int = 1, **more: object) -> log.StepRecord:
    return log.StepRecord(step=step, direction=more.pop('direction', log.DO), state=state, attempt=attempt, **more)


def test_a_record_is_found_by_attempt_step_and_direction() -> None:
    step_log = log.StepLog([record(), record(attempt=2, state='done'), record(direction=log.UNDO, state='failed')])
    assert step_log.find(1, 'book').state == 'intent'
    assert step_log.find(2, 'book').state == 'done'
    assert step_log.find(1, 'book', log.UNDO).state == 'failed'
    assert step_log.find(3, 'book') is None


def test_later_record_of_the_same_key_replaces_the_earlier_in_its_position() -> None:
    step_log = log.StepLog([record('a'), record('b')])
    step_log.put([record('a', state='done'), record('c')])
    assert [(found.step, found.state) for found in step_log.all()] == [('a', 'done'), ('b', 'intent'), ('c', 'intent')]


def test_each_attempt_has_its_own_records() -> None:
    step_log = log.StepLog([record('a'), record('a', attempt=2), record('b')])
    assert [found.step for found in step_log.of_attempt(1)] == ['a', 'b']
    assert [found.step for found in step_log.of_attempt(2)] == ['a']


def test_a_record_is_never_changed_but_replaced() -> None:
    one = record()
    other = dataclasses.replace(one, state='done')
    assert (one.state, other.state, one.key == other.key) == ('intent', 'done', True)


def test_states_compare_with_what_the_database_holds() -> None:
    assert {state.value: record(state=state.value).state == state for state in log.StepState} == {
        'intent': True,
        'done': True,
        'failed': True,
    }


def add_up(*entries: log.Entry) -> list[log.StepRecord]:
    return log.records(dataclasses.replace(entry, seq=number) for number, entry in enumerate(entries, 1))


def test_entries_of_a_record_add_up_to_the_record() -> None:
    begun = record(input={'a': 1})
    tried = dataclasses.replace(begun, stored=True, tries=2, result={'reason': 'busy'})
    done = dataclasses.replace(tried, state='done', result={'b': 2})
    entries = [one.entry() for one in (begun, tried, done)]
    assert [one.kind for one in entries] == ['intent', 'tried', 'done']
    for number, one in enumerate((begun, tried, done), 1):
        assert add_up(*entries[:number]) == [dataclasses.replace(one, stored=True)]


def test_step_without_an_intent_has_its_input_in_its_only_entry() -> None:
    done = record(state='done', input={'a': 1}, result={'b': 2})
    assert add_up(done.entry()) == [dataclasses.replace(done, stored=True)]


def test_an_intent_that_is_written_again_replaces_its_input() -> None:
    first, second = record(input={'a': 1}), record(input={'a': 2}, stored=True, tries=2)
    assert add_up(first.entry(), second.entry()) == [second]


def test_undo_of_a_step_has_its_own_record() -> None:
    begun = record(direction=log.UNDO)
    done = dataclasses.replace(begun, state='done', stored=True)
    assert [one.entry().kind for one in (begun, done)] == ['undo_intent', 'undo_done']
    assert [one.state for one in add_up(record().entry(), begun.entry(), done.entry())] == ['intent', 'done']


def test_entries_without_a_step_add_no_record() -> None:
    stuck = log.Entry(log.EntryKind.STUCK, payload={'reason': 'odd'})
    assert add_up(log.Entry(log.EntryKind.STATUS, payload={'status': 'queued'}), stuck) == []
