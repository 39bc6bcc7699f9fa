# SPDX-License-Identifier: Apache-2.0

"""The random plans in which operators move and start guests by hand, beside migrations."""

from __future__ import annotations

import dataclasses
import random

from migrator.simulator.workloads import evacuations
from migrator.simulator.workloads.plans import HORIZON, MEMORY, Deed, Guest, Plan, of

#: Seconds within which a difference is found.
FOUND = 140.0
#: What an operator does by hand. A likelier one is repeated.
_BY_HAND = ('move by hand', 'move by hand', 'move by hand', 'start by hand', 'shut the guest off')
#: What a user or another operator requests meanwhile. A likelier one is repeated.
_REQUESTS = ('migrate soon', 'migrate cold soon', 'migrate cold soon', 'loss', 'loss', 'loss')


def _round(dice: random.Random, begin: float, hosts: list[str], guests: int) -> tuple[float, list[Deed]]:
    """Return when a round ends, and its actions: one by hand, and requests before and after it."""
    whom = dice.randrange(guests)
    by_hand = dice.choice(_BY_HAND)
    more = (dice.choice(hosts), dice.random() < 0.4) if by_hand == 'move by hand' else None
    at = begin + dice.choice((0.0, dice.uniform(0, 4), dice.uniform(0, 20)))
    deeds = [Deed(at, by_hand, whom, more)]
    # A difference is found after a minute, and what follows may come before that or after it.
    asked = at + dice.choice((dice.uniform(-3, 3), dice.uniform(0, 30), dice.uniform(60, 150)))
    request = dice.choice(_REQUESTS)
    if request == 'loss':
        end, lost = evacuations.loss(dice, asked, hosts, guests, ('power',))
        return end, deeds + [_rightly(deed) for deed in lost]
    deeds.append(Deed(asked, request, whom, dice.choice((None, None, *hosts))))
    if request == 'migrate cold soon':
        answer = dice.choice(('confirmResize', 'revertResize', 'revertResize'))
        deeds.append(Deed(asked + 1, 'decide later', whom, (answer, dice.choice((0.0, 5.0, 70.0)))))
        if dice.random() < 0.5:
            again = asked + dice.uniform(3, 60)
            deeds.append(Deed(again, 'move by hand', whom, (dice.choice(hosts), dice.random() < 0.4)))
    return max(asked, at) + dice.uniform(3, 60), deeds


def _rightly(deed: Deed) -> Deed:
    """Return an action whose operator declares a host down only if it is."""
    if deed.name != 'evacuate soon':
        return deed
    named, force, declares, clears = deed.more
    return dataclasses.replace(deed, more=(named, force, 'rightly' if declares else False, clears))


def _with_an_absence(dice: random.Random, deeds: list[Deed], hosts: list[str], end: float) -> list[Deed]:
    """Return actions with the absence of a host's compute service for some minutes.

    Its guests go on, and it does not list them. A guest that moves there meanwhile leaves no copy behind anywhere, and
    no host is lost before the guest was found missing. Otherwise no list has shown where the guest is, and no rule can.
    """
    moves = [one for one in deeds if one.name == 'move by hand']
    begin, lasts, host = dice.uniform(0, end + 60), dice.uniform(300, 600), dice.choice(hosts)
    if moves and dice.random() < 0.5:
        hides = dice.choice(moves)
        # Before any list has shown the guest there, or after one has.
        since = dice.choice((-dice.uniform(0, 30), FOUND + dice.uniform(0, 60)))
        begin, host = max(hides.at + since, 0.0), hides.more[0]
    hidden = [one for one in moves if one.more[0] == host and begin - FOUND < one.at < begin + lasts]
    lost = [one.at for one in deeds if one.name == 'its host is lost']
    left = {one.whom for one in moves if one.more[1] and one not in hidden}
    if left & {one.whom for one in hidden} or any(abs(one.at - at) < FOUND for at in lost for one in hidden):
        return deeds
    moved = [dataclasses.replace(one, more=(host, False)) if one in hidden else one for one in deeds]
    return [*moved, Deed(begin, 'kill', host, lasts)]


def of_changes_by_hand(seed: int) -> Plan:
    """Return a seed's plan in which guests are moved, started and stopped without the control plane.

    A moved guest may leave a copy that is shut off. Its host in the database may be lost and its guests evacuated, and
    users may migrate it, live or cold. An operator who declares a host down has fenced it.
    """
    plan = of(seed)
    dice = random.Random(f'by hand {seed}')  # noqa: S311 -- a run must be repeatable, and not secret
    hosts = [f'host{number}' for number in range(1, dice.choice((3, 3, 4)) + 1)]
    guests = tuple(
        Guest(dice.choice(('host1', 'host1', 'host2')), dice.choice(MEMORY[:3]), 0.0)
        for _ in range(dice.choice((1, 1, 2)))
    )
    deeds: list[Deed] = []
    end = dice.uniform(0, 5)
    for _ in range(dice.choice((1, 2, 2, 3))):
        end, more = _round(dice, end, hosts, len(guests))
        deeds += more
    absences = random.Random(f'absence {seed}')  # noqa: S311 -- as above
    if absences.random() < 0.4:
        deeds = _with_an_absence(absences, deeds, hosts, end)
    return dataclasses.replace(
        plan,
        hosts=len(hosts),
        guests=guests,
        deeds=tuple(
            dataclasses.replace(deed, at=round(max(deed.at, 0.0), 3)) for deed in sorted(deeds, key=lambda one: one.at)
        ),
        rate=plan.rate / 8,
        horizon=end + HORIZON,
    )
