# SPDX-License-Identifier: Apache-2.0

"""Random days of a maintenance. What must hold is judged by what is really so, at each event.

Each planted bug has to be found.
"""

import pytest

from migrator.drain.maintenance import actions, limits, returned
from migrator.drain.maintenance.turns import MaintenanceStatus, TurnStatus
from tests.unit.drain.maintenance import site as sites
from tests.unit.drain.maintenance.day import Day

SEEDS = 60
#: The greatest number of seeds that a planted bug may need.
PLANTED = 400


@pytest.mark.parametrize('first', range(0, SEEDS, 30))
def test_what_must_hold_holds_whatever_happens(first):
    for seed in range(first, first + 30):
        assert Day(seed).live() == [], f'seed {seed}'


def test_days_are_varied():
    """Each status and each end is seen, so that what holds is not only what never happens."""
    seen, ends = set(), set()
    for seed in range(60):
        day = Day(seed)
        day.live()
        seen |= {(payload['status']) for kind, payload in day.store.log if kind == 'turn'}
        ends.add(day.store.get(sites.UUID).status)
    assert seen == {*TurnStatus}
    assert ends >= {MaintenanceStatus.COMPLETED, MaintenanceStatus.INCOMPLETE}


def work_before_the_last_guest_left(patch):
    drains = sites.Site.drains
    patch.setattr(sites.Site, 'left', lambda *_: [])
    patch.setattr(
        sites.Site,
        'drains',
        lambda site, uuids: {uuid: row.replace(status='completed') for uuid, row in drains(site, uuids).items()},
    )


def claim_that_is_given_twice(patch):
    write = sites.Store.write

    def unguarded(store, maintenance, *more):
        return write(store, store.get(maintenance.uuid), *more)

    patch.setattr(sites.Store, 'write', unguarded)


def limit_that_forgets_what_is_ready(patch):
    def too_many(maintenance, turns, *more):
        return limits_of(maintenance, [one for one in turns if one.status != TurnStatus.READY], *more)

    limits_of = limits.why_too_many
    patch.setattr(limits, 'why_too_many', too_many)


def limit_without_the_hosts_of_others(patch):
    limits_of = limits.why_too_many
    patch.setattr(limits, 'why_too_many', lambda one, turns, out, groups, turn: limits_of(one, turns, {}, {}, turn))


def report_from_before_the_work(patch):
    patch.setattr(returned, 'judge', lambda turn, report, *_: returned.Verdict())


def report_from_just_after_the_work(patch):
    judge = returned.judge

    def hasty(turn, report, by, settle, gap):
        return judge(turn, report, by, 0.0, gap)

    patch.setattr(returned, 'judge', hasty)


def gap_that_is_not_seen(patch):
    judge = returned.judge
    patch.setattr(returned, 'judge', lambda turn, report, by, settle, _gap: judge(turn, report, by, settle, 1e9))


def reboot_that_may_be_any_restart(patch):
    judge = returned.judge
    patch.setattr(
        returned,
        'judge',
        lambda turn, report, by, *more: judge(turn, report, 'restart' if by == 'reboot' else by, *more),
    )


def host_that_is_enabled_before_it_is_back(patch):
    done = actions.done

    def hasty(store, uuid, host, *more):
        turn = done(store, uuid, host, *more)
        store._site.machines[host].disabled_by = None
        return turn

    patch.setattr(actions, 'done', hasty)


PLANTS = [
    work_before_the_last_guest_left,
    claim_that_is_given_twice,
    limit_that_forgets_what_is_ready,
    limit_without_the_hosts_of_others,
    report_from_before_the_work,
    report_from_just_after_the_work,
    gap_that_is_not_seen,
    reboot_that_may_be_any_restart,
    host_that_is_enabled_before_it_is_back,
]


@pytest.mark.parametrize('plant', PLANTS, ids=lambda plant: plant.__name__)
def test_planted_bug_is_found(plant, monkeypatch):
    plant(monkeypatch)
    assert any(Day(seed).live() for seed in range(PLANTED))
