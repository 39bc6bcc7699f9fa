# SPDX-License-Identifier: Apache-2.0
"""What goes on at the hosts by itself: queue, driver, hypervisor, preparation, start and stop.

The hypervisors belong to the world and not to the compute services: a job outlives a service that is killed.
"""

from __future__ import annotations

from collections.abc import Iterator

from migrator.objects.migration import MigrationStatus
from tests.simulation.model.search import ENDLESS, FAULT, OWN, USER, Step
from tests.simulation.model.state import (
    NO_OWNER,
    Budget,
    Conductor,
    Destination,
    Message,
    Phase,
    Row,
    Source,
    StopReport,
    Up,
    add,
    refuse_all,
)

#: The service lives, whether it can be reached or not.
_ALIVE = (Up.UP, Up.UNREACHABLE, Up.STOPPING, Up.EXITING)


def alive(host: Source | Destination) -> bool:
    """Whether what has been begun goes on."""
    return host.up in _ALIVE or host.up == Up.STARTING or isinstance(host.up, StopReport)


def _ended(source: Source, work: str) -> str:
    """Return what becomes of the work whose job ends so; a dead service has none."""
    return work if alive(source) and source.work == 'calling' else source.work


# --- the source ------------------------------------------------------------------------------------------------------


def queue(source: Source, destination: Destination, name: str) -> Iterator[Step]:
    """The queue and the driver's call, where they are about this destination."""
    if source.target != name:
        return
    if not alive(source):
        if source.pending:
            guest = 'job' if source.guest == 'here' and destination.guest == 'waiting' else source.guest
            yield Step("S: the dead boot's driver call starts", {'source': source._replace(pending=False, guest=guest)})
        return
    if source.work == 'queued':
        yield Step('S: its turn in the queue', {'source': source._replace(work='started')})
    if source.work == 'unwanted':
        yield Step('S: not called, since it was aborted', {'source': source._replace(work='cancelled')})
    if source.work in ('started', 'unwanted'):
        older = source.taken and source.seen > source.taken
        broken = 'an older epoch has an effect, by its letter' if older else ''
        yield Step('S: the driver is called', {'source': _called(source, destination)}, broken=broken)
        if source.work == 'unwanted' and source.guest == 'here':
            yield Step('S: the driver is called, and aborts', {'source': source._replace(work='aborted')})


def _called(source: Source, destination: Destination) -> Source:
    if source.guest == 'here':
        if destination.guest == 'waiting':
            return source._replace(guest='job', work='calling')
        return source._replace(work='failed')
    if source.guest in ('job', 'cutover'):
        return source._replace(work='calling')
    return source._replace(work='gone' if source.guest == 'absent' else 'returned')


def hypervisors(source: Source, destination: Destination, name: str, part: str) -> Iterator[Step]:
    """The job may fail, or pause the guest and hand it over, or fail at that and leave it paused or not.

    The copy of a busy guest may never end. While the destination hangs, an abort must not need its end.
    """
    if source.target != name:
        return
    if source.guest == 'job':
        by = ENDLESS if destination.hangs else OWN
        yield Step('job fails', {'source': source._replace(guest='here', work=_ended(source, 'failed'))}, by)
        if destination.guest == 'waiting':
            yield Step('job pauses the guest for the cut-over', {'source': source._replace(guest='cutover')}, by)
    elif source.guest == 'cutover' and destination.guest == 'runs':
        for work, how in (('completed', 'completed'), ('returned', 'its end was not seen')):
            after = source._replace(guest='paused', work=_ended(source, work))
            yield Step(f'job ends ({how})', {'source': after})
    elif source.guest == 'cutover':
        if destination.guest == 'waiting':
            yield Step(f'{name} runs the guest', {part: destination._replace(guest='runs')})
        after = source._replace(guest='here', work=_ended(source, 'failed'))
        yield Step('cut-over fails, the guest is resumed', {'source': after})
        for work, how in (('failed', 'by the driver'), ('returned', 'its end was not seen')):
            after = source._replace(guest='paused', work=_ended(source, work))
            yield Step(f'cut-over fails, the guest is left paused ({how})', {'source': after})


def start_source(source: Source, destination: Destination, net: tuple[Message, ...], name: str) -> Iterator[Step]:
    """A killed source starts: the driver settles what a call may still start, and running jobs take slots."""
    if source.up != Up.DEAD or source.target != name:
        return
    ways = [source._replace(pending=False)]
    if source.pending and source.guest == 'here' and destination.guest == 'waiting':
        ways.append(source._replace(pending=False, guest='job'))
    for way in ways:
        work = 'calling' if way.guest in ('job', 'cutover') else ''
        after = way._replace(up=Up.STARTING, boot=source.boot + 1, seen=0, seen_of=NO_OWNER, work=work, again=False)
        how = ', the old call has started a job' if way.guest != source.guest else ''
        yield Step(f'S starts{how}', {'source': after, 'net': refuse_all(net, 'S')})


# --- the destination -------------------------------------------------------------------------------------------------


def prepare(destination: Destination, name: str, part: str) -> Iterator[Step]:
    """The check, the preparation, and the rollback that waits behind them."""
    if not alive(destination) or destination.hangs:
        return
    if destination.work == 'checking':
        yield Step(f'{name}: the check ends', {part: destination._replace(guest='checked', work='')})
    if destination.work == 'preparing':
        yield Step(f'{name}: prepared', {part: destination._replace(guest='waiting', work='prepared')})
        guest = 'checked' if destination.guest == 'none' else destination.guest
        yield Step(f'{name}: the preparation fails', {part: destination._replace(guest=guest, work='failed')})
    if destination.work == 'clearing':
        yield Step(f'{name}: what was cancelled ends, cleaned', {part: destination._replace(guest='none', work='')})


def start_destination(destination: Destination, net: tuple[Message, ...]) -> Iterator[Step]:
    """A killed destination starts."""
    if destination.up == Up.DEAD:
        after = destination._replace(up=Up.STARTING, boot=destination.boot + 1, seen=0, seen_of=NO_OWNER)
        yield Step('D starts', {'destination': after, 'net': refuse_all(net, 'D')})


# --- both: registration ----------------------------------------------------------------------------------------------


def register(host: Source | Destination, row: Row, left: Conductor, right: Conductor, name: str) -> Iterator[Step]:
    """compute_started: the boot is stored, and the epoch of the host's migration raised.

    The answer says what the host does next.
    """
    if host.up != Up.STARTING or (left.paused and right.paused):
        return
    named = name == 'S' or row.destination == name
    after = begin_boot(row, name, host.boot)
    queue_again = (
        name == 'S'
        and row.phase == Phase.LIVE_INTENDED
        and row.outcome == ''
        and row.undo == 0
        and row.status == MigrationStatus.QUEUED
        and not row.abort
    )
    target = row.destination if queue_again else ''
    reported = StopReport(after.epoch, row.owner, target) if named and not row.ended else StopReport(0, NO_OWNER, '')
    part = 'source' if name == 'S' else 'destination'
    yield Step(f'compute_started of {name} is committed', {'row': after, part: host._replace(up=reported)})


def begin_boot(row: Row, name: str, boot: int) -> Row:
    """Return the row after compute_started of a boot."""
    row = row._replace(boot_s=boot) if name == 'S' else row._replace(boot_d=boot)
    if not row.ended and (name == 'S' or row.destination == name):
        row = row._replace(epoch=row.epoch + 1)
    return row


def apply_answer(host: Source | Destination, part: str, name: str) -> Iterator[Step]:
    """The answer to compute_started is applied; now commands are taken."""
    reported = host.up
    if not isinstance(reported, StopReport):
        return
    after = host._replace(up=Up.UP)
    taken = reported.epoch > host.seen or (reported.epoch == host.seen and reported.owner in (host.seen_of, NO_OWNER))
    if reported.epoch and taken:
        after = after._replace(seen=reported.epoch, seen_of=reported.owner)
    if isinstance(after, Source):
        if reported.epoch and taken and reported.queue and not after.work:
            after = after._replace(work='queued', again=True, target=reported.queue)
        elif not reported.epoch and after.work:
            # No migration in progress has claimed the job.
            after = after._replace(work='' if after.guest not in ('job', 'cutover') else after.work)
    yield Step(f'{name} takes in the answer to compute_started', {part: after})


def lose_answer(host: Source | Destination, budget: Budget, part: str, name: str) -> Iterator[Step]:
    """A fault: the answer to compute_started is lost, and it is called again."""
    if isinstance(host.up, StopReport) and budget.messages:
        label = f'FAULT the answer to compute_started is lost on its way to {name}'
        less = budget._replace(messages=budget.messages - 1)
        yield Step(label, {part: host._replace(up=Up.STARTING), 'budget': less}, FAULT)


# --- a planned stop of the source ------------------------------------------------------------------------------------


def begin_stop(source: Source, budget: Budget) -> Iterator[Step]:
    """The queue is closed: what waits is cancelled, but not reported yet."""
    if source.up == Up.UP and budget.stops:
        work = 'called off' if source.work == 'queued' else source.work
        after = source._replace(up=Up.STOPPING, work=work)
        yield Step('USER S is stopped', {'source': after, 'budget': budget._replace(stops=0)}, USER)


def report_stop(
    source: Source,
    row: Row,
    left: Conductor,
    right: Conductor,
    net: tuple[Message, ...],
    budget: Budget,
    plants: frozenset[str],
) -> Iterator[Step]:
    """compute_stopping, bounded: committed and answered, committed without an answer, delayed, or lost."""
    if source.up != Up.STOPPING:
        return
    after = source._replace(up=Up.EXITING)
    names = source.work == 'called off' or (
        'stop-names-started' in plants and source.work in ('started', 'unwanted', 'calling')
    )
    if not names:
        yield Step('S has nothing to report of its stop', {'source': after})
        return
    received = after._replace(work='cancelled', by_stop=row.outcome == '') if source.work == 'called off' else after
    if 'stop-unreported' in plants:
        yield Step('S reports its work as cancelled, and its stop to no conductor', {'source': received})
        return
    # S cannot know whether an earlier boot had begun what S queued again at its start. For that its stop is not
    # authoritative, and only requests an abort.
    kind = 'final' if not source.again or 'stop-final' in plants else 'request'
    message = Message('stopping', 'C', source.boot, 0, kind)
    if not (left.paused and right.paused):
        requested = request_by_stop(row, message, plants)
        yield Step('S reports its stop: the abort request is committed', {'source': received, 'row': requested})
        if budget.messages:
            less = budget._replace(messages=budget.messages - 1)
            label = 'FAULT S reports its stop: the abort request is committed, S receives no answer'
            yield Step(label, {'source': after, 'row': requested, 'budget': less}, FAULT)
    less = budget._replace(messages=max(0, budget.messages - 1))
    if budget.messages or (left.paused and right.paused):
        yield Step('FAULT S reports its stop, and no conductor receives it', {'source': after, 'budget': less}, FAULT)
        later = {'source': after, 'net': add(net, message), 'budget': less}
        yield Step('FAULT S reports its stop, which is on its way for long', later, FAULT)


def request_by_stop(row: Row, message: Message, plants: frozenset[str]) -> Row:
    """Return the row after compute_stopping was committed: Migrations.begin_stop."""
    same_boot = row.boot_s == message.first or 'stop-any-boot' in plants
    if row.ended or row.outcome or not same_boot:
        return row
    return row._replace(abort=row.abort or 'stop', verdict='stop' if message.about == 'final' else row.verdict)


def exit_source(source: Source) -> Iterator[Step]:
    """The stopped service is gone, its jobs go on; a call that has just begun may still start one."""
    if source.up == Up.EXITING:
        yield from kill_source(source, 'S exits', {})


def kill_source(source: Source, label: str, spent: dict[str, Budget], by: int = OWN) -> Iterator[Step]:
    """The compute service at the source is gone."""
    gone = source._replace(up=Up.DEAD, work='', by_stop=False)
    yield Step(label, {'source': gone, **spent}, by)
    if source.work in ('started', 'unwanted'):
        yield Step(f"{label} inside the driver's call", {'source': gone._replace(pending=True), **spent}, by)
