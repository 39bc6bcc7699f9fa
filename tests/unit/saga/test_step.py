# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import dataclasses

import pytest

from migrator.saga.step import Back, Done, Failed, Forward, GoOn, Kind, Lost, Parked, Step, Stuck


@pytest.mark.parametrize(
    'answer',
    [
        Done(),
        Parked('why'),
        Failed('why'),
        Stuck('why'),
        GoOn(),
        Forward(),
        Back('why'),
        Lost('why'),
    ],
)
def test_an_answer_is_plain_data_that_cannot_be_changed(answer: object) -> None:
    assert answer == dataclasses.replace(answer)
    with pytest.raises(dataclasses.FrozenInstanceError):
        answer.reason = 'another'


def test_answers_of_different_meaning_are_not_equal() -> None:
    assert len({Parked('x'), Failed('x'), Stuck('x'), Back('x'), Lost('x')}) == 5


def test_the_kinds_have_the_usual_saga_names() -> None:
    assert [kind.value for kind in Kind] == ['compensatable', 'pivot', 'retriable']


def test_a_step_that_declares_no_more_than_its_do_has_nothing_to_undo_and_writes_no_intent() -> None:
    step = Step('look', Kind.COMPENSATABLE, do=lambda subject: Done())
    assert (step.undo, step.intent, step.undo_after) == (None, None, None)
