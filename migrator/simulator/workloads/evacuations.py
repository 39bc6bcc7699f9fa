# SPDX-License-Identifier: Apache-2.0

"""The random plans in which hosts are lost and their guests are evacuated."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from migrator.objects import service
from migrator.simulator.workloads.plans import DIRTY_RATES, HORIZON, INTERFERES, MEMORY, Deed, Guest, Plan, of

#: The driver calls of an evacuation, which hang or fail.
_EVACUATING = (
    'check_can_evacuate',
    'evacuate',
    'rollback_evacuation_at_destination',
    'post_evacuation_at_source',
    'get_guest',
)
#: How a host is lost: without its power, without its compute service, or without its heartbeats. A likelier one is
#: repeated.
_LOSSES = ('power', 'power', 'service', 'service', 'heartbeats')
#: The power states of guests. A likelier one is repeated.
_POWER_STATES = (1, 1, 1, 1, 1, 1, 3, 4)


def loss(
    dice: random.Random, begin: float, hosts: list[str], guests: int, losses: Sequence[str] = _LOSSES
) -> tuple[float, list[Deed]]:
    """Return the time of the next loss, and actions that lose the host of a guest and evacuate its guests.

    The guest may be migrated before that, during it and after it. The host may come back before the evacuation has
    begun, during it or after it, and it may have been lost only in the eyes of the operator.
    """
    whom = dice.randrange(guests)
    how, lasts = dice.choice(losses), dice.choice((1.5, 5.0, 12.0, 40.0, 80.0, 110.0, 160.0))
    for_ever = how != 'heartbeats' and dice.random() < 0.1
    lost = begin + dice.choice((0.0, dice.uniform(0.2, 6)))
    asked = lost + dice.choice((dice.uniform(0, 2), dice.uniform(0, 10)))
    deeds = [Deed(lost, 'its host is lost', whom, (how, None if for_ever else lasts))]
    if dice.random() < 0.5:
        deeds.append(Deed(begin, 'migrate soon', whom, dice.choice((None, *hosts))))
    for number in range(guests):
        if number == whom or dice.random() < 0.5:
            named, declares, clears = dice.choice((None, None, *hosts)), dice.random() < 0.8, dice.random() < 0.7
            force = named is not None and dice.random() < 0.3
            deeds.append(Deed(asked + dice.uniform(0, 1), 'evacuate soon', number, (named, force, declares, clears)))
    if dice.random() < 0.5:
        host, calls = dice.choice(hosts), (*dice.sample(_EVACUATING, dice.choice((1, 1, 2))),)
        fault_at = asked + dice.uniform(-1, 4)
        deeds.append(Deed(fault_at, dice.choice(('hypervisor fails', 'hypervisor hangs')), host, calls))
        deeds.append(Deed(fault_at + dice.choice((3.0, 30.0, 90.0)), 'hypervisor answers', host))
    if dice.random() < 0.5:
        process = dice.choice((*hosts, 'conductor1', 'conductor2', 'api'))
        deeds.append(Deed(asked + dice.uniform(0, 4), 'kill', process, dice.choice((0.5, 3.0, 20.0, 75.0))))
    if dice.random() < 0.4:
        deeds.append(Deed(asked + dice.uniform(0, 20), 'migrate soon', whom, dice.choice((None, *hosts))))
    if dice.random() < 0.3:
        deeds.append(Deed(asked + dice.uniform(0, 20), dice.choice((*INTERFERES, 'pause the guest')), whom))
    if dice.random() < 0.15:
        deeds.append(Deed(asked + dice.uniform(0, 40), 'delete', whom))
    back = lost + lasts
    return dice.choice((asked + dice.uniform(2, 20), back + dice.uniform(0, 3), back + dice.uniform(3, 40))), deeds


def of_evacuations(seed: int) -> Plan:
    """Return a seed's plan in which hosts are lost and their guests are evacuated, once or several times.

    Guests may be evacuated back, be migrated meanwhile, and be deleted. Some hosts may be of a version that can neither
    start an evacuated guest nor clean up after one. Now and then another machine has the name of a host for a while.
    """
    plan = of(seed)
    dice = random.Random(f'evacuations of {seed}')  # noqa: S311 -- a run must be repeatable, and not secret
    hosts = [f'host{number}' for number in range(1, dice.choice((2, 3, 3, 3, 4)) + 1)]
    guests = tuple(
        Guest(
            dice.choice(('host1', 'host1', 'host2')),
            dice.choice(MEMORY),
            dice.choice(DIRTY_RATES),
            dice.choice(_POWER_STATES),
        )
        for _ in range(dice.choice((1, 1, 2, 3)))
    )
    deeds = [
        Deed(0.0, dice.choice(('retry once stuck', 'abandon once stuck')), number)
        for number in range(len(guests))
        if dice.random() < 0.3
    ]
    end = dice.uniform(0, 12)
    for _ in range(dice.choice((1, 1, 2, 3))):
        end, more = loss(dice, end, hosts, len(guests))
        deeds += more
    deeds.append(Deed(end + dice.uniform(0, 60), 'migrate soon', dice.randrange(len(guests))))
    # These have dice of their own, so that the rest of the plan of a seed stays as it was.
    strangers = random.Random(f'other machines of {seed}')  # noqa: S311 -- a run must be repeatable, and not secret
    while strangers.random() < 0.4:
        at, lasts = strangers.uniform(0, end + 30), strangers.choice((5.0, 40.0, 120.0))
        deeds.append(Deed(at, 'another machine', strangers.choice(hosts), lasts))
    versions = {}
    if dice.random() < 0.3:
        old = dice.choice(hosts)
        versions[old] = dice.randrange(1, service.CURRENT_VERSION)
        if dice.random() < 0.7:
            deeds.append(Deed(dice.uniform(0, end + 60), 'upgrade', old, dice.choice((0.5, 3.0, 20.0))))
    if dice.random() < 0.2:
        # A request may name it.
        fields = {'status': 'disabled', 'disabled_reason': 'broken fan'}
        deeds.append(Deed(dice.uniform(0, end), 'set the service', dice.choice(hosts), fields))
    return dataclasses.replace(
        plan,
        hosts=len(hosts),
        guests=guests,
        deeds=tuple(
            dataclasses.replace(deed, at=round(max(deed.at, 0.0), 3)) for deed in sorted(deeds, key=lambda one: one.at)
        ),
        versions=versions,
        rate=plan.rate / 4,
        horizon=end + HORIZON,
    )
