# SPDX-License-Identifier: Apache-2.0

"""A small site in memory: machines, guests and drains, and rows that are guarded as in a database.

The site has the true state. A maintenance sees only its reports. :class:`Watch` judges each action by the true state.
"""

import dataclasses
import datetime
import itertools

from migrator.drain.engine import Check
from migrator.drain.maintenance import errors
from migrator.drain.maintenance.engine import Fleet
from migrator.drain.maintenance.plan import Guest, Host
from migrator.drain.maintenance.returned import Report
from migrator.drain.maintenance.turns import Turn, TurnStatus, with_status
from migrator.objects.drain import Direction, Drain, DrainStatus

BEGAN = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)
DOWN_TIME, REPORTS = 60.0, 10.0
#: How often a drain tries to move a guest.
TRIES = 60
UUID = '00000000-0000-4000-8000-000000000001'
#: The turns of the hosts to which nothing may go.
OUT = (TurnStatus.DRAINING, TurnStatus.READY, TurnStatus.WORKING, TurnStatus.RETURNING)


class Killed(BaseException):
    """The process that was at work is gone."""


@dataclasses.dataclass
class Machine:
    """A host as it really is.

    :ivar runs: whether its compute service runs, and so reports.
    :ivar since: since when it has done so without a gap.
    :ivar at_work: the claims of those who are working at it now.
    """

    name: str
    room: int
    group: str = ''
    kernel: int = 1
    boot: int = 1
    runs: bool = True
    since: float = 0.0
    reported: float = 0.0
    disabled_by: str | None = None
    forced_down: bool = False
    at_work: set = dataclasses.field(default_factory=set)

    def start(self, now, kernel=False):
        self.boot += 1
        self.kernel += kernel
        if now - self.reported > DOWN_TIME:
            self.since = now
        self.runs, self.reported = True, now


class Site:
    """Machines and guests, and what a maintenance asks of them.

    :ivar on_call: called with the name of each call that changes something, before and after it.
    """

    down_time = DOWN_TIME
    again = 'Retry the drain.'

    def __init__(self, machines, guests, make_store=None):
        self.machines = {one.name: one for one in machines}
        #: Guest -> its host and its size.
        self.where = dict(guests)
        self.time = 0.0
        self.rows = {}
        #: drain -> how often it has found no room for its next guest
        self.tries = {}
        #: drain -> the guests that it has moved, and that are not back
        self.moved = {}
        self.store = (make_store or Store)(self)
        self.watch = Watch(self)
        self.on_call = lambda name: None
        self._numbers = itertools.count(1)
        self.trouble = []
        #: guests that no drain can move
        self.stuck = set()
        #: those of which it is known before
        self.known_stuck = set()
        self.stopped = set()

    # --- what goes on ------------------------------------------------------------------------------------------------

    def pass_time(self, seconds):
        """Let time pass. Services report all the while, and drains move their guests."""
        until = self.time + seconds
        while self.time < until:
            self.time = min(until, self.time + REPORTS)
            for one in self.machines.values():
                if one.runs:
                    one.reported = self.time
            self.move_guests()

    def move_guests(self):
        for drain in [row for row in self.rows.values() if not row.ended]:
            here = sorted(guest for guest, (host, _) in self.where.items() if host == drain.host)
            if drain.direction == Direction.BACK:
                self._move_back(drain)
                continue
            if drain.cancel_requested_at is not None:
                self._end(drain, DrainStatus.CANCELLED, 'It was cancelled.')
                continue
            free = [guest for guest in here if guest not in self.stuck | self.stopped]
            if not free:
                status = DrainStatus.INCOMPLETE if here else DrainStatus.COMPLETED
                self._end(drain, status, f'Left: {", ".join(here)}.' if here else 'It is empty.')
                continue
            guest, self.tries[drain.uuid] = free[0], self.tries.get(drain.uuid, 0) + 1
            if self.tries[drain.uuid] > TRIES:
                self._end(drain, DrainStatus.INCOMPLETE, f'No host has room for {guest}.')
                continue
            # Not every guest goes where the plan has it. The others go to the emptiest host that may have them.
            wanted = drain.priorities.get(guest) if int(guest[-1]) % 3 else None
            for to in [wanted, *sorted(self.machines, key=lambda name: (-self.free(name), name))]:
                if to is not None and to != drain.host and self._takes(to, self.where[guest][1]):
                    self.watch.moves(guest, to)
                    self.where[guest] = (to, self.where[guest][1])
                    self.moved.setdefault(drain.uuid, set()).add(guest)
                    self.tries[drain.uuid] = 0
                    break

    def _move_back(self, drain):
        for guest in sorted(self.moved[drain.uuid]):
            if self._takes(drain.host, self.where[guest][1]):
                self.watch.moves(guest, drain.host)
                self.where[guest] = (drain.host, self.where[guest][1])
                self.moved[drain.uuid].discard(guest)
        left = self.moved[drain.uuid]
        status = DrainStatus.INCOMPLETE if left else DrainStatus.RESTORED
        self._end(drain, status, f'{len(left)} are not back.' if left else 'All are back.')

    def _takes(self, name, size):
        one = self.machines[name]
        return one.disabled_by is None and self.is_up(one) and self.free(name) >= size

    def _end(self, drain, status, message):
        self.rows[drain.uuid] = drain.replace(status=status.value, message=message)

    def is_up(self, one):
        return one.runs and not one.forced_down

    def free(self, name):
        return self.machines[name].room - sum(size for host, size in self.where.values() if host == name)

    def on(self, name):
        return sorted(guest for guest, (host, _) in self.where.items() if host == name)

    # --- what a maintenance asks -------------------------------------------------------------------------------------

    def reports(self, hosts):
        return {name: self._report(self.machines[name]) for name in hosts if name in self.machines}

    def _report(self, one):
        is_away = self.time - one.reported > DOWN_TIME
        return Report(
            BEGAN + datetime.timedelta(seconds=one.reported),
            not is_away,
            f'boot-{one.boot}',
            f'kernel-{one.kernel}',
            one.forced_down,
            one.disabled_by is not None,
        )

    def drains(self, uuids):
        return {uuid: self.rows[uuid] for uuid in uuids if uuid in self.rows}

    def fleet(self, maintenance):
        mine = {turn.host: turn for turn in self.store.read_turns(maintenance.uuid)}
        out = {}
        for name, one in self.machines.items():
            turn = mine.get(name)
            by_us = turn is not None and turn.is_out
            if not by_us and one.disabled_by is not None:
                out[name] = 'it is disabled'
            elif not by_us and not self.is_up(one):
                out[name] = 'it is down'
        hosts = [Host(one.name, {'SIZE': one.room}, one.group) for one in self.machines.values() if one.name not in out]
        down = {name for name, one in self.machines.items() if not self.is_up(one)}
        groups = {name: self.machines[name].group for name in out if self.machines[name].group}
        return Fleet(hosts, down, out, groups, list(self.trouble))

    def guests(self, _maintenance):
        return [Guest(uuid, host, {'SIZE': size}) for uuid, (host, size) in sorted(self.where.items())]

    def immovable(self, _maintenance, turn):
        return [f'{guest}: It has a device.' for guest in self.on(turn.host) if guest in self.known_stuck]

    def start(self, maintenance, turn):
        self.on_call('start')
        now = next(one for one in self.store.read_turns(maintenance.uuid) if one.host == turn.host)
        if (now.status, now.drain) == (TurnStatus.DRAINING, turn.drain) and turn.drain not in self.rows:
            self.rows[turn.drain] = Drain(
                uuid=turn.drain, host=turn.host, status=DrainStatus.RUNNING.value, priorities=dict(turn.moves)
            )
            one = self.machines[turn.host]
            if one.disabled_by is None or one.disabled_by in self.rows:
                one.disabled_by = turn.drain
        self.on_call('started')

    def cancel(self, turn):
        self.on_call('cancel')
        drain = self.rows.get(turn.drain)
        if drain is not None and not drain.ended:
            self.rows[turn.drain] = drain.replace(cancel_requested_at=self.store.now())

    def enable(self, turn):
        self.on_call('enable')
        one = self.machines[turn.host]
        if one.disabled_by is not None and one.disabled_by in (turn.drain, turn.last_drain):
            self.watch.enables(turn)
            one.disabled_by = None
        self.on_call('enabled')
        return one.disabled_by is None

    def restore(self, maintenance, turn):
        self.on_call('restore')
        now = next(one for one in self.store.read_turns(maintenance.uuid) if one.host == turn.host)
        uuid = turn.drain or turn.last_drain
        if uuid not in self.rows:
            return 'It is gone.'
        if not self.moved.get(uuid):
            return ''
        if (now.status, now.drain or now.last_drain) == (TurnStatus.RETURNING, uuid):
            drain = self.rows[uuid]
            self.rows[uuid] = drain.replace(
                direction=Direction.BACK.value, status=DrainStatus.RUNNING.value, cancel_requested_at=None
            )
            one = self.machines[turn.host]
            if one.disabled_by in (turn.drain, turn.last_drain):
                one.disabled_by = None
        self.on_call('restored')
        return None

    def left(self, maintenance, turn):
        stays = self.stopped if maintenance.stopped == 'stay' else set()
        return [Check('guests', [one for one in self.on(turn.host) if one not in stays])]

    def when_dead(self, host):
        return f'Evacuate {host}.'

    def new_uuid(self):
        return f'00000000-0000-4000-9000-{next(self._numbers):012d}'


class Store:
    """The rows of a maintenance. A write needs the epoch and the newest event that were read."""

    def __init__(self, site):
        self._site = site
        self.log = []
        self._row, self._turns = None, {}

    def accept(self, maintenance, hosts):
        machines = self._site.machines
        turns = [Turn(host=name, position=place, group=machines[name].group) for place, name in enumerate(hosts, 1)]
        self._insert(maintenance, turns)

    def write(self, maintenance, fields, turns, events):
        self._site.on_call('write')
        before = {turn.host: turn.status for turn in self.read_turns(maintenance.uuid)}
        new = self._write(maintenance, fields, turns, events)
        self.log += events
        for turn in turns:
            if turn.status != before[turn.host]:
                self._site.watch.changes(new, turn)
        self._site.on_call('written')
        return new

    def now(self):
        return BEGAN + datetime.timedelta(seconds=self._site.time)

    # --- where the rows are ------------------------------------------------------------------------------------------

    def _insert(self, maintenance, turns):
        self._row, self._turns = maintenance, {turn.host: turn for turn in turns}

    def adopt(self, _uuid):
        """Give the maintenance a new owner, as after the death of the old one."""
        self._row = self._row.replace(epoch=self._row.epoch + 1)

    def get(self, _uuid):
        return self._row

    def read_turns(self, _uuid):
        return list(self._turns.values())

    def _write(self, maintenance, fields, turns, events):
        if (self._row.epoch, self._row.log_seq) != (maintenance.epoch, maintenance.log_seq):
            raise errors.NotOwnerOfMaintenance(maintenance=maintenance.uuid, epoch=maintenance.epoch)
        self._row = maintenance.replace(**fields, log_seq=maintenance.log_seq + max(1, len(events)))
        self._turns |= {turn.host: turn for turn in turns}
        return self._row


class Watch:
    """The judge of what a maintenance does.

    :ivar wrong: what must not have happened.
    """

    def __init__(self, site):
        self._site = site
        self.wrong = []
        #: host -> its kernel and its boot when the work at it began, and when that ended
        self.work = {}

    def changes(self, maintenance, turn):
        """A turn gets a new status."""
        one = self._site.machines[turn.host]
        if turn.status in (TurnStatus.DRAINING, TurnStatus.WORKING):
            self._takes_out(maintenance, turn)
        if turn.status == TurnStatus.WORKING:
            self.work[turn.host] = (one.kernel, one.boot, self._site.time)
        elif turn.status == TurnStatus.RETURNING and turn.was_worked_on:
            self.work[turn.host] = (*self.work[turn.host][:2], self._site.time)

    def _takes_out(self, maintenance, turn):
        """A host leaves service: no more of them are out than is allowed."""
        machines = self._site.machines
        out = {name for name, one in machines.items() if one.disabled_by is not None or not self._site.is_up(one)}
        out |= {turn.host}
        turns = self._site.store.read_turns(maintenance.uuid)
        ended = {one.host for one in with_status(turns, TurnStatus.DONE, TurnStatus.SKIPPED)}
        out -= ended
        mine = out & {one.host for one in turns}
        if len(mine) > maintenance.parallel:
            self.wrong.append(f'more than {maintenance.parallel} out of service: {sorted(mine)}')
        group = machines[turn.host].group
        same = [name for name in out if machines[name].group == group]
        if maintenance.per_group is not None and group and len(same) > maintenance.per_group:
            self.wrong.append(f'more than {maintenance.per_group} of {group} out of service: {sorted(same)}')

    def moves(self, guest, to):
        """A guest goes to a host: it is not out of service.

        It may just have been given up for a drain that is not requested yet, or be back without the row of that.
        """
        for turn in with_status([one for one in self._site.store.read_turns(UUID) if one.host == to], *OUT):
            is_back = turn.status == TurnStatus.RETURNING and (
                not (turn.was_worked_on and turn.is_out) or self._is_back(turn)
            )
            if not is_back and (turn.status != TurnStatus.DRAINING or turn.drain in self._site.rows):
                self.wrong.append(f'{guest} goes to {to}, which is out of service: {turn.status}')

    def works(self, host, claim):
        """A user works at a host: no other one does, and it is empty."""
        one = self._site.machines[host]
        if one.at_work:
            self.wrong.append(f'two work at {host}')
        one.at_work.add(claim)
        self.look()

    def ends_work(self, host, claim):
        """A user works at a host no more."""
        self._site.machines[host].at_work.discard(claim)

    def look(self):
        for name, one in self._site.machines.items():
            if one.at_work and set(self._site.on(name)) - self._site.stopped:
                self.wrong.append(f'{name} is worked on with guests: {self._site.on(name)}')

    def enables(self, turn):
        """A host is used again: if it was worked on, it has shown that it is back."""
        if self._site.machines[turn.host].at_work:
            self.wrong.append(f'{turn.host} is enabled while it is worked on')
        if turn.was_worked_on and not self._is_back(turn):
            self.wrong.append(f'{turn.host} is enabled without a sign that it is back')

    def _is_back(self, turn):
        one, maintenance = self._site.machines[turn.host], self._site.store.get(UUID)
        kernel, boot, ended = self.work[turn.host]
        settled = one.reported - max(one.since, ended) >= (maintenance.settle or 0)
        shown = {'reboot': one.kernel != kernel, 'restart': one.boot != boot, 'report': settled}
        return shown[maintenance.returned_by] and one.reported > ended
