# SPDX-License-Identifier: Apache-2.0

"""The random plans with cold migrations and resizes, beside live migrations and evacuations."""

from __future__ import annotations

import dataclasses
import random

from migrator.objects import Flavor, service
from migrator.simulator.workloads.plans import HORIZON, Deed, Guest, Plan, of

#: The memory of the guests in MiB, and their dirty rates in MiB/s.
_MEMORY, _DIRTY_RATES = (256, 512, 1024), (0.0, 0.0, 100.0)
#: The power states of guests. A likelier one is repeated.
_POWER_STATES = (1, 1, 1, 1, 3, 4, 4)
#: The answers of users. A likelier one is repeated.
_ANSWERS = ('confirmResize', 'confirmResize', 'revertResize', 'revertResize')
#: The flavors that guests are resized to. No guest can be resized from the second to the first: its disk is smaller.
_FLAVORS = (
    Flavor(name='wide', vcpus=4, memory_mb=512, root_gb=1),
    Flavor(name='deep', vcpus=1, memory_mb=2048, root_gb=2, ephemeral_gb=1, swap=512),
)
#: The driver calls of a cold migration, which hang or fail.
_CALLS = (
    'check_can_migrate_source',
    'check_can_migrate_destination',
    'migrate_disk_and_power_off',
    'finish_migration',
    'finish_migration',
    'confirm_migration_at_source',
    'revert_migration_at_destination',
    'revert_migration_at_source',
    'get_guest',
)
#: The driver calls of a resize that leaves the guest at its host.
_HERE = ('check_can_resize', 'resize', 'resize', 'confirm_resize', 'revert_resize', 'get_guest')
#: What else happens to a guest while it is migrated.
_MEANWHILE = (
    *('abort', 'migrate soon', 'migrate cold soon', 'evacuate soon', 'delete', 'look'),
    *('pause the guest', 'resume the guest', 'shut the guest off'),
)


def _round(dice: random.Random, begin: float, whom: int, hosts: list[str]) -> tuple[float, list[Deed]]:
    """Return the time of the next round, and a cold migration with its answer and its faults."""
    destination = dice.choice((None, None, *hosts))
    deeds = [Deed(begin, 'migrate cold soon', whom, destination)]
    wait = dice.choice((0.0, 0.0, dice.uniform(0, 5), dice.uniform(5, 90)))
    if dice.random() < 0.8:
        deeds.append(Deed(begin, 'decide later', whom, (dice.choice(_ANSWERS), wait)))
    if dice.random() < 0.3:
        # Another user answers at the same time.
        deeds.append(Deed(begin, 'decide later', whom, (dice.choice(_ANSWERS), wait)))
    fault_at = begin + dice.choice((dice.uniform(0, 1), dice.uniform(0, 6), wait + dice.uniform(0, 6)))
    if dice.random() < 0.5:
        calls = (*dice.sample(_CALLS, dice.choice((1, 1, 2))),)
        host = dice.choice(hosts)
        deeds.append(Deed(fault_at, dice.choice(('hypervisor fails', 'hypervisor hangs')), host, calls))
        deeds.append(Deed(fault_at + dice.choice((3.0, 30.0, 90.0)), 'hypervisor answers', host))
    if dice.random() < 0.5:
        process = dice.choice((*hosts, *hosts, 'conductor1', 'conductor2', 'api'))
        deeds.append(Deed(fault_at + dice.uniform(0, 2), 'kill', process, dice.choice((0.5, 3.0, 20.0, 75.0, 110.0))))
    if dice.random() < 0.4:
        host, lasts = dice.choice(hosts), dice.choice((5.0, 40.0, 110.0))
        lost = begin + dice.choice((dice.uniform(0, 8), wait + dice.uniform(0, 8)))
        deeds.append(Deed(lost, 'power is lost', host, lasts))
        if dice.random() < 0.7:
            declared = lost + dice.uniform(0, 10)
            deeds.append(Deed(declared, 'force down', host, dice.random() < 0.8))
    if dice.random() < 0.15:
        lasts = dice.choice((3.0, 12.0, 90.0))
        deeds.append(Deed(fault_at, 'broker away', 'broker', (dice.choice(('lose', 'refuse')), lasts)))
    return begin + wait + dice.choice((dice.uniform(0, 5), dice.uniform(5, 120))), deeds


def _meanwhile(dice: random.Random, at: float, whom: int, hosts: list[str]) -> Deed:
    """Return something else that happens to a guest."""
    name, more = dice.choice(_MEANWHILE), None
    if name in ('migrate soon', 'migrate cold soon'):
        more = dice.choice((None, *hosts))
    elif name == 'evacuate soon':
        return Deed(at, name, whom, (dice.choice((None, *hosts)), False, dice.random() < 0.5, True))
    return Deed(at, name, whom, more)


def of_cold_migrations(seed: int) -> Plan:
    """Return a seed's plan with cold migrations, which are confirmed, reverted or left without an answer.

    The guests are also migrated live, evacuated and deleted. Hosts lose their power, also while a migration waits for
    its answer, and operators declare them forced down. Some hosts may be of a version without cold migrations.
    """
    plan = of(seed)
    dice = random.Random(f'cold migrations of {seed}')  # noqa: S311 -- a run must be repeatable, and not secret
    hosts = [f'host{number}' for number in range(1, dice.choice((2, 3, 3, 4)) + 1)]
    guests = tuple(
        Guest(
            dice.choice(('host1', 'host1', 'host2')),
            dice.choice(_MEMORY),
            dice.choice(_DIRTY_RATES),
            dice.choice(_POWER_STATES),
        )
        for _ in range(dice.choice((1, 1, 2, 3)))
    )
    deeds = [
        Deed(0.0, dice.choice(('retry once stuck', 'abandon once stuck')), number)
        for number in range(len(guests))
        if dice.random() < 0.2
    ]
    end = 0.0
    for number in range(len(guests)):
        begin = dice.uniform(0, 8)
        for _ in range(dice.choice((1, 2, 2, 3))):
            begin, more = _round(dice, begin, number, hosts)
            deeds += more
            if dice.random() < 0.4:
                deeds.append(Deed(begin, 'migrate soon', number, dice.choice((None, *hosts))))
                begin += dice.uniform(0, 20)
        deeds += [_meanwhile(dice, dice.uniform(0, begin), number, hosts) for _ in range(dice.choice((0, 0, 1, 2)))]
        end = max(end, begin)
    if dice.random() < 0.3:
        whom = dice.randrange(len(guests))
        deeds.append(Deed(dice.uniform(0, end), 'its host is lost', whom, ('power', dice.choice((40.0, 110.0)))))
        wanted = (dice.choice((None, *hosts)), False, True, True)
        deeds.append(Deed(deeds[-1].at + dice.uniform(0, 10), 'evacuate soon', whom, wanted))
    versions = {}
    if dice.random() < 0.25:
        old = dice.choice(hosts)
        versions[old] = dice.randrange(1, service.CURRENT_VERSION)
        if dice.random() < 0.7:
            deeds.append(Deed(dice.uniform(0, end + 60), 'upgrade', old, dice.choice((0.5, 3.0, 20.0))))
    return dataclasses.replace(
        plan,
        hosts=len(hosts),
        guests=guests,
        deeds=tuple(
            dataclasses.replace(deed, at=round(deed.at, 3)) for deed in sorted(deeds, key=lambda deed: deed.at)
        ),
        versions=versions,
        rate=plan.rate / 4,
        horizon=end + HORIZON,
    )


def of_resizes(seed: int) -> Plan:
    """Return a seed's plan with cold migrations, most of which resize the guest, too.

    In half of the plans a resize may leave a guest at its host. In most of these, no other host can take it.
    """
    plan = of_cold_migrations(seed)
    dice = random.Random(f'resizes of {seed}')  # noqa: S311 -- a run must be repeatable, and not secret

    def resized(deed: Deed) -> Deed:
        if deed.name != 'migrate cold soon' or dice.random() < 0.2:
            return deed
        return dataclasses.replace(deed, name='resize soon', more=dice.choice(_FLAVORS).name)

    plan = dataclasses.replace(plan, deeds=tuple(map(resized, plan.deeds)), flavors=_FLAVORS)
    return _of_resizes_here(plan, dice) if dice.random() < 0.5 else plan


def _of_resizes_here(plan: Plan, dice: random.Random) -> Plan:
    """Return a plan in which a resize may leave a guest at its host."""

    def here(deed: Deed) -> Deed:
        if deed.name not in ('hypervisor fails', 'hypervisor hangs') or dice.random() < 0.3:
            return deed
        return dataclasses.replace(deed, more=(*dice.sample(_HERE, dice.choice((1, 1, 2))),))

    knobs = dict(plan.knobs)
    if dice.random() < 0.7:
        # The others take guests that are evacuated or migrated live, but no resized ones.
        hosts = {f'host{number}' for number in range(1, plan.hosts + 1)}
        knobs['no_resizes'] = sorted(hosts - {guest.host for guest in plan.guests})
    options = {**plan.options, 'allow_resize_to_same_host': True}
    return dataclasses.replace(plan, deeds=tuple(map(here, plan.deeds)), knobs=knobs, options=options)
