# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

from collections.abc import Callable

import pytest

from migrator.conductor.migration import replies
from migrator.conductor.migration.settle_table import Host, Observed
from migrator.testing.simulation.threads import Simulation

SOURCE, DESTINATION = Host(Observed.HERE), Host(Observed.ABSENT)


@pytest.fixture
def cut_short() -> replies.Replies:
    """Return the replies after a run that has polled two hosts, and then found no free call slot."""
    with Simulation(seed=1) as simulation:
        found = replies.Replies(simulation.process('conductor').clock, settling=True)
    found.begin_run(news=False)
    found.polls.note('host1', SOURCE)
    found.polls.note('host2', DESTINATION)
    found.note_unsent(1, 1, 'live_migration')
    return found


def test_run_after_one_without_a_slot_has_the_same_answers_to_the_same_polls(cut_short: replies.Replies) -> None:
    for _again in range(2):
        cut_short.begin_run(news=False)
        assert [cut_short.polls.answer_before(host) for host in ('host1', 'host2')] == [SOURCE, DESTINATION]
        assert cut_short.polls.answer_before('host1') is None
        cut_short.note_unsent(1, 1, 'live_migration')
    cut_short.begin_run(news=False)
    cut_short.begin_run(news=False)
    assert cut_short.polls.answer_before('host1') is None


def test_answer_is_dropped_when_another_host_is_polled_before_it(cut_short: replies.Replies) -> None:
    """The destination has to be polled after the source, since the guest may move between the two polls."""
    cut_short.begin_run(news=False)
    assert cut_short.polls.answer_before('host2') is None
    assert cut_short.polls.answer_before('host1') is None


@pytest.mark.parametrize(
    'happens',
    [
        lambda found: found.begin_epoch(),
        lambda found: found.note_sent(1, 1, 'live_migration'),
        lambda found: found.reread(found, same_epoch=True),
        lambda found: found.begin_run(news=True),
    ],
    ids=['new epoch', 'step sent', 'row read again', 'report of a host'],
)
def test_answers_are_dropped_when_the_hosts_may_answer_otherwise(
    cut_short: replies.Replies, happens: Callable[[replies.Replies], None]
) -> None:
    happens(cut_short)
    cut_short.begin_run(news=False)
    assert cut_short.polls.answer_before('host1') is None
