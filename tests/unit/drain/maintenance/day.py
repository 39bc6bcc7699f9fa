# SPDX-License-Identifier: Apache-2.0

"""A random day of a maintenance: conductors that are killed, users who compete, machines that fail."""

import contextlib
import random

from migrator.drain.maintenance import actions, errors, run
from migrator.drain.maintenance.turns import Guests, Maintenance, Prefer, Stopped, TurnStatus, with_status
from tests.unit.drain.maintenance import site as sites

STEPS = 120


class Day:
    """One random day.

    :param make_store: makes the store of a site.
    """

    def __init__(self, seed, make_store=sites.Store):
        self.random = random.Random(seed)  # noqa: S311 -- to be repeated, not secret
        self.site = self._site(make_store)
        self.store = self.site.store
        hosts = [name for name in self.site.machines if not name.startswith('spare')]
        self.store.accept(self._maintenance(seed), hosts)
        #: host -> the claim of a user who works there, and of all who believe to
        self.claims = []
        self.stale = self.store.get(sites.UUID)
        self.site.on_call = self._perhaps_killed
        self.kills = 0.03

    def _site(self, make_store):
        chosen, machines, guests = self.random, [], {}
        for number in range(chosen.randint(2, 6)):
            machines.append(sites.Machine(f'host{number}', 10, chosen.choice(['', 'a', 'b'])))
        machines += [sites.Machine(f'spare{number}', 10) for number in range(chosen.randint(0, 2))]
        for number in range(chosen.randint(0, 4 * len(machines))):
            one = chosen.choice(machines)
            size = chosen.randint(1, 3)
            if sum(each for host, each in guests.values() if host == one.name) + size <= one.room * 0.8:
                guests[f'guest{number:02d}'] = (one.name, size)
        made = sites.Site(machines, guests, make_store)
        made.stopped = {guest for guest in guests if chosen.random() < 0.05}
        made.stuck = {guest for guest in guests if chosen.random() < 0.03}
        return made

    def _maintenance(self, seed):
        chosen, beside = self.random, random.Random(f'beside {seed}')  # noqa: S311 -- as above
        return Maintenance(
            uuid=sites.UUID,
            parallel=chosen.randint(1, 3),
            per_group=chosen.choice([None, 1]),
            in_order=chosen.random() < 0.5,
            max_failures=chosen.choice([0, 1, 9]),
            returned_by=chosen.choice(['reboot', 'restart', 'report']),
            settle=120.0,
            return_timeout=900.0,
            work_timeout=1800.0,
            wait_for_room=chosen.choice([None, 600.0]),
            stopped=chosen.choice([*Stopped]).value,
            prefer=beside.choice([*Prefer]).value,
            guests=beside.choice([*Guests]).value,
        )

    def _perhaps_killed(self, _name):
        if self.random.random() < self.kills:
            raise sites.Killed

    # --- who does something ------------------------------------------------------------------------------------------

    def conduct(self):
        """The owner advances the maintenance. If it is killed, another one takes over later."""
        row = self.store.get(sites.UUID)
        if not row.ended:
            try:
                run.advance(self.store, self.site, row)
            except sites.Killed:
                self.store.adopt(sites.UUID)

    def conduct_late(self):
        """An owner goes on that has read the maintenance long ago."""
        old, self.stale = self.stale, self.store.get(sites.UUID)
        if not old.ended:
            with contextlib.suppress(sites.Killed, errors.NotOwnerOfMaintenance):
                run.advance(self.store, self.site, old)

    def begin(self):
        host = self.random.choice(list(self.site.machines))
        with contextlib.suppress(errors.InvalidTurn, sites.Killed):
            turn = actions.begin(self.store, self.site, sites.UUID, host, 'ada')
            self.claims.append((host, turn.claim))
            self.site.watch.works(host, turn.claim)

    def begin_beside(self):
        """Another user claims the same host in the middle of it."""
        ready = with_status(self.turns(), TurnStatus.READY)
        if not ready:
            return
        host, left = ready[0].host, self.site.left

        def beside(*asked):
            self.site.left = left
            with contextlib.suppress(errors.InvalidTurn):
                turn = actions.begin(self.store, self.site, sites.UUID, host, 'bob')
                self.claims.append((host, turn.claim))
                self.site.watch.works(host, turn.claim)
            return left(*asked)

        self.site.left = beside
        with contextlib.suppress(errors.InvalidTurn, sites.Killed):
            turn = actions.begin(self.store, self.site, sites.UUID, host, 'ada')
            self.claims.append((host, turn.claim))
            self.site.watch.works(host, turn.claim)
        self.site.left = left

    def work(self):
        """A user ends the work, which may have rebooted the machine before or may do so soon after."""
        if not self.claims:
            return
        host, claim = self.claims.pop(self.random.randrange(len(self.claims)))
        one, ending = self.site.machines[host], self.random.choice(['done', 'done', 'done', 'fail', 'skip'])
        if self.random.random() < 0.4:
            one.start(self.site.time, kernel=True)
        with contextlib.suppress(errors.InvalidTurn, sites.Killed):
            # The row may be written without a reply, so that the judge learns of it first.
            self.site.watch.ends_work(host, claim)
            if ending == 'done':
                actions.done(self.store, sites.UUID, host, claim, 'ada')
            elif ending == 'fail':
                actions.fail(self.store, sites.UUID, host, claim, 'ada', 'no package')
            else:
                actions.skip(self.store, sites.UUID, host, 'ada', claim)

    def ask(self):
        host = self.random.choice(list(self.site.machines))
        action = self.random.choice(['retry', 'skip', 'pause', 'resume', 'resume', 'resume', 'cancel'])
        with contextlib.suppress(errors.InvalidTurn, sites.Killed):
            if action == 'retry':
                actions.retry(self.store, sites.UUID, host, 'ada')
            elif action == 'skip' and self.random.random() < 0.3:
                actions.skip(self.store, sites.UUID, host, 'ada', None, self.random.random() < 0.5)
            elif action != 'skip' and (action != 'cancel' or self.random.random() < 0.05):
                actions.change(self.store, sites.UUID, action, 'ada')

    def trouble(self):
        one = self.random.choice(list(self.site.machines.values()))
        back = with_status(self.turns(), TurnStatus.RETURNING)
        if back and self.random.random() < 0.5:
            one = self.site.machines[self.random.choice(back).host]
        what = self.random.choice(['reboot', 'restart', 'away', 'gap', 'gap', 'back', 'dead', 'disabled', 'enabled'])
        if what in ('reboot', 'restart'):
            one.start(self.site.time, kernel=what == 'reboot')
        elif what in ('away', 'gap'):
            one.runs = False
            if what == 'gap':
                self.site.pass_time(200)
                one.start(self.site.time)
        elif what == 'back':
            one.forced_down = False
            if not one.runs:
                one.start(self.site.time, kernel=self.random.random() < 0.5)
        elif what == 'dead' and self.random.random() < 0.2 and not one.at_work:
            one.runs, one.forced_down = False, True
        elif what == 'disabled' and one.disabled_by is None and self.random.random() < 0.2:
            one.disabled_by = 'an operator'
        elif what == 'enabled' and one.disabled_by == 'an operator':
            out = {turn.host for turn in with_status(self.turns(), *sites.OUT)}
            one.disabled_by = one.disabled_by if one.name in out else None

    def turns(self):
        """Return the turns of its hosts."""
        return self.store.read_turns(sites.UUID)

    # --- the day -----------------------------------------------------------------------------------------------------

    def live(self):
        """Let it all happen, then let it calm down, and return what was wrong."""
        doers = [self.conduct] * 6 + [self.begin] * 3 + [self.work] * 2
        doers += [self.begin_beside, self.conduct_late, self.ask, self.trouble, self.trouble]
        for _ in range(STEPS):
            self.site.pass_time(self.random.choice([0, 10, 10, 60, 300]))
            self.random.choice(doers)()
            self.site.watch.look()
        self.calm()
        return self.site.watch.wrong

    def calm(self):
        """Nothing fails any more, and users do what they are asked for: each turn has to end."""
        self.kills = 0.0
        for one in self.site.machines.values():
            one.forced_down, one.runs = False, True
            if one.disabled_by == 'an operator':
                one.disabled_by = None
        for _ in range(100):
            self.site.pass_time(60)
            self.conduct()
            row, turns = self.store.get(sites.UUID), self.turns()
            if row.ended:
                return
            if row.paused:
                actions.change(self.store, sites.UUID, 'resume', 'ada')
            for turn in with_status(turns, TurnStatus.WORKING):
                self.site.machines[turn.host].start(self.site.time, kernel=True)
                self.site.watch.ends_work(turn.host, turn.claim)
                actions.done(self.store, sites.UUID, turn.host, turn.claim, 'ada')
            for turn in with_status(turns, TurnStatus.RETURNING):
                self.site.machines[turn.host].start(self.site.time, kernel=True)
            for turn in with_status(turns, TurnStatus.READY):
                with contextlib.suppress(errors.InvalidTurn):
                    found = actions.begin(self.store, self.site, sites.UUID, turn.host, 'ada')
                    self.site.watch.works(turn.host, found.claim)
            self.site.watch.look()
        waits = [turn for turn in self.turns() if not turn.ended and not turn.reason]
        if not self.store.get(sites.UUID).waits_for and waits:
            self.site.watch.wrong.append(f'it neither ends nor says why: {[one.host for one in waits]}')
