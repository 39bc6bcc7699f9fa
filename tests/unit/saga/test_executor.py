# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import pytest

from migrator.objects.reasons import Reason, WaitKind
from migrator.saga import executor
from tests.unit.saga import toy
from tests.unit.saga.toy import Back, Crash, Failed, GoOn, Lost, Parked, Refused, Stuck, World

ALL_DONE = {'book': 1, 'look': 1, 'prepare': 1, 'leap': 1, 'flip': 1, 'left': 1, 'right': 1, 'tidy': 1}
COMPENSATABLE = ['book', 'look', 'ask', 'prepare']


def failure(reason: str) -> Parked:
    return Parked(Reason.of(WaitKind.FAILURE, reason=reason))


class TestForward:
    def test_saga_parks_at_the_pivot_and_runs_to_its_end_once_settled(self) -> None:
        world = World()
        assert toy.run_once(world) == Parked('the leap')
        assert world.stored.outcome is None
        assert toy.run_once(world) is None
        assert world.effects == ALL_DONE
        assert (world.stored.outcome, world.stored.ended) == ('forward', 'finished')

    def test_pivot_that_was_certainly_not_sent_is_done_without_settling(self) -> None:
        world = World()
        assert toy.run_once(world) == Parked('the leap')
        world.log.clear()
        world.unsent.add('leap')
        assert toy.run_once(world) == Parked('the leap')
        assert world.log == ['do leap']
        world.abort_reason = 'aborted'
        assert toy.run_once(world) is None
        assert 'settle' in world.log, 'nothing is undone unsettled'

    def test_time_of_each_step_begins_with_its_first_try_and_ends_once(self) -> None:
        world = World()
        world.scripts['do prepare'] = [Parked('a little')]
        subject = toy.Subject(world)
        runs = executor.SagaExecutor(lambda _subject: toy.toy(), subject)
        while runs.run() is not None:
            pass
        names = [step.name for step in toy.toy().steps]
        assert subject.times.ended == [(1, name, 'do') for name in names]
        assert list(dict.fromkeys(subject.times.tried)) == [(1, name, 'do') for name in names]
        assert subject.times.tried.count((1, 'prepare', 'do')) > 1

    def test_ended_saga_is_not_run(self) -> None:
        world = toy.run(World())
        log = list(world.log)
        assert toy.run_once(world) is None
        assert world.log == log

    def test_intent_is_committed_before_the_act_together_with_the_previous_done(self) -> None:
        world = World()
        toy.run(world)
        assert world.log == [
            'commit do book intent',
            'do book',
            # two checks, which write no intent, share the commit of the next intent with the step before them
            'do look',
            'do ask',
            'commit do book done, do look done, do ask done, do prepare intent',
            'do prepare',
            'commit do prepare done, do leap intent',
            'do leap',
            'settle',
            # the outcome, the step after it and the next intents are one commit
            'do flip',
            'commit do leap done, do flip done, do left intent, do right intent, outcome forward',
            'do left',
            'do right',
            'commit do left done, do right done, do tidy intent',
            'do tidy',
            'do finish',
            'commit do tidy done, do finish done, end finished',
        ]

    def test_every_act_that_has_an_intent_finds_it_in_the_database(self) -> None:
        world = World()
        with_intent = {step.name for step in toy.toy().steps if step.intent}
        world.scripts['settle'] = [Parked('a look'), Parked('another')]
        toy.run(world)
        for number, line in enumerate(world.log):
            name = line.removeprefix('do ')
            if name in with_intent and line.startswith('do '):
                assert any(f'do {name} intent' in earlier for earlier in world.log[:number])

    def test_abort_after_forward_undoes_nothing(self) -> None:
        world = World()
        world.scripts['do left'] = [Failed('no'), Failed('still no'), Parked('a little')]
        toy.run_once(world)
        assert toy.run_once(world) == failure('no')
        assert world.stored.outcome == 'forward'
        world.abort_reason = 'too late'
        toy.run(world)
        assert world.stored.ended == 'finished'
        assert world.effects == ALL_DONE
        assert not any(line.startswith('undo') for line in world.log)

    def test_failed_retriable_step_parks_with_reason_and_is_tried_again(self) -> None:
        world = World()
        world.effects['leap'] = 1
        world.abort_reason = 'asks at once'
        world.scripts['do tidy'] = [Failed('broken')]
        assert toy.run_once(world) == failure('broken')
        assert toy.run_once(world) is None
        assert world.acts().count('do tidy') == 2

    def test_step_of_a_pair_that_is_done_first_is_not_repeated(self) -> None:
        world = World()
        world.abort_reason = 'asks at once'
        world.effects['leap'] = 1
        world.scripts['do left'] = [Parked('left'), Parked('left')]
        assert toy.run_once(world) == Parked('left')
        # A run does not repeat a step that has just parked, although the other one is done.
        assert world.acts()[-2:] == ['do left', 'do right']
        assert world.commits()[-1] == 'do right done'
        toy.run(world)
        assert world.acts().count('do right') == 1
        assert world.acts().count('do left') == 3
        assert world.stored.ended == 'finished'

    def test_stuck_step_of_a_pair_is_reported_while_the_other_goes_on(self) -> None:
        world = World()
        world.abort_reason = 'asks at once'
        world.effects['leap'] = 1
        world.scripts['do left'] = [Parked('left'), Parked('left')]
        world.scripts['do right'] = [Stuck('right')]
        assert toy.run_once(world) == Stuck('right')
        assert toy.run_once(world) == Parked('left')
        assert toy.run_once(world) is None

    def test_intent_that_parks_after_the_pivot_holds_the_step_back_and_keeps_the_outcome(self) -> None:
        world = World()
        world.scripts['intent left'] = [Parked('not yet'), Stuck('broken off'), Failed('not now')]
        toy.run_once(world)
        assert toy.run_once(world) == Parked('not yet')
        assert world.stored.outcome == 'forward'
        assert 'do left' not in world.log
        assert toy.run_once(world) == Stuck('broken off')
        assert toy.run_once(world) == failure('not now')
        assert toy.run_once(world) is None


class TestBeforeThePivot:
    def test_a_parked_step_keeps_its_intent_and_is_done_again_without_writing_another(self) -> None:
        world = World()
        world.scripts['do prepare'] = [Parked('the preparation')]
        assert toy.run_once(world) == Parked('the preparation')
        assert world.commits()[-1] == 'do book done, do look done, do ask done, do prepare intent'
        world.abort_reason = None
        toy.run(world)
        assert sum('do prepare intent' in commit for commit in world.commits()) == 1

    def test_a_check_that_parks_leaves_nothing_uncommitted_behind(self) -> None:
        world = World()
        world.scripts['do ask'] = [Parked('a place')]
        assert toy.run_once(world) == Parked('a place')
        assert world.commits()[-1] == 'do book done, do look done'

    def test_a_check_of_an_owner_that_died_before_any_record_of_it_is_undone(self) -> None:
        made = 0
        for crash in range(10):
            world = World(crash_at=crash)
            with pytest.raises(Crash):
                toy.run_once(world)
            assert 'prepare' not in world.effects
            made += 'look' in world.effects and (1, 'look', 'do') not in world.stored.records
            world.abort_reason = 'aborted'
            toy.run(world)
            assert world.effects == {}, (crash, world.log)
        assert made > 1

    def test_a_check_is_not_undone_if_the_owner_knows_that_it_was_not_made(self) -> None:
        world = World()
        world.scripts['do book'] = [Failed('no')]
        toy.run(world)
        assert 'undo look' not in world.log
        assert 'do book failed, undo book intent, outcome back' in world.commits()

    def test_intent_that_is_not_available_parks_or_fails_without_a_record(self) -> None:
        world = World()
        world.scripts['intent book'] = [Parked('the library')]
        assert toy.run_once(world) == Parked('the library')
        assert world.commits() == []
        world.scripts['intent book'] = [Failed('no book')]
        toy.run(world)
        assert world.stored.ended == 'undone'
        assert 'do book' not in world.log

    def test_a_step_that_is_stuck_is_observed_again_and_goes_on_by_itself(self) -> None:
        world = World()
        world.scripts['do book'] = [Stuck('odd'), Stuck('odd')]
        assert toy.run_once(world) == Stuck('odd')
        assert toy.run_once(world) == Stuck('odd')
        toy.run(world)
        assert world.stored.ended == 'finished'

    def test_a_refused_commit_ends_the_run_and_nothing_was_done(self) -> None:
        world = World()
        world.refuse_commits = 1
        with pytest.raises(Refused):
            toy.run_once(world)
        assert world.acts() == []
        assert world.stored.records == {}

    def test_abort_settles_before_it_undoes(self) -> None:
        world = World()
        world.scripts['do prepare'] = [Parked('the preparation')]
        toy.run_once(world)
        world.abort_reason = 'aborted'
        world.scripts['settle'] = [Parked('the hosts'), Stuck('odd')]
        assert toy.run_once(world) == Parked('the hosts')
        assert toy.run_once(world) == Stuck('odd')
        assert world.stored.outcome is None
        toy.run(world)
        assert world.stored.ended == 'undone'
        assert world.effects == {}

    def test_abort_that_settling_overrules_goes_on(self) -> None:
        world = World()
        world.scripts['do prepare'] = [Failed('so it seemed')]
        world.scripts['settle'] = [GoOn(), GoOn()]
        toy.run(world)
        assert world.stored.ended == 'finished'


class TestBack:
    @pytest.mark.parametrize('failing', COMPENSATABLE)
    @pytest.mark.parametrize('half_done', [False, True])
    def test_a_failure_before_the_pivot_undoes_what_started_in_reverse(self, failing: str, half_done: bool) -> None:
        world = World()
        world.scripts[f'do {failing}'] = [(Failed('no'),) if half_done and failing != 'ask' else Failed('no')]
        toy.run(world)
        assert (world.stored.outcome, world.stored.ended) == ('back', 'undone')
        assert world.effects == {}
        expected = {
            'book': ['undo book'],
            'look': ['undo look', 'undo book'],
            'ask': ['undo look', 'undo book'],
            # look and prepare share one undo, which runs once
            'prepare': ['undo look', 'undo book'],
        }
        assert [line for line in world.acts() if line.startswith('undo')] == expected[failing]

    def test_a_saga_that_failed_before_anything_began_undoes_nothing_that_had_an_effect(self) -> None:
        world = World()
        world.abort_reason = 'at once'
        toy.run(world)
        assert world.stored.ended == 'undone'
        assert [line for line in world.acts() if line.startswith('do ')] == []

    def test_undo_of_the_pivot_waits_for_the_undo_that_it_names(self) -> None:
        world = World()
        world.scripts['do leap'] = [Failed('no leap')]
        world.scripts['settle'] = [Back('no leap')]
        toy.run(world)
        assert [line for line in world.acts() if line.startswith('undo')] == ['undo look', 'undo leap', 'undo book']
        assert world.effects == {}

    def test_done_of_each_undo_shares_its_commit_with_the_next_intent_or_the_end(self) -> None:
        world = World()
        world.scripts['do leap'] = [Failed('no leap')]
        world.scripts['settle'] = [Back('no leap')]
        toy.run(world)
        assert world.commits()[-4:] == [
            'do leap failed, undo prepare intent, outcome back',
            'undo prepare done, undo leap intent',
            'undo leap done, undo book intent',
            'undo book done, end undone',
        ]

    def test_step_without_an_effect_has_no_undo_and_no_commit_of_its_own(self) -> None:
        world = World()
        world.no_effect['leap'] = 'it had not begun'
        world.scripts['do leap'] = [Failed('no leap')]
        world.scripts['settle'] = [Back('no leap')]
        toy.run(world)
        assert 'undo leap' not in world.log
        assert world.commits()[-3:] == [
            'do leap failed, undo prepare intent, outcome back',
            'undo prepare done, undo leap done, undo book intent',
            'undo book done, end undone',
        ]

    @pytest.mark.parametrize('verdict', [Parked('later'), Failed('not now'), Stuck('odd')])
    def test_failed_undo_delays_next_undos_and_is_tried_again(self, verdict: object) -> None:
        world = World()
        world.scripts['do leap'] = [Failed('no leap')]
        world.scripts['settle'] = [Back('no leap')]
        world.scripts['undo look'] = [verdict]
        pause = toy.run_once(world)
        assert pause == (verdict if isinstance(verdict, Stuck) else Parked(pause.why))
        assert 'undo book' not in world.log
        toy.run(world)
        assert world.effects == {}

    def test_outcome_back_is_not_settled_again(self) -> None:
        world = World()
        world.scripts['do leap'] = [Failed('no leap')]
        world.scripts['settle'] = [Back('no leap')]
        world.scripts['undo look'] = [Parked('later')]
        toy.run_once(world)
        toy.run(world)
        assert world.acts().count('settle') == 1

    def test_lost_saga_is_undone_and_ends_as_lost(self) -> None:
        world = World()
        world.scripts['do leap'] = [Parked('the leap')]
        world.scripts['settle'] = [Lost('nowhere')]
        toy.run(world)
        assert (world.stored.outcome, world.stored.ended) == ('back', 'lost')
        assert world.effects == {}

    def test_lost_saga_gets_no_further_attempt(self) -> None:
        world = World()
        world.attempts = 3
        world.scripts['do prepare'] = [Failed('no')]
        world.scripts['settle'] = [Lost('nowhere')]
        toy.run(world)
        assert (world.stored.attempt, world.stored.ended) == (1, 'lost')


class TestAttempts:
    def test_a_failed_attempt_is_undone_whole_before_the_next_begins(self) -> None:
        world = World()
        world.attempts = 3
        world.scripts['do prepare'] = [(Failed('no'),), (Failed('no'),)]
        toy.run(world)
        assert world.stored.attempt == 3
        assert world.stored.ended == 'finished'
        assert set(world.effects.values()) == {3}
        first = world.log.index('commit undo book done, next attempt')
        assert world.log[first - 1] == 'undo book'
        assert world.log[first + 1] == 'commit do book intent'

    def test_the_outcome_is_written_only_when_no_attempt_is_left(self) -> None:
        world = World()
        world.attempts = 2
        world.scripts['do look'] = [Failed('no'), Failed('neither')]
        toy.run(world)
        outcome = [commit for commit in world.commits() if 'outcome back' in commit]
        assert outcome == ['do look failed, undo look intent, outcome back']
        assert world.log.index('commit undo book done, next attempt') < world.log.index(f'commit {outcome[0]}')
        assert world.stored.ended == 'undone'

    def test_a_failure_at_the_pivot_is_the_last_attempt(self) -> None:
        world = World()
        world.attempts = 3
        world.scripts['do leap'] = [Failed('no leap')]
        world.scripts['settle'] = [Back('no leap')]
        toy.run(world)
        assert (world.stored.attempt, world.stored.ended) == (1, 'undone')

    def test_saga_ends_if_no_attempt_is_left_once_the_last_one_is_undone(self) -> None:
        world = World()
        world.attempts = 2
        world.scripts['do look'] = [Failed('no')]
        world.scripts['undo look'] = [Parked('later')]
        toy.run_once(world)
        world.attempts = 1
        toy.run(world)
        assert (world.stored.attempt, world.stored.outcome, world.stored.ended) == (1, 'back', 'undone')


def _success(world: World) -> None:
    world.scripts['do leap'] = []


def _fails(step: str) -> object:
    def script(world: World) -> None:
        world.scripts[f'do {step}'] = [(Failed('no'),)] * 30

    return script


def _back_at_the_pivot(world: World) -> None:
    world.scripts['do leap'] = [Failed('no leap')] * 30
    world.scripts['settle'] = [Back('no leap')] * 30


def _lost(world: World) -> None:
    world.scripts['do leap'] = [Parked('the leap')] * 30
    world.scripts['settle'] = [Lost('nowhere')] * 30


PATHS = {
    'success': _success,
    **{f'{step} fails': _fails(step) for step in COMPENSATABLE},
    'back at the pivot': _back_at_the_pivot,
    'lost': _lost,
}


def _ended(path: object, *crashes: int) -> World:
    """Run a scenario that is killed at a boundary of each boot."""
    world = World()
    path(world)
    for crash in crashes:
        world.crash_at = world.boundaries + crash
        try:
            toy.run_once(world)
        except Crash:
            continue
        if world.stored.ended:
            break
    world.crash_at = None
    return toy.run(world)


class TestCrashes:
    @pytest.mark.parametrize('path', PATHS.values(), ids=PATHS.keys())
    def test_saga_killed_at_any_two_boundaries_ends_in_the_same_state(self, path: object) -> None:
        plain = _ended(path)
        boundaries = plain.boundaries
        assert boundaries > 10
        seen = 0
        for first in range(boundaries):
            for second in range(boundaries):
                world = _ended(path, first, second)
                assert world.effects == plain.effects, (first, second, world.log)
                assert (world.stored.outcome, world.stored.ended) == (plain.stored.outcome, plain.stored.ended)
                # A check that an earlier boot may have made without a record is undone too.
                assert plain.dones() <= world.dones() <= plain.dones() | {(1, 'look', 'undo')}
                seen += 1
        assert seen == boundaries**2

    def test_saga_killed_at_any_boundary_of_a_second_attempt_ends_in_the_same_state(self) -> None:
        def run(crash: int | None) -> World:
            world = World()
            world.attempts = 2
            world.scripts['do prepare'] = [(Failed('no'),)]
            world.crash_at = crash
            return toy.run(world)

        boundaries = run(None).boundaries
        for crash in range(boundaries):
            world = run(crash)
            # A failure that was not committed is forgotten, and the same attempt is good the second time.
            assert world.stored.attempt in (1, 2)
            assert set(world.effects.values()) == {world.stored.attempt}
            assert world.stored.ended == 'finished'

    def test_act_is_repeated_only_if_its_intent_is_stored(self) -> None:
        boundaries = _ended(_success).boundaries
        with_intent = {step.name for step in toy.toy().steps if step.intent}
        for crash in range(boundaries):
            world = _ended(_success, crash)
            for number, line in enumerate(world.log):
                if line.startswith('do ') and line[3:] in with_intent:
                    assert any(f'{line} intent' in commit for commit in world.log[:number]), world.log


def test_executor_keeps_no_state_between_runs_except_the_log() -> None:
    world = World()
    world.scripts['do ask'] = [Parked('one'), Parked('two')]
    one = executor.SagaExecutor(lambda _subject: toy.toy(), toy.Subject(world))
    assert one.run() == Parked('one')
    other = executor.SagaExecutor(lambda _subject: toy.toy(), toy.Subject(world))
    assert other.run() == Parked('two')
    assert other.run() == Parked('the leap')
    assert toy.run_once(world) is None
    assert world.effects == ALL_DONE


class TestStatuses:
    """A step names the status that its subject has from its first record on."""

    def test_status_is_entered_once_with_the_intent_or_with_the_done_of_a_step_without_one(self) -> None:
        world = toy.run(World())
        assert world.statuses == ['booking', 'leaping', 'flipped 1']

    def test_status_is_entered_if_the_intent_fails_and_not_if_it_parks(self) -> None:
        world = World()
        world.scripts['intent book'] = [Parked('room'), Failed('no room')]
        assert toy.run_once(world) == Parked('room')
        assert world.statuses == []
        toy.run(world)
        assert world.statuses == ['booking']
