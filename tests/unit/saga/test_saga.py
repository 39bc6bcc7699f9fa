# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import dataclasses

import pytest

from migrator.saga.log import StepLog, StepRecord
from migrator.saga.saga import Done, GoOn, Kind, Saga, Step
from tests.unit.saga import toy


def body(subject: object) -> Done:
    return Done()


def other(subject: object) -> Done:
    return Done()


def settle(subject: object) -> GoOn:
    return GoOn()


def step(name: str, kind: str = 'compensatable', **more: object) -> Step:
    return Step(name, Kind(kind), do=body, **more)


def step_log(*records: str, attempt: int = 1) -> StepLog:
    """Return a log of records written as ``do NAME STATE``."""
    parts = [record.split() for record in records]
    return StepLog(StepRecord(name, direction, state, attempt) for direction, name, state in parts)


class TestForm:
    @pytest.mark.parametrize(
        ('items', 'why'),
        [
            ([step('a')], 'one pivot'),
            ([step('a', 'pivot'), step('b', 'pivot')], 'one pivot'),
            ([step('a', 'pivot'), step('b')], 'compensatable steps come before'),
            ([step('a', 'retriable'), step('b', 'pivot')], 'compensatable steps come before'),
            ([step('p', 'pivot'), step('r', 'retriable', undo=other)], 'nothing is undone'),
            ([step('a'), step('a', 'pivot')], 'one name'),
            (
                [
                    step('p', 'pivot'),
                    (step('a', 'retriable'), step('b', 'retriable')),
                    (step('c', 'retriable'), step('d', 'retriable')),
                ],
                'one pair',
            ),
            ([step('p', 'pivot'), tuple(step(name, 'retriable') for name in 'abc')], 'one pair'),
        ],
    )
    def test_a_list_of_another_form_is_refused_with_the_reason(self, items: list, why: str) -> None:
        with pytest.raises(ValueError) as caught:
            Saga(*items, settle=settle)
        assert why in str(caught.value)

    def test_the_pivot_and_the_pair_are_found(self) -> None:
        saga = toy.toy()
        assert saga.pivot.name == 'leap'
        assert [len(group) for group in saga.groups] == [1, 1, 1, 1, 1, 1, 2, 1, 1]

    def test_a_step_cannot_be_changed(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            toy.toy().pivot.name = 'other'


class TestNext:
    def test_before_the_pivot_the_first_that_is_not_done_is_next(self) -> None:
        saga = toy.toy()
        assert saga.next_before(step_log(), 1).name == 'book'
        assert saga.next_before(step_log('do book intent'), 1).name == 'book'
        assert saga.next_before(step_log('do book done', 'do look done'), 1).name == 'ask'
        done = [f'do {name} done' for name in ('book', 'look', 'ask', 'prepare')]
        assert saga.next_before(step_log(*done), 1).name == 'leap'
        assert saga.next_before(step_log(*done, 'do leap done'), 1) is None

    def test_another_attempt_begins_from_the_first_step(self) -> None:
        assert toy.toy().next_before(step_log('do book done'), 2).name == 'book'

    def test_rest_of_a_pair_is_next_after_the_pivot(self) -> None:
        saga = toy.toy()

        def names(*records: str) -> list[str]:
            return [found.name for found in saga.next_after(step_log(*records), 1)]

        assert names() == ['flip']
        assert names('do flip done') == ['left', 'right']
        assert names('do flip done', 'do left done', 'do right intent') == ['right']
        assert names('do flip done', 'do right done', 'do left intent') == ['left']
        assert names(*[f'do {name} done' for name in ('flip', 'left', 'right', 'tidy', 'finish')]) == []


class TestStarted:
    @pytest.mark.parametrize(
        ('records', 'started'),
        [
            ([], []),
            (['do book intent'], ['book']),
            (['do book failed'], ['book']),
            # a check writes no intent: once its predecessor is done it may have been made
            (['do book done'], ['book', 'look']),
            (['do book done', 'do look done'], ['book', 'look', 'ask']),
            (['do book done', 'do look failed'], ['book', 'look']),
            # its failure shows that it may have been made, although the done of its predecessor was never committed
            (['do book intent', 'do look failed'], ['book', 'look']),
            # prepare has an intent, so without a record it was not begun
            (['do book done', 'do look done', 'do ask done'], ['book', 'look', 'ask']),
            (
                ['do book done', 'do look done', 'do ask done', 'do prepare intent'],
                ['book', 'look', 'ask', 'prepare'],
            ),
        ],
    )
    def test_a_step_has_started_if_it_may_have_had_an_effect(self, records: list[str], started: list[str]) -> None:
        assert [found.name for found in toy.toy().started(step_log(*records), 1)] == started


class TestUndo:
    def test_undo_column_is_read_upwards_except_for_undo_after(self) -> None:
        saga = toy.toy()
        records = [f'do {name} done' for name in ('book', 'look', 'ask', 'prepare')] + ['do leap failed']
        order = []
        while (found := saga.next_undo(step_log(*records), 1)) is not None:
            order.append(found.name)
            records.append(f'undo {found.name} done')
        # look shares the undo of prepare, ask has none
        assert order == ['prepare', 'leap', 'book']

    def test_intended_undo_is_next(self) -> None:
        records = step_log('do book done', 'do look failed', 'undo look intent')
        assert toy.toy().next_undo(records, 1).name == 'look'

    def test_saga_without_a_started_step_has_nothing_to_undo(self) -> None:
        assert toy.toy().next_undo(step_log(), 1) is None

    def test_only_the_present_attempt_is_undone(self) -> None:
        assert toy.toy().next_undo(step_log('do book done'), 2) is None

    def test_undo_after_a_step_without_an_undo_is_not_forgotten(self) -> None:
        saga = Saga(
            step('a', undo=body),
            step('b'),
            step('p', 'pivot', undo=other, undo_after='b', intent=lambda subject: {}),
            settle=settle,
        )
        records = ['do a done', 'do b done', 'do p failed']
        order = []
        while (found := saga.next_undo(step_log(*records), 1)) is not None:
            order.append(found.name)
            records.append(f'undo {found.name} done')
        assert order == ['p', 'a']

    def test_undo_column_is_read_strictly_upwards_without_undo_after(self) -> None:
        saga = Saga(step('a', undo=body), step('b', undo=other), step('p', 'pivot', undo=settle), settle=settle)
        assert saga.next_undo(step_log('do a done', 'do b done', 'do p failed'), 1).name == 'p'
