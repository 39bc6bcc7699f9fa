# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import json
import string

import pytest

from migrator.objects import Migration, protocol, reasons
from migrator.objects.reasons import STUCK, WAITS, Reason, StuckKind, WaitKind


def test_each_kind_has_its_words_and_no_two_are_equal() -> None:
    assert set(WAITS) == set(WaitKind)
    assert set(STUCK) == set(StuckKind)
    assert not {*WaitKind} & {*StuckKind}
    assert set(reasons.SENTENCES) < set(WAITS)


@pytest.mark.parametrize('kind', [*WaitKind, *StuckKind])
def test_a_reason_is_the_same_after_it_was_stored(kind: str) -> None:
    words = {name: f'the {name}' for _, name, *_ in string.Formatter().parse({**WAITS, **STUCK}[kind]) if name}
    waits = Reason.of(WaitKind.STEP, 'host2', step='resize') if kind == StuckKind.NO_PROGRESS else None
    one = Reason(kind, ('host1', 'host2'), {**words, 'since': 'noon'}, waits)
    stored = json.loads(json.dumps(reasons.columns('wait', one)))
    assert Reason.read(*stored.values()) == one
    assert '{' not in one.sentence
    assert '?' not in str(one)


def test_a_wait_is_shown_as_a_sentence_with_its_time() -> None:
    one = Reason.of(WaitKind.STEP, 'host1', step='resize')
    assert (str(one), one.sentence) == ('host1 to end resize', 'for host1 to end resize')
    assert one.plus(since='noon').sentence == 'for host1 to end resize, since noon'
    away = Reason.of(WaitKind.HOST, 'host1', since='noon')
    assert away.sentence == 'host1 has not answered since noon'


def test_a_wait_that_was_too_long_names_what_it_waited_for_and_where_to_look() -> None:
    waits = Reason.of(WaitKind.STEP, 'host1', step='resize')
    assert Reason(StuckKind.NO_PROGRESS, ('host1', 'host2'), {}, waits).sentence == (
        'No progress: the migration has waited too long for host1 to end resize: look at the hypervisor of host1 and '
        'host2, and at the log of the compute service there. The migration goes on once that has happened.'
    )
    here = Reason(StuckKind.NO_PROGRESS, (), {'conductor': 'c1'}, Reason.of(WaitKind.PLACEMENT_BUSY))
    assert 'look at the log of conductor c1.' in here.sentence


def test_news_is_another_kind_or_host_and_not_another_word() -> None:
    one = Reason.of(WaitKind.RETRY, 'host1', step='resize', reason='busy')
    assert one.key == Reason.of(WaitKind.RETRY, 'host1', step='resize', reason='still busy').key
    assert one.key != Reason.of(WaitKind.RETRY, 'host2', step='resize', reason='busy').key
    assert one.key != Reason.of(WaitKind.STEP, 'host1', step='resize').key
    long = [Reason(StuckKind.NO_PROGRESS, ('host1',), {}, Reason.of(kind, 'host1')) for kind in WaitKind]
    assert len({each.key for each in long}) == len(WaitKind)


def test_words_are_bounded_and_storable_and_a_missing_one_breaks_nothing() -> None:
    one = Reason.of(StuckKind.UNKNOWN_GUEST, reason='x' * 100_000 + '\udc80')
    assert len(one.words['reason']) == len(one.sentence) == protocol.LONGEST_REASON
    assert Reason.of(WaitKind.STEP, 'host1').sentence == 'for host1 to end ?'
    assert Reason('of a later release', ('host1',)).sentence == 'of a later release'
    assert Reason.of(WaitKind.FAILURE, reason='{odd} {0}').sentence == 'for {odd} {0}'


def test_a_migration_shows_the_sentences_of_its_columns() -> None:
    fields = {'uuid': 'm', 'instance_uuid': 'i', 'project_id': 'p', 'user_id': 'u', 'source_compute': 'a'}
    one = Migration(**fields, source_node='a')
    assert (one.wait, one.waits_for, one.stuck, one.stuck_reason, one.waits_for_slot) == (None, None, None, None, False)
    slot = one.replace(**reasons.columns('wait', Reason.of(WaitKind.SLOT, what='a slot of the cluster: 1 of 1')))
    assert (slot.waits_for, slot.waits_for_slot) == ('for a slot of the cluster: 1 of 1', True)
    stuck = one.replace(**reasons.columns('stuck', Reason.of(StuckKind.GUEST_THERE, 'host1', step='resize')))
    assert stuck.stuck_reason == (
        'Host host1 refused resize: the guest is there and could run. Look which host runs it.'
    )
    assert stuck.replace(**reasons.columns('stuck', None)) == one


def test_a_wait_is_the_same_whenever_it_began_and_another_one_with_other_words() -> None:
    one = Reason.of(WaitKind.RETRY, 'host1', step='resize', reason='busy')
    assert one.equals(one.plus(since='noon'))
    assert not one.equals(one.plus(reason='still busy'))
