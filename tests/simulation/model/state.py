# SPDX-License-Identifier: Apache-2.0
"""The state of the modelled world: a migration, conductors, hosts, Placement, and messages.

Each part is a NamedTuple, so that it can be hashed, compared and printed. A state of the search is one value of each
part; see :mod:`tests.simulation.model.search`.
"""

from __future__ import annotations

from typing import NamedTuple

from migrator.objects.migration import ENDS, LEGAL_MOVES, MigrationStatus

#: The owner of what no live conductor owns.
NO_OWNER = 2
FORWARD, BACK = 'forward', 'back'


class Phase:
    """How far the log has come towards the pivot.

    A step's done and the next one's intent share a commit. The check has no intent, so it is sent before the move's
    done is committed. MOVED: the check may have left something, and nothing was prepared.
    """

    NOTHING, MOVE_INTENDED, MOVED, PRE_INTENDED, LIVE_INTENDED = range(5)


class Undo:
    """How far the log has come on the way back; NONE: this attempt is not being unwound."""

    NONE, DECIDED, CLEAN_INTENDED, CLEANED, RESTORE_INTENDED, RESTORED, RETURN_INTENDED = range(7)


class Post:
    """Bits: which records there are after the pivot.

    Without INTENDED the conductor asks the source whether its job has ended.
    """

    INTENDED, SOURCE_DONE, DESTINATION_DONE, RELEASE_INTENDED = 1, 2, 4, 8


class Cleanup(NamedTuple):
    """A row of cleanups. ``what``: clean, restore, post."""

    what: str
    epoch: int
    owner: int = NO_OWNER


class Row(NamedTuple):
    """The database: the migration's row and log, the instance's host, its hosts' boots, the cleanups."""

    status: MigrationStatus = MigrationStatus.ACCEPTED
    outcome: str = ''
    host: str = 'S'
    owner: int = 0
    epoch: int = 1
    #: The origin of an abort request: '', 'user', or 'stop' (the planned stop of the source).
    abort: str = ''
    #: abort_verdict, by its first word; 'stop' is CANCELLED_BY_STOP.
    verdict: str = ''
    phase: int = Phase.NOTHING
    undo: int = Undo.NONE
    post: int = 0
    attempt: int = 1
    #: The destination of the newest intent; '' before there is one.
    destination: str = ''
    boot_s: int = 1
    boot_d: int = 1
    cleanup_s: Cleanup | None = None
    cleanup_d: Cleanup | None = None

    @property
    def ended(self) -> bool:
        """Whether its end is committed."""
        return self.status in ENDS

    def boot(self, host: str) -> int:
        """The boot that the database has of a host; E never restarts."""
        return {'S': self.boot_s, 'D': self.boot_d}.get(host, 1)


class Allocations(NamedTuple):
    """What Placement says of the two consumers, and their generations."""

    instance: str = 'S'
    instance_generation: int = 1
    migration: str = ''
    #: ABSENT, or ORPHAN: there, without an allocation.
    migration_generation: int = -1


ABSENT, ORPHAN = -1, 0


class Up:
    """What a compute service is doing."""

    UP = 'up'
    DEAD = 'dead'
    UNREACHABLE = 'unreachable'
    #: It has started, and calls compute_started until that is answered.
    STARTING = 'starting'
    #: A planned stop: the queue is closed (STOPPING), then the stop was reported or not (EXITING).
    STOPPING = 'stopping'
    EXITING = 'exiting'


class StopReport(NamedTuple):
    """The answer to compute_started, on its way back to the host."""

    epoch: int
    owner: int
    #: The destination of the migration that the host queues again; '' if there is none.
    queue: str


class Source(NamedTuple):
    """The source: its compute service and its hypervisor.

    ``guest``: here, job (here, with a job), cutover (paused for it, with a job), paused (for cut-over, no job), absent.
    ``work``, the live migration of this boot: '', queued, called off (cancelled by the closing queue, not reported),
    started, unwanted (started, an abort came), calling (the driver has it), and its ends: cancelled, returned (no
    verdict), failed, aborted, completed, gone.
    """

    up: str | StopReport = Up.UP
    boot: int = 1
    seen: int = 0
    seen_of: int = NO_OWNER
    guest: str = 'here'
    work: str = ''
    #: A driver call of a dead boot that may still start the job.
    pending: bool = False
    #: It was queued by the answer to compute_started: an earlier boot may have begun with it.
    again: bool = False
    #: Its work was cancelled by a planned stop while nothing was settled, and is said to be so.
    by_stop: bool = False
    #: Where the guest is to go.
    target: str = 'D'
    #: For the plant i16 alone: the epoch in which the live migration was taken.
    taken: int = 0


WORK_ENDS = frozenset({'cancelled', 'returned', 'failed', 'aborted', 'completed', 'gone'})


class Destination(NamedTuple):
    """A destination: its compute service and its hypervisor.

    ``guest``: none, checked (what the check left), waiting (prepared), runs.
    ``work``: '', checking, preparing, prepared, failed, clearing (a rollback waits behind what it has cancelled).
    """

    up: str | StopReport = Up.UP
    boot: int = 1
    seen: int = 0
    seen_of: int = NO_OWNER
    guest: str = 'none'
    work: str = ''
    #: The hypervisor answers nothing, though the service does. A guest may still arrive.
    hangs: bool = False


class Message(NamedTuple):
    """A call on its way.

    To a host it has the epoch, and the boot that it is meant for; to Placement the two generations; compute_started has
    the boot, and the one that it replaces.
    ``about``: of a move, and of step 5, the destination; of compute_started the host.
    """

    kind: str
    to: str
    first: int
    second: int
    about: str = ''
    #: Delayed by a fault: it may arrive whenever it likes. Others wait in their host's queue at most until it starts.
    late: bool = False

    def __str__(self) -> str:
        if self.to not in ('S', 'D', 'E'):
            return f'{self.kind}({self.first}, {self.second})'
        return f'{self.kind} to {self.to} (epoch {self.first}, boot {self.second})'


class Conductor(NamedTuple):
    """One conductor, and where it stands in its saga; ``at`` is (place, ...details), see conductor.py."""

    paused: bool = False
    at: tuple = ('idle',)
    epoch: int = 0
    settling: bool = False
    #: A failure or time-out that it remembers as a reason to turn back.
    must_abort: bool = False
    #: The next move is written with ORPHAN_GENERATION.
    orphan: bool = False


IDLE = Conductor()


class Budget(NamedTuple):
    """How many faults, aborts, stops and hangs of D's hypervisor may still happen."""

    crashes: int = 0
    messages: int = 0
    aborts: int = 0
    stops: int = 0
    hangs: int = 0


def moved(row: Row, status: MigrationStatus, **fields: object) -> tuple[Row, str]:
    """Change a row's status; also return what is broken: a move that the product's table does not have."""
    legal = row.status == status or (row.status, status) in LEGAL_MOVES
    broken = '' if legal else f'illegal move {row.status} -> {status}'
    return row._replace(status=status, **fields), broken  # type: ignore[arg-type]  # names of its own fields


def add(net: tuple[Message, ...], message: Message) -> tuple[Message, ...]:
    """Return what is on its way, with one more; two that are equal are one."""
    return net if message in net else tuple(sorted((*net, message), key=repr))


def refuse_all(net: tuple[Message, ...], host: str) -> tuple[Message, ...]:
    """Return what is on its way when a host starts.

    The host refuses what has waited for it, since it is not registered.
    """
    return tuple(message for message in net if message.to != host or message.late)


def remove(net: tuple[Message, ...], message: Message) -> tuple[Message, ...]:
    """Return what is on its way, with one less."""
    return tuple(other for other in net if other != message)
