# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import dataclasses

from migrator.saga import log


def record(step: str = 'book', state: str = 'intent', attempt: int = 1, **more: object) -> log.StepRecord:
    return log.StepRecord(step=step, direction=more.pop('direction', log.DO), state=state, attempt=attempt, **more)


def test_a_record_is_found_by_attempt_step_and_direction() -> None:
    journal = log.Journal([record(), record(attempt=2, state='done'), record(direction=log.UNDO, state='failed')])
    assert journal.find(1, 'book').state == 'intent'
    assert journal.find(2, 'book').state == 'done'
    assert journal.find(1, 'book', log.UNDO).state == 'failed'
    assert journal.find(3, 'book') is None


def test_a_later_record_of_the_same_key_takes_the_place_of_the_earlier_and_keeps_its_turn() -> None:
    journal = log.Journal([record('a'), record('b')])
    journal.put([record('a', state='done'), record('c')])
    assert [(found.step, found.state) for found in journal.all()] == [('a', 'done'), ('b', 'intent'), ('c', 'intent')]


def test_an_attempt_has_records_of_its_own() -> None:
    journal = log.Journal([record('a'), record('a', attempt=2), record('b')])
    assert [found.step for found in journal.of_attempt(1)] == ['a', 'b']
    assert [found.step for found in journal.of_attempt(2)] == ['a']


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
