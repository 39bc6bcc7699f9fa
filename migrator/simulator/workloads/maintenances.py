# SPDX-License-Identifier: Apache-2.0

"""The random plans in which hosts are maintained, beside whatever else happens to their guests."""

from __future__ import annotations

import dataclasses
import random

from migrator.simulator.workloads.plans import HORIZON, Deed, Guest, Plan, of

#: The memory of the guests in MiB.
_MEMORY = (256, 512, 1024)
#: What else happens. What a user or an operator does by hand at a host is left out: it may be worked on.
_BESIDE = (
    *('migrate', 'abort', 'look', 'lock', 'unlock', 'delete', 'kill', 'hypervisor fails', 'hypervisor answers'),
    *('pause the guest', 'resume the guest', 'slow link', 'hypervisor works'),
)


def of_maintenances(seed: int) -> Plan:
    """Return a seed's plan in which some hosts are maintained.

    Two users compete for the work, which reboots a host or starts its compute service anew, or fails. Conductors,
    computes and the API are killed.
    """
    plan = of(seed)
    dice = random.Random(f'maintenances of {seed}')  # noqa: S311 -- a run must be repeatable, and not secret
    count = dice.choice((3, 3, 4, 5))
    hosts = [f'host{number}' for number in range(1, count + 1)]
    guests = [Guest(dice.choice(hosts), dice.choice(_MEMORY), 0.0) for _ in range(dice.choice((1, 2, 4, 6)))]
    wanted = {
        'hosts': dice.sample(hosts, dice.randint(1, count)),
        'in_order': dice.random() < 0.5,
        'parallel': dice.choice((1, 2, 2)),
        'max_failures': dice.choice((0, 0, 1)),
        'returned_by': dice.choice(('reboot', 'restart', 'report')),
        'settle': 90.0,
        'return_timeout': 240.0,
        'work_timeout': 60.0,
        'wait_for_room': 120.0,
        'deadline': dice.choice((None, None, None, 150.0, 400.0)),
        'cancel': dice.choice((None, None, None, None, dice.uniform(5, 200))),
        'prefer': random.Random(f'prefer {seed}').choice(('time', 'time', 'moves')),  # noqa: S311 -- as above
        'guests': random.Random(f'guests {seed}').choice(('stay', 'back')),  # noqa: S311 -- as above
        'stopped': dice.choice(('move', 'stay')),
    }
    deeds = [deed for deed in plan.deeds if deed.name in _BESIDE and (deed.name != 'migrate' or dice.random() < 0.4)]
    there = {*hosts, 'conductor1', 'conductor2', 'api', *range(len(guests))}
    deeds = [deed for deed in deeds if deed.whom in there]
    deeds.append(Deed(dice.choice((0.0, dice.uniform(0, 5))), 'maintain', 'host1', wanted))
    # Users migrate guests while hosts are worked on and return.
    for _ in range(dice.choice((0, 4, 12))):
        deeds.append(Deed(dice.uniform(15, 200), 'migrate', dice.randrange(len(guests)), None))
    for _ in range(dice.choice((0, 1, 2, 3))):
        whom = dice.choice(('conductor1', 'conductor2', *hosts, 'api'))
        deeds.append(Deed(dice.uniform(0, 90), 'kill', whom, dice.choice((0.5, 3.0, 20.0, 70.0))))
    # Some name a host, in versions in which it may be disabled.
    named = random.Random(f'named in the maintenances of {seed}')  # noqa: S311 -- as above
    for _ in range(named.choice((0, 0, 2, 6))):
        to = (named.choice(hosts), named.choice(('2.29', '2.60')))
        deeds.append(Deed(named.uniform(5, 200), 'force to', named.randrange(len(guests)), to))
    return dataclasses.replace(
        plan,
        hosts=count,
        guests=tuple(guests),
        golden=frozenset(),
        deeds=tuple(
            dataclasses.replace(deed, at=round(max(deed.at, 0.0), 3)) for deed in sorted(deeds, key=lambda one: one.at)
        ),
        horizon=HORIZON + 200.0,
    )
