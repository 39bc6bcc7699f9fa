# SPDX-License-Identifier: Apache-2.0

"""The random plans in which hosts are drained, beside whatever else happens to their guests."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from migrator.simulator.workloads.plans import HORIZON, Deed, Guest, Plan, of

#: The memory of the guests in MiB.
_MEMORY = (256, 512, 1024)
#: The calls and phases that fail or hang at one host while another is drained.
_DRAINING = (
    'pre_live_migration',
    'copying',
    'cutover',
    'live_migration',
    'check_can_live_migrate_source',
    'post_live_migration_at_source',
)


def _drain(dice: random.Random, host: str, hosts: list[str]) -> list[Deed]:
    """Return the request of a drain with random options, and what is done to it and to its host."""
    others = [one for one in hosts if one != host]
    options: dict[str, tuple[Any, ...]] = {
        'order': ('requested', 'largest_first', 'smallest_first'),
        'parallel': (1, 1, 2, 3),
        'max_attempts': (1, 2, 3, 4),
        'priority': (-1, 1),
        'destinations': tuple(sorted(dice.sample(others, number)) for number in range(1, len(others) + 1)),
        'deadline': (5.0, 20.0, 90.0),
    }
    begin = dice.choice((0.0, dice.uniform(0, 3), dice.uniform(0, 15)))
    wanted = {name: dice.choice(values) for name, values in options.items() if dice.random() < 0.3}
    deeds, at = [Deed(begin, 'drain', host, wanted)], begin
    for _ in range(dice.choice((0, 0, 1, 2, 3))):
        at += dice.choice((dice.uniform(0, 1), dice.uniform(0, 8), dice.uniform(0, 60)))
        action = dice.choice(('pause', 'resume', 'cancel', 'cancel', 'restore', 'restore'))
        if action == 'restore':
            # A drain may be restored only once it has ended.
            at += dice.uniform(0, 60)
        arguments = {'abort_running': dice.random() < 0.5} if action == 'cancel' and dice.random() < 0.7 else None
        deeds.append(Deed(at, 'change the drain', host, {action: arguments}))
        if action == 'pause' and dice.random() < 0.8:
            deeds.append(Deed(at + dice.uniform(0, 30), 'change the drain', host, {'resume': None}))
    if dice.random() < 0.3:
        deeds.append(Deed(begin + dice.uniform(0, 10), 'boot', host, dice.choice(_MEMORY)))
    if dice.random() < 0.2:
        status = dice.choice(({'status': 'enabled'}, {'status': 'disabled', 'disabled_reason': 'broken fan'}))
        deeds.append(Deed(dice.uniform(0, begin + 20), 'set the service', host, status))
    if dice.random() < 0.4:
        fault_at, calls = begin + dice.uniform(-1, 6), (dice.choice(_DRAINING),)
        where, how = dice.choice(hosts), dice.choice(('hypervisor fails', 'hypervisor fails', 'hypervisor hangs'))
        deeds.append(Deed(fault_at, how, where, calls))
        deeds.append(Deed(fault_at + dice.choice((3.0, 30.0, 120.0)), 'hypervisor answers', where))
    return deeds


def _shut_off(
    dice: random.Random, guests: tuple[Guest, ...], deeds: list[Deed]
) -> tuple[tuple[Guest, ...], list[Deed]]:
    """Return guests of which some are shut off, and deeds in which most drains take those along."""

    def taking_along(deed: Deed) -> Deed:
        if deed.name != 'drain' or dice.random() < 0.2:
            return deed
        return dataclasses.replace(deed, more={**deed.more, 'include_stopped': True})

    some = (dataclasses.replace(guest, power_state=4) if dice.random() < 0.5 else guest for guest in guests)
    return tuple(some), [taking_along(deed) for deed in deeds]


def of_drains(seed: int) -> Plan:
    """Return a seed's plan in which hosts are drained, beside whatever else happens to their guests.

    The drains are paused, resumed, cancelled and restored. Guests are started on the hosts, are locked and deleted, and
    migrate at the request of their users. In some plans guests are shut off, and most drains take them along.
    """
    plan = of(seed)
    dice = random.Random(f'drains of {seed}')  # noqa: S311 -- a run must be repeatable, and not secret
    hosts = [f'host{number}' for number in range(1, plan.hosts + 1)]
    sources = ('host1', 'host1', *hosts)
    more = [Guest(dice.choice(sources), dice.choice(_MEMORY), 0.0) for _ in range(dice.choice((1, 2, 3, 5)))]
    guests = (*plan.guests, *more)
    deeds = [deed for deed in plan.deeds if deed.name != 'migrate' or dice.random() < 0.3]
    for host in dice.sample(hosts, dice.choice((1, 1, 2, min(3, len(hosts))))):
        deeds += _drain(dice, host, hosts)
    if dice.random() < 0.2:
        deeds += _drain(dice, 'host1', hosts)
    for number in range(len(guests)):
        at = dice.choice((dice.uniform(0, 3), dice.uniform(0, 20)))
        if dice.random() < 0.15:
            deeds.append(Deed(at, 'migrate to', number, dice.choice(hosts)))
        if dice.random() < 0.1:
            deeds += [Deed(at, 'lock', number), Deed(at + dice.choice((2.0, 40.0)), 'unlock', number)]
        if dice.random() < 0.1:
            deeds.append(Deed(at, dice.choice(('abort', 'abort', 'delete')), number))
    for _ in range(dice.choice((0, 0, 1, 2))):
        whom = dice.choice(('conductor1', 'conductor2', *hosts, 'api'))
        deeds.append(Deed(dice.uniform(0, 20), 'kill', whom, dice.choice((0.5, 3.0, 20.0, 70.0))))
    # Drawn last, so that the plans of the other seeds do not change.
    if dice.random() < 0.4:
        guests, deeds = _shut_off(dice, guests, deeds)
    deeds = [dataclasses.replace(deed, at=round(max(deed.at, 0.0), 3)) for deed in deeds]
    return dataclasses.replace(
        plan,
        guests=guests,
        deeds=tuple(sorted(deeds, key=lambda deed: deed.at)),
        horizon=max(HORIZON, *(deed.at for deed in deeds)),
    )


def of_a_host_away(seed: int) -> Plan:
    """Return a seed's plan in which the compute service of a drained host is away for 5 to 15 minutes.

    Nothing else goes wrong, so each guest can be moved once the service is back. Some drains are restored.
    """
    plan = of(seed)
    dice = random.Random(f'host away {seed}')  # noqa: S311 -- a run must be repeatable, and not secret
    hosts = ('host1', 'host2', 'host3')
    guests = tuple(
        Guest('host1', dice.choice(_MEMORY), 0.0, dice.choice((1, 1, 1, 4))) for _ in range(dice.choice((2, 3, 6)))
    )
    wanted = {'max_attempts': dice.choice((1, 1, 2, 3)), 'include_stopped': True}
    deeds, at = [Deed(0.0, 'drain', 'host1', wanted)], dice.choice((dice.uniform(-0.5, 2), dice.uniform(0, 12)))
    for _ in range(dice.choice((1, 1, 2))):
        away = dice.uniform(300, 900)
        deeds.append(Deed(at, dice.choice(('kill', 'kill', 'stop and start')), 'host1', away))
        at += away + dice.choice((dice.uniform(0, 5), dice.uniform(0, 60)))
    if dice.random() < 0.4:
        at += dice.uniform(60, 200)
        deeds.append(Deed(at - dice.choice((5.0, 70.0)), 'kill', dice.choice(hosts), dice.uniform(100, 500)))
        deeds.append(Deed(at, 'change the drain', 'host1', {'restore': None}))
    return dataclasses.replace(
        plan,
        hosts=len(hosts),
        guests=guests,
        deeds=tuple(
            dataclasses.replace(deed, at=round(max(deed.at, 0.0), 3)) for deed in sorted(deeds, key=lambda one: one.at)
        ),
        knobs={**plan.knobs, 'link': 4096.0},
        rate=0.0,
        horizon=at + HORIZON,
        all_move=True,
    )
