# SPDX-License-Identifier: Apache-2.0

"""The plans of random runs, each from one seed.

A plan has a cloud, the actions of users and operators, and the faults. There are several kinds of plans
(:data:`migrator.simulator.runs.KINDS`). The same seed gives a different plan of each kind.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from typing import Any

from migrator.objects import Flavor, service, steps
from migrator.simulator import faults
from migrator.simulator.failpoints import Boundary

#: Seconds within which actions are taken and faults are injected.
HORIZON = 30.0

#: Probabilities of a fault at a boundary. A plan uses one of them.
_RATES = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05)

#: The memory of guests in MiB, and their dirty rates in MiB/s.
MEMORY, DIRTY_RATES = (256, 512, 1024, 4096), (0.0, 0.0, 100.0, 900.0, 2000.0)

#: Action -> its weight.
_DEEDS: Mapping[str, int] = {
    'migrate': 12,
    'migrate to': 6,
    'abort': 7,
    'force complete': 3,
    'look': 2,
    'stop and start': 2,
    'kill': 3,
    'pause the guest': 1,
    'resume the guest': 1,
    'shut the guest off': 1,
    'limit': 1,
    'slow link': 1,
}


def _is_live(step: steps.HostStep) -> bool:
    return step.saga == steps.Saga.LIVE_MIGRATION


#: Groups of hypervisor calls and job phases that hang at the same time. The first group only observes a guest. The
#: second also aborts a migration and copies. The last one is everything.
HANGS: tuple[tuple[str, ...], ...] = (
    ('get_guest', 'settle', 'get_progress'),
    ('get_guest', 'settle', 'get_progress', 'live_migration_abort', 'copying'),
    steps.names(lambda step: _is_live(step) and step.at == steps.At.DESTINATION and not step.name.startswith('check')),
    ('live_migration_abort', *steps.names(lambda step: _is_live(step) and step.at == steps.At.SOURCE and step.ends)),
    (
        *('get_guest', 'list_guests', 'settle', 'get_progress', 'get_node', 'attach_live_migration'),
        *('cleanup_live_migration_destination_check', *steps.names(_is_live)),
        *('starting', 'copying', 'cutover', 'postcopy', 'arrived'),
    ),
)


#: The trait that flavors require or forbid.
TRAIT = 'CUSTOM_GOLD'


@dataclasses.dataclass(frozen=True)
class Guest:
    """A guest at the start of a run.

    :ivar memory_mb: the memory in MiB.
    :ivar dirty_rate: how fast the guest dirties its memory, in MiB/s.
    :ivar power_state: nova's number of its power state: 1 running, 3 paused, 4 shut off.
    :ivar trait: whether its flavor has :data:`TRAIT` as ``required`` or ``forbidden``; '': neither.
    """

    host: str
    memory_mb: int
    dirty_rate: float
    power_state: int = 1
    trait: str = ''


@dataclasses.dataclass(frozen=True)
class Deed:
    """An action of a user or an operator, or a planned outage.

    :ivar at: seconds after the start of the run.
    :ivar name: the action; see :meth:`migrator.simulator.actors.deeds.do`.
    :ivar whom: the number of a guest, or the name of a process.
    :ivar more: the argument of the action.
    """

    at: float
    name: str
    whom: int | str
    more: Any = None

    def __str__(self) -> str:
        """Return the action as a line of text."""
        more = '' if self.more is None else f' {self.more}'
        return f'{self.at:6.2f} s: {self.name} {self.whom}{more}'


@dataclasses.dataclass(frozen=True)
class Plan:
    """All choices for one run.

    :ivar seed: also the seed of the schedule and of the uuids of every process. With ``in_order`` it does not affect
        the schedule.
    :ivar rate: the probability of a fault at a boundary.
    :ivar most_faults: the highest number of faults.
    :ivar versions: compute host -> its service version at the start. The default is the version of this release.
    :ivar horizon: seconds within which faults are injected.
    :ivar injected: the faults with their boundaries. None: random faults, from the seed and ``rate``.
    :ivar inject_at: random faults are injected only at boundaries whose labels contain this.
    :ivar placement_seconds: how long each request of a service to Placement takes.
    :ivar flavors: those that guests can be resized to.
    :ivar golden: the hosts that have :data:`TRAIT`.
    :ivar all_move: whether nothing but an absence of hosts keeps a guest from moving, so that I29 is judged.
    """

    seed: int
    hosts: int
    guests: tuple[Guest, ...]
    deeds: tuple[Deed, ...]
    knobs: Mapping[str, Any]
    options: Mapping[str, Any]
    rate: float
    most_faults: int
    in_order: bool = False
    versions: Mapping[str, int] = dataclasses.field(default_factory=dict)
    horizon: float = HORIZON
    injected: tuple[tuple[Boundary, str], ...] | None = None
    inject_at: str = ''
    placement_seconds: float = 0.0
    flavors: tuple[Flavor, ...] = ()
    golden: frozenset[str] = frozenset()
    all_move: bool = False

    def chooser(self) -> Callable[[Boundary], faults.Fault | None]:
        """Return a function that returns the fault for a boundary, or None."""
        if self.injected is not None:
            planned = dict(self.injected)
            return lambda boundary: faults.BY_NAME[planned[boundary]] if boundary in planned else None
        dice = random.Random(f'faults of {self.seed}')  # noqa: S311 -- a run must be repeatable, and not secret
        left = self.most_faults

        def choose(boundary: Boundary) -> faults.Fault | None:
            nonlocal left
            if not left or self.inject_at not in boundary.label or dice.random() >= self.rate:
                return None
            possible = [fault for fault in faults.FAULTS if fault.where(boundary)]
            if not possible:
                return None
            left -= 1
            return dice.choice(possible)

        return choose


def of(seed: int) -> Plan:
    """Return the plan of a seed, which is the same on every machine."""
    dice = random.Random(f'plan of {seed}')  # noqa: S311 -- a run must be repeatable, and not secret
    # These have dice of their own, so that the rest of the plan of a seed stays as it was.
    starts = random.Random(f'failed starts of {seed}')  # noqa: S311 -- a run must be repeatable, and not secret
    failures = random.Random(f'slow failures of {seed}')  # noqa: S311 -- a run must be repeatable, and not secret
    hosts = dice.choice((2, 2, 3, 3, 4))
    names = [f'host{number}' for number in range(1, hosts + 1)]
    guests = tuple(
        Guest(dice.choice(names[:2]), dice.choice(MEMORY), dice.choice(DIRTY_RATES))
        for _ in range(dice.choice((1, 1, 2, 2, 3, 4)))
    )
    deeds = [Deed(0.0, 'migrate', number) for number in range(len(guests)) if number == 0 or dice.random() < 0.7]
    for _ in range(dice.randrange(0, 6)):
        deeds.append(_deed(dice, names, len(guests)))
    return Plan(
        seed=seed,
        hosts=hosts,
        guests=guests,
        deeds=tuple(sorted(deeds, key=lambda deed: deed.at)),
        knobs={
            'post_copy': dice.random() < 0.4,
            'leave_paused': dice.random() < 0.2,
            'link': dice.choice((256.0, 1024.0, 4096.0)),
            'pre_seconds': dice.choice((0.0, 0.0, 0.0, 0.5, 5.0)),
            'leave_shut_off': starts.random() < 0.3,
            'fail_seconds': failures.choice((0.0, 0.0, 2.0)),
        },
        options={
            'max_concurrent_live_migrations': dice.choice((1, 1, 2, 3)),
            'compute.stop_queued': dice.choice(('cancel', 'cancel', 'keep')),
            'migrate_max_retries': dice.choice((-1, -1, 0, 1)),
        },
        rate=dice.choice(_RATES),
        most_faults=dice.choice((1, 2, 3, 5, 8)),
        in_order=dice.random() < 0.25,
    )


def with_traits(plan: Plan) -> Plan:
    """Return a plan whose hosts differ by a trait, which flavors require or forbid."""
    dice = random.Random(f'traits of {plan.seed}')  # noqa: S311 -- a run must be repeatable, and not secret
    # An embedding service brings a guest back to any host.
    if plan.all_move or any(deed.name == 'bring back' for deed in plan.deeds) or dice.random() < 0.6:
        return plan
    golden = frozenset(f'host{number}' for number in range(1, plan.hosts + 1) if dice.random() < 0.6)
    guests = [
        dataclasses.replace(guest, trait='required' if guest.host in golden else 'forbidden')
        if dice.random() < 0.5
        else guest
        for guest in plan.guests
    ]
    return dataclasses.replace(plan, guests=tuple(guests), golden=golden)


def of_an_upgrade(seed: int) -> Plan:
    """Return a seed's plan with compute services of several versions, which are upgraded one by one."""
    plan = of(seed)
    dice = random.Random(f'upgrade of {seed}')  # noqa: S311 -- a run must be repeatable, and not secret
    oldest = dice.choice(list(service.SERVICE_VERSIONS))
    names = [f'host{number}' for number in range(1, plan.hosts + 1)]
    versions = {name: dice.randint(oldest, service.CURRENT_VERSION) for name in names}
    versions[dice.choice(names)] = oldest
    upgrades = [
        Deed(round(dice.uniform(0, HORIZON), 3), 'upgrade', name, dice.choice((0.5, 3.0, 20.0)))
        for name in names
        if dice.random() < 0.7
    ]
    deeds = sorted([*plan.deeds, *upgrades], key=lambda deed: deed.at)
    return dataclasses.replace(plan, versions=versions, deeds=tuple(deeds))


def of_a_bad_night(seed: int) -> Plan:
    """Return a seed's plan in which a host is emptied while hypervisors hang and their services run.

    Hypervisors hang for longer than any call waits, and some hang or fail for longer than any migration waits.
    Some processes cannot start threads for a while. Operators handle stuck migrations.
    """
    plan = of(seed)
    dice = random.Random(f'bad night of {seed}')  # noqa: S311 -- a run must be repeatable, and not secret
    more = dice.choice((0, 1, 3, 6, 10))
    waiters = [Guest('host1', dice.choice(MEMORY[:3]), dice.choice(DIRTY_RATES)) for _ in range(more)]
    guests = (*plan.guests, *waiters)
    begun = [len(plan.guests) + number for number in range(len(waiters))]
    deeds = [Deed(round(dice.uniform(0, 2), 3), 'migrate', number) for number in begun]
    ends = [0.0]
    for _ in range(dice.choice((1, 1, 2))):
        host = dice.choice([f'host{number}' for number in range(1, plan.hosts + 1)])
        at, lasts = round(dice.uniform(0, 12), 3), dice.choice((25.0, 90.0, 90.0, 420.0))
        ends.append(at + lasts)
        deeds.append(Deed(at, 'hypervisor hangs', host, dice.choice(HANGS)))
        deeds.append(Deed(at + lasts, 'hypervisor answers', host))
    for number in range(len(guests)):
        if dice.random() < 0.6:
            deeds.append(Deed(0.0, dice.choice(('retry once stuck', 'abandon once stuck')), number))
    for _ in range(dice.choice((0, 0, 1, 2))):
        # While the users wait, one of them changes the request or a process dies.
        deed = _deed(dice, [f'host{number}' for number in range(1, plan.hosts + 1)], len(guests))
        deeds.append(dataclasses.replace(deed, at=round(dice.uniform(0, max(*ends, HORIZON)), 3)))
    for _ in range(dice.choice((0, 0, 0, 1, 2))):
        whom = dice.choice(('host1', 'host1', 'host2', 'conductor1', 'conductor2'))
        at, lasts = round(dice.uniform(0, max(*ends, HORIZON)), 3), dice.choice((1.0, 10.0, 40.0, 90.0))
        deeds.append(Deed(at, 'no thread to be had', whom, lasts))
    # These have dice of their own, so that the rest of the plan of a seed stays as it was.
    failures, knobs = random.Random(f'failing hypervisor of {seed}'), plan.knobs  # noqa: S311 -- a run must be repeatable
    if failures.random() < 0.25:
        # The source fails, slowly, for longer than its migrations wait until they are stuck.
        knobs, phases = {**knobs, 'fail_seconds': 2.0}, ('copying', _ROLLBACK_HERE)
        deeds += [Deed(0.0, 'hypervisor fails', 'host1', phases), Deed(420.0, 'hypervisor works', 'host1', phases)]
        ends.append(420.0)
    return dataclasses.replace(
        plan,
        guests=guests,
        knobs=knobs,
        deeds=tuple(sorted([*plan.deeds, *deeds], key=lambda deed: deed.at)),
        horizon=max(*ends, HORIZON),
    )


def of_outages(seed: int) -> Plan:
    """Return a seed's plan in which the broker, every conductor or Placement is down for a while."""
    plan = of(seed)
    dice = random.Random(f'outages of {seed}')  # noqa: S311 -- a run must be repeatable, and not secret
    deeds, at = list(plan.deeds), 0.0
    for _ in range(dice.choice((1, 1, 2))):
        at += round(dice.uniform(0, 8), 3)
        lasts = dice.choice((3.0, 12.0, 40.0, 90.0, 200.0))
        if dice.random() < 0.7:
            deeds.append(Deed(at, 'broker away', 'broker', (dice.choice(('lose', 'refuse')), lasts)))
        else:
            deeds += [Deed(at, 'kill', name, lasts) for name in ('conductor1', 'conductor2')]
        if dice.random() < 0.5:
            deeds.append(Deed(round(at + dice.uniform(0, lasts), 3), 'migrate', dice.randrange(len(plan.guests))))
        at += lasts
    # These have dice of their own, so that the rest of the plan of a seed stays as it was.
    absences = random.Random(f'Placement outages of {seed}')  # noqa: S311 -- a run must be repeatable, and not secret
    if absences.random() < 0.4:
        # The longest one is longer than any migration may wait without progress.
        deeds.append(
            Deed(round(absences.uniform(0, 8), 3), 'Placement away', 'placement', absences.choice((40.0, 400.0)))
        )
    deeds.sort(key=lambda deed: deed.at)
    return dataclasses.replace(plan, deeds=tuple(deeds), horizon=at + HORIZON)


def of_bounds(seed: int) -> Plan:
    """Return a seed's plan with bounds on what is in progress, which change meanwhile, and more guests."""
    plan = of(seed)
    dice = random.Random(f'bounds of {seed}')  # noqa: S311 -- a run must be repeatable, and not secret
    names = [f'host{number}' for number in range(1, plan.hosts + 1)]
    more = [Guest(dice.choice(names), dice.choice(MEMORY[:2]), 0.0) for _ in range(dice.choice((2, 3, 5)))]
    deeds = list(plan.deeds)
    for number in range(len(plan.guests), len(plan.guests) + len(more)):
        at, host = round(dice.choice((0.0, dice.uniform(0, 3))), 3), dice.choice((None, None, *names))
        deeds.append(Deed(at, 'migrate to' if host else 'migrate', number, host))
    choices = {
        'max_concurrent_inbound_live_migrations': (0, 1, 1, 2),
        'conductor.max_cluster_live_migrations': (0, 0, 1, 2, 3),
        'conductor.prepare_ahead': (-1, 0, 0, 1),
    }
    bounds = {name: dice.choice(values) for name, values in choices.items()}
    for name, values in choices.items():
        if dice.random() < 0.3:
            at, value = round(dice.uniform(0, 20), 3), dice.choice(values)
            deeds += [Deed(at, 'bound', f'conductor{number}', (name, value)) for number in (1, 2)]
    return dataclasses.replace(
        plan,
        guests=(*plan.guests, *more),
        deeds=tuple(sorted(deeds, key=lambda deed: deed.at)),
        options={**plan.options, **bounds},
    )


def of_an_emptied_host(seed: int) -> Plan:
    """Return a seed's plan in which many guests leave a host at once, while Placement is slow.

    One request then writes the allocations of several guests. Users abort some of the migrations early and delete some
    guests, and the other hosts may have too little room. Most of the faults are faults of requests to Placement.
    """
    plan = of(seed)
    dice = random.Random(f'emptied host of {seed}')  # noqa: S311 -- a run must be repeatable, and not secret
    many = dice.choice((3, 5, 8, 12))
    others = dice.choice((0, dice.randrange(many)))
    first = len(plan.guests)
    guests = [*plan.guests, *[Guest('host1', MEMORY[0], 0.0)] * many, *[Guest('host2', MEMORY[0], 0.0)] * others]
    room = max(sum(guest.host == host for guest in guests) for host in ('host1', 'host2'))
    deeds = list(plan.deeds)
    for number in range(first, first + many):
        begin = dice.choice((0.0, 0.0, 0.0, dice.uniform(0, 1)))
        host = dice.choice((None, None, 'host2'))
        deeds.append(Deed(round(begin, 3), 'migrate to' if host else 'migrate', number, host))
        if dice.random() < 0.3:
            at = begin + dice.choice((dice.uniform(0, 1), dice.uniform(0, 8)))
            deeds.append(Deed(round(at, 3), dice.choice(('abort', 'abort', 'abort', 'delete', 'migrate')), number))
    if dice.random() < 0.4:
        whom, back = dice.choice(('conductor1', 'conductor1', 'conductor2')), dice.choice((0.5, 3.0, 20.0, 70.0))
        deeds.append(Deed(round(dice.uniform(0, 2), 3), 'kill', whom, back))
    return dataclasses.replace(
        plan,
        guests=tuple(guests),
        deeds=tuple(sorted(deeds, key=lambda deed: deed.at)),
        knobs={**plan.knobs, 'link': 4096.0, **({'vcpus': room} if others else {})},
        rate=dice.choice((0.0, 0.1, 0.5)),
        inject_at=dice.choice(('placement POST', 'placement POST', 'placement', '')),
        placement_seconds=dice.choice((0.1, 0.5, 2.0)),
    )


#: What a user does in the middle of a migration.
INTERFERES = ('abort', 'force complete', 'migrate', 'shut the guest off', 'resume the guest')
_ROLLBACK_HERE, _ROLLBACK_THERE = 'rollback_live_migration_at_source', 'rollback_live_migration_at_destination'
_POST_HERE = 'post_live_migration_at_source'
#: The calls and phases that fail at the source, so that the migration rolls back, or completes and leaves a cleanup.
_FAILURES = (('copying',), ('cutover',), ('starting',), (_POST_HERE,), ())
#: The driver calls that hang or fail when the next migration begins.
_LEFTOVERS = (_ROLLBACK_HERE, _ROLLBACK_THERE, _POST_HERE, 'live_migration_force_complete', 'live_migration_abort')


def _trouble(dice: random.Random, begin: float, source: str, destination: str) -> tuple[float, list[Deed]]:
    """Return the time of the next request, and actions that make a migration fail in a random place."""
    failures, leftovers = dice.choice(_FAILURES), dice.sample(_LEFTOVERS, dice.choice((1, 1, 2)))
    deeds = [Deed(begin, 'hypervisor fails', source, failures)]
    fault_at = begin + dice.choice((dice.uniform(0.2, 1), dice.uniform(0.2, 5)))
    for host in (source, destination):
        if dice.random() < 0.7:
            deeds.append(Deed(fault_at, dice.choice(('hypervisor fails', 'hypervisor hangs')), host, (*leftovers,)))
    if dice.random() < 0.5:
        deeds.append(Deed(dice.uniform(fault_at, fault_at + 3), dice.choice(INTERFERES), 0))
    away = dice.choice((0.5, 3.0, 70.0, 80.0, 110.0))
    if dice.random() < 0.7:
        deeds.append(Deed(fault_at, 'kill', dice.choice((source, source, destination)), away))
    again = fault_at + away + dice.uniform(0, 8)
    return again, [*deeds, Deed(again, 'hypervisor works', source, failures)]


def _deferred_restore(dice: random.Random, begin: float, source: str, destination: str) -> tuple[float, list[Deed]]:
    """Return the time of the next request, and actions that kill a source before it restores its guest.

    The destination is slow to clean up, which leaves time for the kill. After its restart the source is slow to restore
    the guest.
    """
    slow = dice.choice(('hypervisor hangs', 'hypervisor fails'))
    killed, away = begin + dice.uniform(0.5, 12), dice.choice((75.0, 80.0, 90.0))
    again = killed + away + dice.uniform(-2, 4)
    deeds = [
        Deed(begin, 'hypervisor fails', source, (dice.choice(('copying', 'cutover')),)),
        Deed(begin, 'hypervisor hangs', destination, (_ROLLBACK_THERE,)),
        Deed(killed, 'kill', source, away),
        Deed(killed + dice.uniform(0, 20), 'hypervisor works', destination, (_ROLLBACK_THERE,)),
        Deed(killed + 1, 'hypervisor works', source, ('copying', 'cutover')),
    ]
    if dice.random() < 0.8:
        deeds.append(Deed(killed + 1, slow, source, (_ROLLBACK_HERE,)))
    return again, deeds


def _hanging_call(dice: random.Random, begin: float, source: str, destination: str) -> tuple[float, list[Deed]]:
    """Return the time of the next request, and actions that end a migration while a user's request hangs."""
    request = dice.choice(('force complete', 'force complete', 'abort'))
    call = 'live_migration_force_complete' if request == 'force complete' else 'live_migration_abort'
    asked = begin + dice.uniform(0.5, 2)
    again = asked + dice.uniform(1, 6)
    return again, [
        Deed(begin, 'hypervisor hangs', source, ('copying',)),
        Deed(begin, 'hypervisor hangs', source, (call,)),
        Deed(asked, request, 0),
        Deed(asked + 1, 'hypervisor works', source, ('copying',)),
        Deed(asked + 1, 'hypervisor fails', source, ('copying',)),
        Deed(again, 'hypervisor works', source, ('copying',)),
    ]


def _vanishing(dice: random.Random, begin: float, source: str, destination: str) -> tuple[float, list[Deed]]:
    """Return the time of the next request, and actions that delete a guest before its job has begun.

    Its destination is down at that time.
    """
    vanishes = begin + dice.uniform(0.5, 3)
    looked = vanishes + dice.uniform(65, 80)
    deeds = [
        Deed(begin, 'hypervisor hangs', source, ('live_migration',)),
        Deed(vanishes, 'guest vanishes', 0),
        Deed(vanishes, 'kill', destination, 110.0),
        Deed(looked, 'hypervisor works', source, ('live_migration',)),
    ]
    if dice.random() < 0.5:
        deeds.append(Deed(dice.uniform(vanishes, looked), 'abort', 0))
    return looked + 60, deeds


#: The ways in which a round goes wrong. A likelier one is repeated.
_ROUNDS = (*(_trouble,) * 4, *(_deferred_restore,) * 4, *(_hanging_call,) * 2, _vanishing)


def of_second_migrations(seed: int) -> Plan:
    """Return a seed's plan in which one guest is migrated again and again while cleanups are pending.

    In each round a migration fails at its source or its destination: the service is down for longer than a migration
    waits for it, or the hypervisor fails or hangs. A cleanup is therefore deferred. The user sends requests until the
    next migration is accepted, while the cleanup does not end. Between two rounds an embedding service may bring the
    guest back to a host with a pending cleanup.
    """
    plan = of(seed)
    dice = random.Random(f'second migrations of {seed}')  # noqa: S311 -- a run must be repeatable, and not secret
    hosts = [f'host{number}' for number in range(1, dice.choice((3, 3, 4)) + 1)]
    guest = Guest('host1', dice.choice(MEMORY), dice.choice((0.0, 100.0, 900.0, 2000.0)))
    deeds: list[Deed] = []
    if dice.random() < 0.4:
        deeds.append(Deed(0.0, dice.choice(('retry once stuck', 'abandon once stuck')), 0))
    end = 0.0
    for _ in range(dice.choice((1, 1, 2))):
        begin = end
        source, destination = dice.choice((('host1', 'host2'), ('host1', 'host2'), tuple(dice.sample(hosts, 2))))
        round_ = dice.choice(_ROUNDS)
        again, more = round_(dice, begin, source, destination)
        deeds += [Deed(begin + 0.1, 'migrate soon', 0, destination), *more]
        if dice.random() < 0.4:
            deeds.append(Deed(again, 'bring back', 0, (dice.choice((source, destination)), dice.random() < 0.6)))
        deeds.append(Deed(again, 'migrate soon', 0, dice.choice((None, None, *hosts))))
        end = again + dice.choice((dice.uniform(0, 5), dice.uniform(5, 40)))
        deeds += [Deed(end, 'hypervisor answers', host) for host in (source, destination)]
        if dice.random() < 0.3:
            deeds.append(Deed(dice.uniform(again, end), dice.choice(INTERFERES), 0))
    deeds.append(Deed(end + dice.uniform(0, 60), 'migrate soon', 0))
    return dataclasses.replace(
        plan,
        hosts=len(hosts),
        guests=(guest,),
        deeds=tuple(dataclasses.replace(deed, at=round(deed.at, 3)) for deed in sorted(deeds, key=lambda one: one.at)),
        options={**plan.options, 'conductor.post_max_attempts': dice.choice((1, 2, 5))},
        rate=plan.rate / 4,
        horizon=end + 30,
    )


def _deed(dice: random.Random, hosts: list[str], guests: int) -> Deed:
    name = dice.choices(list(_DEEDS), list(_DEEDS.values()))[0]
    # Actions that are close together cause races. Others are spread over the whole run.
    at = round(dice.choice((dice.uniform(0, 1), dice.uniform(0, 8), dice.uniform(0, HORIZON))), 3)
    if name in ('stop and start', 'limit', 'slow link'):
        more = dice.randrange(1, 4) if name == 'limit' else dice.choice((0.5, 3.0, 20.0))
        return Deed(at, name, dice.choice(hosts), more)
    if name == 'kill':
        whom = dice.choice([*hosts, 'conductor1', 'conductor2', 'api'])
        return Deed(at, name, whom, dice.choice((0.5, 3.0, 20.0, 70.0)))
    return Deed(at, name, dice.randrange(guests), dice.choice(hosts) if name == 'migrate to' else None)
