# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import dataclasses

import pytest

from migrator.saga.saga import Back, Done, Failed, Forward, GoOn, Kind, Lost, Parked, Step, Stuck


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
def test_verdict_is_plain_immutable_data(answer: object) -> None:
    assert answer == dataclasses.replace(answer)
    with pytest.raises(dataclasses.FrozenInstanceError):
        answer.reason = 'another'


def test_verdicts_of_different_meaning_are_not_equal() -> None:
    assert len({Parked('x'), Failed('x'), Stuck('x'), Back('x'), Lost('x')}) == 5


def test_the_kinds_have_the_usual_saga_names() -> None:
    assert [kind.value for kind in Kind] == ['compensatable', 'pivot', 'retriable']


def test_step_with_only_a_do_has_no_undo_and_no_intent() -> None:
    step = Step('look', Kind.COMPENSATABLE, do=lambda subject: Done())
    assert (step.undo, step.intent, step.undo_after) == (None, None, None)
