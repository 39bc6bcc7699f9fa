# SPDX-License-Identifier: Apache-2.0
"""What a conductor does: adopts, decides by the product's table, commits behind the guard, and sends.

How it asks is in asking.py, how it reads and writes allocations in ledger.py.

Where it stands (``Conductor.at``):

``idle``                      it has nothing
``ask``, hosts                it has adopted, or read its row anew: these have to answer in its epoch first
``run``                       woken: what comes next is in the row (next_act.py)
``settle``, again             about to ask the source, for the second time if ``again``
``half``, again, report       the source has answered; now the destination is asked
``both``, again, reports      both have answered: it decides next
``ask once``, kind, host      an answer did not come: the host is asked before the command is sent again
``defer``, kind, host         it is down, and its cleanup will be deferred
``read``, meaning, gi, gm     it has read the pair and both generations
``send``, message             its commit is done, the call not sent yet
``wait``, message             it waits for the answer
``moved`` and so on           an answer is in, and not committed yet

Two commits with nothing between them are one here; what a fault between them can do, it can do before the first.
A conductor finds out in ``run`` that the row is no longer its own, not only at its next commit: what it would send in
between is sent, in this model, before it loses the row, and arrives late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from migrator.conductor.migration.settle_table import Act, Host, Observed
from migrator.objects.migration import MigrationStatus as Status
from tests.simulation.model import placement, settling
from tests.simulation.model.asking import Asking
from tests.simulation.model.ledger import Ledger
from tests.simulation.model.next_act import Next, next_act
from tests.simulation.model.search import Step
from tests.simulation.model.state import (
    BACK,
    FORWARD,
    IDLE,
    NO_OWNER,
    Cleanup,
    Conductor,
    Message,
    Phase,
    Post,
    Row,
    Undo,
    moved,
)

Steps = Iterator[Step]
_JOB = (Observed.JOB, Observed.CUTOVER_JOB)
_CLEANUP = {('clean', 'D'): 'clean', ('restore', 'S'): 'restore', ('post', 'S'): 'post', ('post', 'D'): 'post'}


class Saga(Asking, Ledger):
    """The rules of one conductor."""

    # --- the row -----------------------------------------------------------------------------------------------------

    def adopt(self, me: Conductor, row: Row, other: Conductor) -> Steps:
        """Take a migration that no live conductor owns, raise its epoch, and ask both hosts first."""
        if me != IDLE or row.ended or not (row.owner == NO_OWNER or (row.owner == 1 - self.index and other.paused)):
            return
        epoch = row.epoch + 1
        adopted = row._replace(owner=self.index, epoch=epoch)
        yield self.step(f'adopts it, epoch {epoch}', self._afresh(adopted), adopted)

    def _afresh(self, row: Row, must_abort: bool = False) -> Conductor:
        """Return the conductor in the row's epoch, which it has just raised or read.

        The hosts answer in this epoch first. Where both are asked anyway before anything is decided, they are asked
        once here: what the first round would have refused may then arrive in between, or not.
        """
        mine = Conductor(at=('run',), epoch=row.epoch, settling=True, must_abort=must_abort)
        act = next_act(row, self.index, mine)
        if (
            'f' in self.plants
            or act not in (Next.CHECK, Next.AWAIT_PRE, Next.READ_ALLOCATIONS)
            or row.outcome
            or row.undo
        ):
            waits = act is Next.SETTLE and 'adopter-waits' in self.plants
            return mine._replace(at=('ask', 'S' + row.destination)) if waits else mine
        return mine._replace(at=('ask', 'S' + row.destination))

    def at_row(self, me: Conductor, row: Row) -> Steps:
        """Everything that needs nothing but the row."""
        here = me.at[0]
        if not self.owns(me, row):
            return
        if here == 'run':
            yield from self._run(me, row)
        elif here == 'argues':
            yield self.step('is stuck', me._replace(at=('run',)), stuck=me.at[1])
        elif here in ('checked', 'unchecked', 'prepared') and row.abort:
            # The guard: an abort request that is not known yet stops it.
            yield self.step('finds an abort request', me._replace(at=('run',)))
        elif here in _AT_ROW:
            yield from _AT_ROW[here](self, me, row)

    def look_up(self, me: Conductor, row: Row) -> Steps:
        """Release the row, or read it anew, once it is another's or in another epoch.

        A refused commit finds that out too. It goes first: it would have to be done before anything else, and done
        again if the epoch is raised once more.
        """
        if not self.owns(me, row):
            yield self._read_anew(me, row)

    def _read_anew(self, me: Conductor, row: Row) -> Step:
        if row.ended or row.owner != self.index:
            return self.step('releases it', IDLE)
        return self.step(f'reads it anew, epoch {row.epoch}', self._afresh(row, me.must_abort))

    def _run(self, me: Conductor, row: Row) -> Steps:
        match next_act(row, self.index, me):
            case Next.TURN_BACK:
                yield self._back(me, row, '')
            case Next.AWAIT_PRE if 'f' in self.plants and me.settling:
                # Planted: from the log, without a look.
                yield self.step('prepares again, unpolled', self.order(me, row, 'pre', row.destination))
            case Next.SETTLE if 'f' in self.plants and me.settling and row.phase == Phase.LIVE_INTENDED and row.abort:
                yield self.step('decides back from the log', me, row._replace(outcome=BACK, undo=Undo.DECIDED))
            case Next.CHECK:
                yield self.step('will have it checked', self.order(me, row, 'check', row.destination))
            case Next.UNWIND:
                yield self._undo_next(me, row)
            case Next.CLEAN:
                yield self.step('has it cleaned', self.order(me, row, 'clean', row.destination))
            case Next.RESTORE:
                yield self.step('has it restored', self.order(me, row, 'restore', 'S'))
            case Next.POST:
                for host, bit in (('S', Post.SOURCE_DONE), ('D', Post.DESTINATION_DONE)):
                    if not row.post & bit:
                        yield self.step(
                            f'has {host} do its post step', self.order(me, row, 'post', self._at(row, host))
                        )
            case Next.RELEASE:
                release = Message('release', 'P', 0, placement.FIRST_GENERATION)
                after = row._replace(post=row.post | Post.RELEASE_INTENDED)
                yield self.step('intends the release', me._replace(at=('send', release)), after)

    @staticmethod
    def _at(row: Row, host: str) -> str:
        return row.destination if host == 'D' else host

    # --- answers that are in -----------------------------------------------------------------------------------------

    def _moved(self, me: Conductor, row: Row) -> Steps:
        yield self.step('will have it checked', self.order(me, row, 'check', row.destination))

    def _unchecked(self, me: Conductor, row: Row) -> Steps:
        after = row._replace(phase=Phase.MOVED)
        yield self.step('commits the move, and that it turns back', me._replace(at=('run',), must_abort=True), after)

    def _checked(self, me: Conductor, row: Row) -> Steps:
        after = row._replace(phase=Phase.PRE_INTENDED)
        yield self.step('intends to prepare', self.order(me, row, 'pre', row.destination), after)

    def _prepared(self, me: Conductor, row: Row) -> Steps:
        after, broken = moved(row, Status.QUEUED, phase=Phase.LIVE_INTENDED)
        yield self.step('intends step 5', self.order(me, row, 'live', 'S'), after, broken)

    def _did(self, me: Conductor, row: Row) -> Steps:
        kind, host = me.at[1:]
        yield self._done(me, row, kind, host, f'commits that {host} did {kind}')

    def _defer(self, me: Conductor, row: Row) -> Steps:
        kind, host = me.at[1:]
        cleanup = Cleanup(_CLEANUP[kind, 'S' if host == 'S' else 'D'], row.epoch)
        deferred = row._replace(cleanup_s=cleanup) if host == 'S' else row._replace(cleanup_d=cleanup)
        yield self._done(me, deferred, kind, host, f'defers the cleanup {kind} of {host}')

    def _done(self, me: Conductor, row: Row, kind: str, host: str, label: str) -> Step:
        run = me._replace(at=('run',))
        if kind == 'post':
            bit = Post.SOURCE_DONE if host == 'S' else Post.DESTINATION_DONE
            return self.step(label, run, row._replace(post=row.post | bit))
        done = row._replace(undo=Undo.CLEANED if kind == 'clean' else Undo.RESTORED)
        step = self._undo_next(me, done)
        return step._replace(label=f'{self.side} {label}')

    def _refused(self, me: Conductor, row: Row) -> Steps:
        seen = me.at[1] if len(me.at) > 1 else 0
        if seen >= row.epoch:
            yield self._raise(me, row, f'raises the epoch above the {seen} that was seen', seen)
        else:
            yield self.step('was refused, looks again', me._replace(at=('run',)))

    def _raise(self, me: Conductor, row: Row, why: str, seen: int = 0) -> Step:
        epoch = max(row.epoch, seen) + 1
        raised = row._replace(epoch=epoch)
        after = self._afresh(raised, me.must_abort) if seen else me._replace(at=('run',), epoch=epoch, settling=True)
        return self.step(f'{why}: epoch {epoch}', after, raised)

    def _back_by_time_out(self, me: Conductor, row: Row) -> Steps:
        yield self._back(me, row, '')  # planted

    # --- settling ----------------------------------------------------------------------------------------------------

    def _pre_again(self, me: Conductor, row: Row) -> Steps:
        yield self.step('will have it prepared', self.order(me, row, 'pre', row.destination))

    def _both(self, me: Conductor, row: Row) -> Steps:
        again, source, destination = me.at[1:]
        where, must_abort = settling.column(row), bool(row.abort) or me.must_abort
        act = settling.decide(source, destination, where, must_abort, again)
        if Observed.DOWN in (destination.observed,) and source.observed is Observed.CUTOVER and not source.verdict:
            act = Act.FORWARD if 'xf' in self.plants else Act.BACK if 'xb' in self.plants else act
        if destination == settling.MISSING and 'abort-waits' in self.plants:
            act = Act.WAIT
        turning = act in (Act.BACK, Act.ABORT, Act.ERROR)
        if turning and not me.settling and 'a' not in self.plants:
            yield self._raise(me, row, f'would {act}')
            return
        yield self._act(me, row, act, source)

    def _act(self, me: Conductor, row: Row, act: Act, source: Host) -> Step:
        run, acts = me._replace(at=('run',)), Act
        label = f'decides: {act}'
        if act is acts.OTHER_DECIDES:
            return self.step('asks both once more', me._replace(at=('settle', True)))
        if act is acts.STUCK:
            return self.step('is stuck', run, stuck=f'{source.observed}; {settling.column(row)}')
        if act is acts.FORWARD:
            post = 0 if source.observed in _JOB else Post.INTENDED
            after, broken = moved(row, Status.POST_MIGRATING, outcome=FORWARD, host=row.destination, post=post)
            return self.step(label, run, after, broken)
        if act is acts.BACK:
            return self._back(me, row, source.verdict)
        if act is acts.PREPARE:
            return self.step(label, self.order(me, row, 'pre', row.destination))
        if act is acts.QUEUE or (act is acts.GO_ON and row.phase == Phase.LIVE_INTENDED):
            return self.step(label, self.order(me, row, 'live', 'S'))
        runs = source.observed in _JOB and row.status == Status.QUEUED
        if act is acts.ABORT:
            after, broken = moved(row, Status.RUNNING) if runs else (row, '')
            return self.step(label, self.order(me, row, 'abort', 'S'), after, broken)
        if act is acts.SEE_RUNNING:
            after, broken = moved(row, Status.RUNNING) if runs else (row, '')
            return self.step(label, run, after, broken)
        if act is acts.WAIT:
            return self.step(label, run)
        return self.step(label, run, broken=f'the table says "{act}" where it is not expected')

    # --- back --------------------------------------------------------------------------------------------------------

    def _another(self, row: Row) -> bool:
        """Whether another candidate may be tried: has_next_attempt."""
        return row.attempt < self.candidates and not row.abort and row.phase >= Phase.MOVE_INTENDED

    def _back(self, me: Conductor, row: Row, verdict: str) -> Step:
        run = me._replace(at=('run',))
        if row.phase == Phase.MOVE_INTENDED and 'no-check' not in self.plants:
            # The check may have been sent, and only an intent or a done that was never committed would show it.
            row = row._replace(phase=Phase.MOVED)
        if 'd' in self.plants and row.phase == Phase.LIVE_INTENDED and row.undo == Undo.NONE:
            # Planted: the destination is cleaned first, and the outcome written then.
            return self.step('cleans before it decides', self.order(me, row, 'clean', row.destination))
        if row.phase < Phase.LIVE_INTENDED and self._another(row):
            if 'next-too-early' in self.plants:
                return self.step('begins with the next candidate at once', *self._next_attempt(me, row))
            return self.step('gives this destination up', run, row._replace(undo=Undo.DECIDED))
        reason = row.verdict
        if row.abort:
            reason = 'failed' if verdict == 'failed' else row.verdict or 'cancelled'
        decided = row._replace(outcome=BACK, undo=Undo.DECIDED, verdict=reason)
        return self.step('decides: back', run, decided)

    def _next_attempt(self, me: Conductor, row: Row) -> tuple[Conductor, Row]:
        fresh = row._replace(attempt=row.attempt + 1, destination='', phase=Phase.NOTHING, undo=Undo.NONE)
        return me._replace(at=('run',), must_abort=False, orphan=False), fresh

    def _undo_next(self, me: Conductor, row: Row) -> Step:
        """Intend the next undo; what was never begun is left out, and what ends it is in the same commit."""
        undo = row.undo
        if undo < Undo.CLEAN_INTENDED and row.phase >= Phase.MOVED:
            after = row._replace(undo=Undo.CLEAN_INTENDED)
            return self.step('intends to clean', self.order(me, row, 'clean', row.destination), after)
        if undo < Undo.RESTORE_INTENDED and row.phase == Phase.LIVE_INTENDED and row.verdict != 'stop':
            after = row._replace(undo=Undo.RESTORE_INTENDED)
            return self.step('intends to restore', self.order(me, row, 'restore', 'S'), after)
        if undo < Undo.RETURN_INTENDED and row.phase >= Phase.MOVE_INTENDED:
            return self.step('intends to return', me._replace(at=('run',)), row._replace(undo=Undo.RETURN_INTENDED))
        return self._undone(me, row)

    def _undone(self, me: Conductor, row: Row) -> Step:
        if row.outcome == '' and self._another(row):
            return self.step('begins with the next candidate', *self._next_attempt(me, row))
        reason = row.verdict or ('cancelled' if row.abort and row.outcome == '' else 'failed')
        status = Status.CANCELLED if reason in ('cancelled', 'stop') else Status.FAILED
        after, broken = moved(row, status, outcome=BACK)
        return self.step(f'ends it: {status}', IDLE, after, broken)

    def _returned(self, me: Conductor, row: Row) -> Steps:
        yield self._undone(me, row)

    # --- forward -----------------------------------------------------------------------------------------------------

    def _job_ended(self, me: Conductor, row: Row) -> Steps:
        yield self.step('intends the post steps', me._replace(at=('run',)), row._replace(post=row.post | Post.INTENDED))

    def _released(self, me: Conductor, row: Row) -> Steps:
        after, broken = moved(row, Status.COMPLETED)
        yield self.step('ends it: completed', IDLE, after, broken)


_AT_ROW: dict[str, Callable[[Saga, Conductor, Row], Steps]] = {
    'moved': Saga._moved,
    'checked': Saga._checked,
    'unchecked': Saga._unchecked,
    'prepared': Saga._prepared,
    'pre again': Saga._pre_again,
    'did': Saga._did,
    'defer': Saga._defer,
    'refused': Saga._refused,
    'both': Saga._both,
    'read': Saga._read,
    'job ended': Saga._job_ended,
    'released': Saga._released,
    'returned': Saga._returned,
    'back by time-out': Saga._back_by_time_out,
}
