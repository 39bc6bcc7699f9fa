# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


from __future__ import annotations

import dataclasses

import pytest

from migrator.saga import step as steps


@pytest.mark.parametrize(
    'answer',
    [
        steps.Done(),
        steps.Parked('why'),
        steps.Failed('why'),
        steps.Stuck('why'),
        steps.GoOn(),
        steps.Forward(),
        steps.Back('why'),
        steps.Lost('why'),
    ],
)
def test_an_answer_is_plain_data_that_cannot_be_changed(answer: object) -> None:
    assert answer == dataclasses.replace(answer)
    with pytest.raises(dataclasses.FrozenInstanceError):
        answer.reason = 'another'


def test_answers_of_different_meaning_are_not_equal() -> None:
    assert len({steps.Parked('x'), steps.Failed('x'), steps.Stuck('x'), steps.Back('x'), steps.Lost('x')}) == 5


def test_the_kinds_have_the_usual_saga_names() -> None:
    assert [kind.value for kind in steps.Kind] == ['compensatable', 'pivot', 'retriable']


def test_a_step_that_declares_no_more_than_its_do_has_nothing_to_undo_and_writes_no_intent() -> None:
    step = steps.Step('look', steps.Kind.COMPENSATABLE, do=lambda subject: steps.Done())
    assert (step.undo, step.intent, step.undo_after) == (None, None, None)
