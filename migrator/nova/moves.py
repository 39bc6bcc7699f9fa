# SPDX-License-Identifier: Apache-2.0

"""The kinds of moves of a stock Nova, the marks that identify them, and their states as it shows them.

A guest that is shut off moves by a cold migration. Its answer has no id of the migration, and once the guest is at its
destination, in VERIFY_RESIZE, a user confirms or reverts it. A drain confirms those that it has requested itself, and
leaves all others to their users.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from migrator.drain.engine import Move, MoveState, to_decide, why_copied
from migrator.nova import errors
from migrator.nova.client import Nova
from migrator.nova.emptiness import why_down
from migrator.nova.guests import (
    ENDED,
    MIGRATABLE,
    MOVED,
    RESIZED,
    RUNS,
    STOPPED,
    evacuate,
    forgotten,
    is_half_written,
    look_at,
    may_have_started,
    obstacle,
    request_of,
    short,
    shown,
    why_failed,
)
from migrator.nova.resources import Action, NovaMigration, Server, Service
from migrator.objects import remedies
from migrator.objects.drain import Member

#: Seconds for which all looks must show the same before it counts as settled. Nova updates a running migration every
#: five seconds.
SETTLED = 15.0
#: Seconds after which a guest with a task and no migration in progress is shown as stuck.
LATE = 300.0
#: The same for a cold migration in progress. Nova writes nothing while it copies the disks.
COLD_LATE = 3600.0
#: The statuses of a migration before its destination begins with it.
PENDING = ('accepted', 'queued', 'preparing')
#: The actions after which a guest is in VERIFY_RESIZE, and how many of the newest actions of a guest are read.
_RESIZES, _ACTIONS = ('migrate', 'resize'), 50


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of move.

    :ivar type: the type of its migrations.
    :ivar tasks: the tasks of a guest for which one was requested; empty: its migration shows that sooner.
    :ivar needs_source: whether it goes on only while the source is up.
    """

    type: str
    tasks: tuple[str, ...]
    needs_source: bool = True


LIVE = Kind('live-migration', ('migrating',))
COLD = Kind('migration', ('resize_prep', 'resize_migrating', 'resize_migrated', 'resize_finish'))
EVACUATION = Kind('evacuation', (), needs_source=False)


@dataclasses.dataclass(frozen=True)
class Mark:
    """What identifies the move of a member; see :attr:`migrator.objects.drain.Member.mark`.

    :ivar newest: the id of the newest migration that the guest had before the request.
    :ivar user: who requests a cold migration; '' if that is not known; None: it is another kind of move.
    :ivar request: the id of its request, once Nova has answered.
    """

    newest: int = 0
    user: str | None = None
    request: str | None = None

    @classmethod
    def of(cls, text: str | None) -> Mark:
        """Return the mark of a text, which :meth:`__str__` has made."""
        before, answered, request = (text or '0').partition(':')
        newest, asked, user = before.partition('@')
        return cls(int(newest), user if asked or answered else None, request or None)

    def __str__(self) -> str:
        """Return ``17``; of a cold migration ``17@USER``, and ``17:req-...`` once Nova has answered."""
        if self.request is not None:
            return f'{self.newest}:{self.request}'
        return str(self.newest) if self.user is None else f'{self.newest}@{self.user}'

    @property
    def is_cold(self) -> bool:
        """Whether it is of a cold migration."""
        return self.user is not None


@dataclasses.dataclass(frozen=True)
class Seen:
    """What one look has read of the move of a member.

    :ivar row: its migration; None: Nova has none.
    :ivar lasts: for how many seconds the looks have shown the same.
    :ivar named: the destination that was named to Nova; None: none.
    :ivar service_at: returns the nova-compute of a host.
    """

    nova: Nova
    kind: Kind
    member: Member
    row: NovaMigration | None
    server: Server
    lasts: float
    named: str | None
    service_at: Callable[[str], Service | None]

    def move(self) -> Move | None:
        """Return the state of the move, and confirm a cold migration that waits for that.

        :returns: None: its request has not arrived.
        :raises migrator.nova.errors.NovaUnreachable: Nova did not answer.
        """
        return self._cold() if self.kind is COLD else self._live()

    @property
    def _is_there(self) -> bool:
        row = self.row
        return row is not None and row.dest_compute is not None and self.server.host == row.dest_compute != self._source

    @property
    def _source(self) -> str:
        return self.member.source

    def _live(self) -> Move | None:
        row, server = self.row, self.server
        if row is None and not self.kind.needs_source and server.host == self._source:
            # An evacuation has its migration as soon as Nova has accepted it, and a task may be of something else.
            return Move(MoveState.PENDING) if self.lasts < SETTLED else None
        if row is not None and is_half_written(row, server) and self.lasts >= SETTLED:
            reason = forgotten(row, request_of(self.nova, row))
            return Move(MoveState.FAILED, row.dest_compute, reason, in_doubt=True)
        if server.task_state is not None:
            return self._in_progress()
        if row is None:
            return self._not_seen()
        if row.status not in ENDED or (row.status in MOVED and not self._is_there and server.host == self._source):
            # Nova does not show its end or the new host of the guest yet, or has forgotten the migration.
            if self.lasts < SETTLED:
                return self._in_progress()
        if self._is_there or (row.status in MOVED and server.host != self._source):
            return self._moved(row)
        if server.host != self._source:
            return self._elsewhere()
        if row.status == 'cancelled':
            return Move(MoveState.CANCELLED, reason=f'Its migration {row.id} was aborted.')
        if row.status in ('failed', 'error'):
            return self._failed(row)
        # A host that was asked to start the guest may have done so; a source that was asked to move it still has it.
        in_doubt = not self.kind.needs_source and row.dest_compute is not None
        reason = forgotten(row, request_of(self.nova, row))
        return Move(MoveState.FAILED, row.dest_compute, reason, in_doubt=in_doubt)

    def _cold(self) -> Move | None:
        row, server = self.row, self.server
        if server.task_state is not None:
            return self._in_progress()
        if row is None and server.vm_state != RESIZED:
            return self._not_seen()
        if row is None or ((server.vm_state == RESIZED or self._is_there) and not self._is_ours()):
            return self._undecided() if server.vm_state == RESIZED else self._elsewhere()
        if server.vm_state == RESIZED and row.status in ('finished', 'confirming'):
            return self._confirm(row)
        if self.lasts < SETTLED and (row.status not in ENDED or server.vm_state == RESIZED):
            return self._in_progress()
        if self._is_there:
            return self._moved(row)
        if server.host != self._source:
            return self._elsewhere()
        if row.status == 'reverted':
            return Move(MoveState.CANCELLED, reason=f'Its user has reverted its cold migration {row.id}.')
        if row.status in ('failed', 'error'):
            return self._failed(row)
        return Move(MoveState.FAILED, row.dest_compute, forgotten(row, request_of(self.nova, row)))

    def _is_ours(self) -> bool:
        """Return whether the drain has requested the cold migration after which the guest is where it is.

        Nova accepts no other one while the guest is in VERIFY_RESIZE. So the newest action that leads there counts. Its
        answer may have been lost: then it must be of the same user, and the only one since the mark.
        """
        mark = Mark.of(self.member.mark)
        newest = next((one for one in self.nova.actions(self.server.uuid, _ACTIONS) if one.action in _RESIZES), None)
        if newest is None or newest.action != 'migrate':
            return False
        if mark.request is not None:
            return newest.request_id == mark.request
        rows = self.nova.migrations(instance_uuid=self.server.uuid, limit=_ACTIONS)
        since = [row for row in rows if row.id > mark.newest and row.type in (COLD.type, 'resize')]
        return bool(mark.user) and newest.user_id == mark.user and len(since) == 1

    def _confirm(self, row: NovaMigration) -> Move:
        """Confirm a cold migration of the drain. Repeated, it has no effect: Nova confirms a migration once.

        A guest that runs was started since the drain has looked. Whether it works at its destination is for its user to
        say.
        """
        move = self._in_progress()
        if move.waits_for is not None or row.status == 'confirming':
            return move
        if self.server.power_state == RUNS:
            return self._undecided()
        try:
            self.nova.confirm(self.server.uuid)
        except errors.NovaRefused as error:  # its user was faster, or it needs an operator: the next look shows that
            why = f'Nova does not confirm its cold migration {row.id}: {short(error.reason)}.'
            return dataclasses.replace(move, is_stuck=True, waits_for=why)
        return move

    def _undecided(self) -> Move:
        """Return that a user has to decide. Once that is done, the drain goes on with the guest."""
        service = self.service_at(self._source)
        remedy = to_decide(self.server.uuid, self._source, service is not None and service.state == 'up')
        return Move(MoveState.BLOCKED, reason=f'{why_copied(self.server.host or "", self._source)} {remedy}')

    def _not_seen(self) -> Move | None:
        """Return the state of a move without a migration and without a task."""
        if self.server.host != self._source:
            return self._elsewhere()
        if self.lasts < SETTLED:
            return Move(MoveState.PENDING)
        request = Mark.of(self.member.mark).request
        if request is None:
            return None
        why = why_failed(self.nova, self.server.uuid, request, self._source)
        return Move(
            MoveState.FAILED, reason=f'Nova has accepted its cold migration ({request}) and not begun it: {why}'
        )

    def _elsewhere(self) -> Move:
        return Move(MoveState.GONE, reason=f'It was moved to {self.server.host} without this drain.')

    def _moved(self, row: NovaMigration) -> Move:
        return Move(MoveState.MOVED, row.dest_compute, reason=self._why_noted(row))

    def _why_noted(self, row: NovaMigration) -> str | None:
        """Return what an operator should know of a guest that has moved."""
        server = self.server
        if server.vm_state == 'error' or server.status == 'ERROR':
            request = self._request(row)
            copy = f'{row.source_compute} may keep its old copy. ' if self.kind is COLD else ''
            return (
                f'It is on {server.host}, and Nova shows it in ERROR: migration {shown(row, request)} ended as '
                f'{row.status}: {self._why(row, request)}. {copy}{self._set_active() or "Check the guest there."}'
            )
        if server.vm_state == RESIZED:
            return f'It is on {server.host}, and Nova still shows it in VERIFY_RESIZE. {self._set_active()}'.rstrip()
        if row.status not in ENDED:
            return f'It is on {server.host}, though its migration {row.id} is still shown as {row.status}.'
        return None

    def _set_active(self) -> str:
        look = look_at(self.service_at(self.server.host or ''))
        kind = remedies.Kind.SET_ACTIVE_IF_THERE
        return remedies.offer(kind, look, guest=self.server.uuid, host=self.server.host)

    def _request(self, row: NovaMigration) -> Action | None:
        """Return the action in which a migration has failed. A cold one may have failed in its confirmation."""
        if self.kind is not COLD:
            return request_of(self.nova, row)
        names = ('migrate', 'confirmResize')
        return next((one for one in self.nova.actions(self.server.uuid, _ACTIONS) if one.action in names), None)

    def _why(self, row: NovaMigration, request: Action | None) -> str:
        request_id = request.request_id if request is not None else None
        return why_failed(self.nova, row.instance_uuid, request_id, row.source_compute)

    def _failed(self, row: NovaMigration) -> Move:
        """Return the state of a move that has failed, and whose guest is where it was."""
        server, named = self.server, row.dest_compute or self.named
        request = self._request(row)
        to = f', to {named}' if named is not None else ''
        reason = f'Migration {shown(row, request)} ended as {row.status}{to}: {self._why(row, request)}'
        if not self.kind.needs_source:
            return _of_failed_evacuation(row, server, reason)
        is_as_before = server.vm_state in (STOPPED if self.kind is COLD else MIGRATABLE)
        now = None if is_as_before else obstacle(server, self.service_at(server.host or ''))
        reason = f'{reason}. {now.reason} {now.remedy}'.rstrip() if now is not None else reason
        return Move(MoveState.FAILED, row.dest_compute, reason, tried=(named,) if named else ())

    def _in_progress(self) -> Move:
        """Return the state of a migration that has not ended, or of which the guest's task has not."""
        row, kind = self.row, self.kind
        pending = (*PENDING, 'pre-migrating') if kind is COLD else PENDING
        state = MoveState.PENDING if row is None or row.status in pending else MoveState.RUNNING
        waits_for = self._why_down(row) if row is not None and row.status not in ENDED else None
        waits_for = waits_for or self._why_late()
        destination = row.dest_compute if row is not None else None
        return Move(state, destination, is_stuck=waits_for is not None, waits_for=waits_for)

    def _why_down(self, row: NovaMigration) -> str | None:
        """Return that a host which a migration needs is down, and what helps; None: none is."""
        for host in (row.source_compute if self.kind.needs_source else None, row.dest_compute):
            service = self.service_at(host) if host is not None else None
            if service is not None and service.state == 'down':
                remedy = _remedy(row, self.server, service) if self.kind is LIVE else 'Start it.'
                return f'Migration {row.id} is {row.status}. {why_down(service)} {remedy}'
        return None

    def _why_late(self) -> str | None:
        """Return that nothing has changed for long, and what to check; None: it may still get on."""
        row, server, kind = self.row, self.server, self.kind
        has_ended = row is None or row.status in ENDED
        if kind is COLD and not has_ended and self.lasts >= COLD_LATE:
            return (
                f'Nova has shown migration {row.id if row else ""} as {row.status if row else ""} for more than '
                f'{COLD_LATE:.0f} s. Check nova-compute at both hosts.'
            )
        if self.lasts < LATE or (kind.needs_source and not has_ended):
            return None
        what = 'has no migration' if row is None else f'shows migration {row.id} as {row.status}'
        look = look_at(self.service_at(server.host or ''))
        remedy_kind = remedies.Kind.SET_ACTIVE_IF_THERE if kind.needs_source else remedies.Kind.SET_ERROR
        remedy = remedies.offer(remedy_kind, look, guest=server.uuid, host=server.host)
        return (
            f'Its task_state has been {server.task_state} for more than {LATE:.0f} s, and Nova {what}. Check '
            f'nova-conductor, nova-compute and the message broker. {remedy}'
        ).rstrip()


def _of_failed_evacuation(row: NovaMigration, server: Server, reason: str) -> Move:
    """Return the state of an evacuation that has failed.

    If Nova has put the guest into ERROR, its new host may have started it before.
    """
    if may_have_started(row, server):
        there = f'{row.dest_compute} may have started it before: look there'
        return Move(MoveState.FAILED, row.dest_compute, f'{reason}. {there}', in_doubt=True)
    if server.vm_state == 'error':
        reason += '. It is in ERROR now, and so Nova starts it at its next evacuation'
    return Move(MoveState.FAILED, row.dest_compute, reason, tried=(row.dest_compute,) if row.dest_compute else ())


def _remedy(row: NovaMigration, server: Server, service: Service) -> str:
    if service.host == server.host:
        if row.status in PENDING or row.dest_compute is None:
            return f'Start it. {evacuate(server, service)}'
        # The hypervisor may have completed the move after nova-compute was gone.
        kind = remedies.Kind.EVACUATE_ONCE_LOOKED
        return f'Start it. {remedies.offer(kind, look_at(service), guest=server.uuid, host=row.dest_compute)}'
    abort = remedies.offer(remedies.Kind.ABORT, look_at(service), guest=server.uuid, migration=row.id)
    return f'Start it. {abort}'
