# SPDX-License-Identifier: Apache-2.0

"""Settling: a pure function from the observations of both hosts to the next act.

The tables have a row for each observation of a host, and a column for the state of the migration. Nothing here polls or
writes. The caller polls the source first, and the destination once the source has answered.
"""

from __future__ import annotations

import dataclasses
import enum
from types import MappingProxyType

from migrator.objects.protocol import ACTIVE, Entry, GuestState


class Observed(enum.StrEnum):
    """The observation of a host: a row of the table. Its value follows the host in a sentence."""

    #: There is no job, and the driver call was never made.
    HERE = 'has the guest, and has not begun to move it'
    #: There is no job, and the driver call has returned.
    RETURNED = 'has the guest, and no longer moves it'
    #: The entry waits in the queue.
    WAITS = 'has the guest waiting in its queue'
    #: The entry has left the queue, and there is no job yet.
    STARTED = 'is about to move the guest'
    JOB = 'is moving the guest'
    CUTOVER_JOB = 'is moving the guest, and has paused it for the switchover'
    CUTOVER = 'has the guest paused for the switchover, and no longer moves it'
    SHUT_OFF = 'has the guest shut off'
    ABSENT = 'does not have the guest'
    WAITING = 'is ready for the guest, and does not run it'
    PREPARING = 'is getting ready for the guest'
    RUNS = 'has the guest'
    BROKEN = 'has only a part of the memory of the guest, since its post-copy broke off'
    MISSING = 'has not answered'
    DOWN = 'is down'


class Column(enum.StrEnum):
    """The state of the migration: a column of the table. Its value ends the operator's sentence."""

    #: The pivot was not sent.
    NOT_SENT = 'the migration had not begun'
    QUEUED = 'the migration was last known to be queued'
    RUNNING = 'the migration was last known to be running'


class Act(enum.StrEnum):
    """The next act, which is a cell of the table."""

    GO_ON = 'go on'
    QUEUE = 'queue it again'
    PREPARE = 'prepare the destination again'
    WAIT = 'wait'
    SEE_RUNNING = 'it runs'
    #: In a cell: the other host decides. As a decision: poll both hosts again.
    OTHER_DECIDES = 'the other host decides'
    ABORT = 'abort it, or cancel it in the queue, and wait'
    FORWARD = 'forward'
    BACK = 'undo'
    ERROR = 'the guest is lost'
    STUCK = 'stuck'


_A = Act
_STUCK = (_A.STUCK,) * 3

#: Observation of the source -> the act, by column.
SOURCE = MappingProxyType(
    {
        Observed.HERE: (_A.GO_ON, _A.QUEUE, _A.BACK),
        Observed.RETURNED: (_A.GO_ON, _A.BACK, _A.BACK),
        Observed.WAITS: (_A.STUCK, _A.WAIT, _A.WAIT),
        Observed.STARTED: (_A.STUCK, _A.WAIT, _A.WAIT),
        Observed.JOB: (_A.STUCK, _A.SEE_RUNNING, _A.SEE_RUNNING),
        Observed.CUTOVER_JOB: (_A.STUCK, _A.WAIT, _A.WAIT),
        Observed.CUTOVER: (_A.STUCK, _A.BACK, _A.BACK),
        Observed.SHUT_OFF: (_A.BACK, _A.BACK, _A.BACK),
        Observed.ABSENT: (_A.ERROR, _A.OTHER_DECIDES, _A.OTHER_DECIDES),
        Observed.BROKEN: _STUCK,
    }
)

#: Observation of the destination -> the act, by column.
DESTINATION = MappingProxyType(
    {
        Observed.WAITING: (_A.GO_ON, _A.GO_ON, _A.OTHER_DECIDES),
        Observed.PREPARING: (_A.GO_ON, _A.WAIT, _A.OTHER_DECIDES),
        Observed.RUNS: (_A.STUCK, _A.FORWARD, _A.FORWARD),
        Observed.ABSENT: (_A.GO_ON, _A.PREPARE, _A.OTHER_DECIDES),
        Observed.BROKEN: _STUCK,
    }
)

#: The source has a job. Only RUNS at the destination overrules its row.
JOB = frozenset({Observed.JOB, Observed.CUTOVER_JOB})
#: The guest could run at the source at any moment.
_HERE = frozenset({Observed.HERE, Observed.RETURNED})
#: The acts by precedence: the act of the source and that of the destination are reduced to the earlier one.
_PRECEDENCE = (
    _A.STUCK,
    _A.WAIT,
    _A.FORWARD,
    _A.ERROR,
    _A.BACK,
    _A.PREPARE,
    _A.QUEUE,
    _A.SEE_RUNNING,
    _A.GO_ON,
)


@dataclasses.dataclass(frozen=True)
class Host:
    """The observation of one host.

    :ivar verdict: the result of the driver call: completed, failed or aborted; '' if it has not returned.
    :ivar forced_down: whether an operator has declared that the host is fenced; only with DOWN.
    """

    observed: Observed
    verdict: str = ''
    post_copy: bool = False
    forced_down: bool = False


@dataclasses.dataclass(frozen=True)
class Decision:
    """The next act, and its reason for an operator."""

    act: Act
    reason: str


def _describe(host: Host) -> str:
    return f'{host.observed}, as an operator has declared' if host.forced_down else str(host.observed)


def source_observed(state: str, job: bool, entry: str) -> Observed:
    """Return the row for a poll of the source."""
    if state == GuestState.POSTCOPY_BROKEN:
        return Observed.BROKEN
    if state == GuestState.CUTOVER:
        return Observed.CUTOVER_JOB if job else Observed.CUTOVER
    if job:
        return Observed.JOB
    if entry == Entry.QUEUED:
        return Observed.WAITS
    if entry == Entry.STARTED:
        return Observed.STARTED
    if state in ACTIVE:
        return Observed.RETURNED if entry == Entry.RETURNED else Observed.HERE
    if state == GuestState.SHUTDOWN:
        return Observed.SHUT_OFF
    # A process at the source that only waits to receive a guest is not the guest.
    return Observed.ABSENT


def destination_observed(state: str, preparing: bool) -> Observed:
    """Return the row for a poll of the destination."""
    if state == GuestState.POSTCOPY_BROKEN:
        return Observed.BROKEN
    if state in (*ACTIVE, GuestState.SHUTDOWN):
        return Observed.RUNS
    if preparing:
        return Observed.PREPARING
    return Observed.WAITING if state in (GuestState.WAITING, GuestState.CUTOVER) else Observed.ABSENT


def decide(
    source: Host,
    destination: Host,
    column: Column,
    abort: bool,
    asked_again: bool = False,
    names: tuple[str, str] = ('', ''),
    late: bool = False,
) -> Decision:
    """Return the next act and its reason.

    :param abort: whether there is an abort reason: a request, a failure or a time-out.
    :param asked_again: whether both hosts have repeated their observations.
    :param names: the names of the source and of the destination, for the reason.
    :param late: whether the copy has lasted longer than the default time-out allows.
    """
    act = _decide(source, destination, column, abort, asked_again, late)
    return Decision(act, _reason(act, source, destination, column, names))


def _reason(act: Act, source: Host, destination: Host, column: Column, names: tuple[str, str]) -> str:
    """Return the observations in a sentence, and what an operator can do if it is stuck."""
    ours, theirs = (
        ' '.join(filter(None, words)) for words in zip(('The source', 'the destination'), names, strict=True)
    )
    ours, theirs = f'{ours} {_describe(source)}', f'{theirs} {_describe(destination)}'
    seen = f'{ours}; {theirs}; {column}.'
    if act is not Act.STUCK:
        return seen
    if column is Column.QUEUED and source.observed is Observed.ABSENT and destination.observed is Observed.DOWN:
        helps = (
            'No migration job of the guest was seen, and no host that answers has it: start the compute service of '
            'the destination. Or look which host has the guest, and abandon the migration with --guest-on that host.'
        )
    elif Observed.DOWN in (source.observed, destination.observed):
        helps = 'Start the compute service that is down. Or, if its host is fenced, declare the host forced down.'
    elif Observed.BROKEN in (source.observed, destination.observed):
        helps = 'No host can run the guest as it is: start it again from its disk.'
    elif source.observed in _HERE and destination.observed is Observed.RUNS:
        helps = 'Both hosts have the guest, running or shut off: look which copy is right, and undefine the other.'
    else:
        helps = 'This fits no known case: look which host has the guest.'
    return f'{seen} {helps}'


def _decide(source: Host, destination: Host, column: Column, abort: bool, asked_again: bool, late: bool) -> Act:
    if Observed.MISSING in (source.observed, destination.observed):
        # Only the source can end its job, so an abort does not wait for the destination. A post-copy cannot be aborted.
        stoppable = abort and column is not Column.NOT_SENT and not source.post_copy
        return _requested(_A.WAIT, source.observed) if stoppable else _A.WAIT
    if Observed.DOWN in (source.observed, destination.observed):
        return _with_a_host_down(source, destination, column, abort, late)
    if source.observed in _HERE and destination.observed is Observed.RUNS:
        # The two polls were not at the same time, and the guest may have moved between them.
        return _A.STUCK if asked_again else _A.OTHER_DECIDES
    theirs = _cell(SOURCE, source.observed, column)
    others = _cell(DESTINATION, destination.observed, column)
    if abort:
        theirs = _requested(theirs, source.observed)
        # The preparation of the destination no longer matters.
        others = _A.OTHER_DECIDES if others in (_A.PREPARE, _A.GO_ON, _A.WAIT) else others
    if source.observed in JOB:
        return others if destination.observed is Observed.RUNS else theirs
    if source.observed is destination.observed is Observed.ABSENT and column is not Column.NOT_SENT:
        return _A.ERROR
    if source.observed is Observed.WAITS and others is _A.PREPARE:
        # A start without a prepared destination would fail. It can be prepared while the guest waits.
        return _A.PREPARE
    if {theirs, others} == {_A.OTHER_DECIDES}:
        return _A.STUCK
    if theirs is _A.OTHER_DECIDES and others is _A.GO_ON:
        # The source has lost the guest or the command. If its driver has failed, it would fail again.
        return _A.ERROR if source.verdict == 'failed' else _A.QUEUE
    if theirs is _A.ABORT:
        return theirs if others is not _A.STUCK else others
    return min({theirs, others} - {_A.OTHER_DECIDES}, key=_PRECEDENCE.index)


def _cell(table: MappingProxyType[Observed, tuple[Act, ...]], observed: Observed, column: Column) -> Act:
    return table[observed][list(Column).index(column)]


def _requested(act: Act, observed: Observed) -> Act:
    """Return the act that replaces a cell of the source if there is an abort reason."""
    if act in (_A.GO_ON, _A.QUEUE):
        return _A.BACK
    if observed in (Observed.WAITS, Observed.JOB, Observed.CUTOVER_JOB) and act in (_A.WAIT, _A.SEE_RUNNING):
        # A paused guest with a job is included. Force completion pauses a guest long before it moves, and the driver
        # decides whether an abort still comes in time.
        return _A.ABORT
    return act


def _with_a_host_down(source: Host, destination: Host, column: Column, abort: bool, late: bool) -> Act:
    if source.observed is destination.observed:
        return _A.STUCK
    if column is Column.NOT_SENT:
        if destination.observed is Observed.RUNS or source.observed in JOB | {Observed.CUTOVER, Observed.BROKEN}:
            return _A.STUCK
        return _A.ERROR if source.observed is Observed.ABSENT else _A.BACK
    if source.observed is Observed.DOWN:
        if destination.observed is Observed.RUNS:
            return _A.FORWARD
        if source.forced_down:
            return _A.ERROR
        # The destination still receives the copy, so the source's hypervisor goes on without its compute service.
        copies = column is Column.RUNNING and destination.observed is Observed.WAITING
        return _A.WAIT if copies and not abort and not late else _A.STUCK
    return _with_the_destination_down(source, destination, column, abort)


def _with_the_destination_down(source: Host, destination: Host, column: Column, abort: bool) -> Act:
    if source.post_copy and destination.forced_down:
        return _A.ERROR
    if source.verdict == 'completed':
        return _A.FORWARD
    if source.observed is Observed.ABSENT:
        # A guest whose job was never seen has not left by migration, and may exist on no host.
        return _A.FORWARD if column is Column.RUNNING else _A.STUCK
    if source.observed in _HERE:
        return _A.BACK
    if source.observed is Observed.WAITS:
        return _A.ABORT if abort or destination.forced_down else _A.WAIT
    if source.observed is Observed.JOB:
        return _A.ABORT if abort or destination.forced_down else _A.WAIT
    if source.observed in (Observed.CUTOVER, Observed.SHUT_OFF) and source.verdict in ('failed', 'aborted'):
        return _A.BACK
    if source.observed in (Observed.STARTED, Observed.CUTOVER_JOB):
        return _A.WAIT
    return _A.STUCK
