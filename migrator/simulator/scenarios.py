# SPDX-License-Identifier: Apache-2.0

"""The paths that a live migration may take, each as what people and hypervisors do to bring it about."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from migrator.objects import Instance, MigrationStatus
from migrator.simulator.faults import LATE
from migrator.simulator.invariants import history
from migrator.simulator.operator import Director
from migrator.virt.fake.faults import Faults

_S = MigrationStatus


@dataclasses.dataclass(frozen=True)
class Path:
    """One path.

    :ivar act: brings it about; it begins with a call of ``begin``, before which nothing is of interest. Whatever
        fails in the middle, it comes to its end.
    :ivar ends: how the migrations end that are asked for after that, where no fault strikes.
    :ivar knobs: of the hypervisors.
    """

    name: str
    act: Callable[[Director, Callable[[], None]], None]
    ends: tuple[_S, ...]
    hosts: int = 2
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    knobs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def _faults(director: Director, host: str = 'host1') -> Faults:
    faults: Faults = director.cloud.world.hypervisors[host].faults
    return faults


def _ends(director: Director, instance: Instance, within: float = 60.0) -> None:
    director.until(lambda: director.ended(instance), within)


def success(director: Director, begin: Callable[[], None]) -> None:
    """The guest moves to a host that Placement proposes."""
    instance = director.cloud.boot('one', 'host1')
    begin()
    director.migrate(instance)
    _ends(director, instance)


def second_candidate(director: Director, begin: Callable[[], None]) -> None:
    """The first destination cannot prepare; the second can."""
    instance = director.cloud.boot('one', 'host1')
    _faults(director, 'host2').fail('pre_live_migration', 'planned: it cannot', sticky=True)
    begin()
    director.migrate(instance)
    _ends(director, instance)


def pre_fails(director: Director, begin: Callable[[], None]) -> None:
    """The destination that was named cannot prepare."""
    instance = director.cloud.boot('one', 'host1')
    _faults(director, 'host2').fail('pre_live_migration', 'planned: it cannot', sticky=True)
    begin()
    director.migrate(instance, 'host2')
    _ends(director, instance)


def driver_fails(director: Director, begin: Callable[[], None]) -> None:
    """The job fails in the middle of its copy."""
    instance = director.cloud.boot('one', 'host1')
    _faults(director).fail('copying', 'planned: the link is lost')
    begin()
    director.migrate(instance)
    _ends(director, instance)


def _queued(director: Director, begin: Callable[[], None]) -> Instance:
    """Have a migration wait behind another one, whose copy does not get on."""
    first = director.cloud.boot('first', 'host1')
    instance = director.cloud.boot('one', 'host1')
    _faults(director).stall('copying', instance_uuid=first.uuid, sticky=True)
    director.migrate(first, 'host2')
    director.until_status(first, _S.RUNNING)
    begin()
    director.migrate(instance, 'host2')
    director.until_status(instance, _S.QUEUED)
    return instance


def abort_queued(director: Director, begin: Callable[[], None]) -> None:
    """It is aborted while it waits for its turn."""
    instance = _queued(director, begin)
    director.abort(instance)
    _ends(director, instance)


def stop_with_a_queue(director: Director, begin: Callable[[], None]) -> None:
    """Its source is stopped as planned while it waits for its turn, and started again."""
    instance = _queued(director, begin)
    director.stop_and_start('host1', back_after=1.0)
    _ends(director, instance)


def abort_running(director: Director, begin: Callable[[], None]) -> None:
    """It is aborted in the middle of its copy."""
    instance = director.cloud.boot('one', 'host1')
    _faults(director).stall('copying', sticky=True)
    begin()
    director.migrate(instance)
    director.until_status(instance, _S.RUNNING)
    director.abort(instance)
    # It copies until then: whatever is lost, the driver hears of the abort long before.
    _ends(director, instance, within=2 * history.PATIENCE)


def abort_starting(director: Director, begin: Callable[[], None]) -> None:
    """It is aborted when its turn has come and the driver has been called, which hangs before there is a job."""
    instance = director.cloud.boot('one', 'host1')
    stall = _faults(director).stall('live_migration')
    begin()
    director.migrate(instance)
    director.until(lambda: stall.reached.is_set() or director.ended(instance))
    director.abort(instance)
    director.wait(11.0)
    stall.release()
    _ends(director, instance)


def abort_loses(director: Director, begin: Callable[[], None]) -> None:
    """It is aborted when its destination runs the guest already, and nobody knows yet."""
    instance = director.cloud.boot('one', 'host1')
    stall = _faults(director).stall('arrived', sticky=True)
    begin()
    director.migrate(instance)
    director.until(lambda: stall.reached.is_set() or director.ended(instance))
    director.abort(instance)
    director.wait(1.0)
    stall.release()
    _ends(director, instance)


def post_copy(director: Director, begin: Callable[[], None]) -> None:
    """It is completed by force, by post-copy."""
    instance = director.cloud.boot('one', 'host1', dirty_rate=100000.0)
    stall = _faults(director).stall('postcopy', sticky=True)
    begin()
    director.migrate(instance)
    if director.until_status(instance, _S.RUNNING):
        director.force_complete(instance)
        # Its memory follows for long enough to be seen.
        director.until_status(instance, _S.RUNNING_POST_COPY)
    stall.release()
    _ends(director, instance)


def abort_preparing(director: Director, begin: Callable[[], None]) -> None:
    """It is aborted while its destination prepares for the guest, which takes long."""
    instance = director.cloud.boot('one', 'host1')
    begin()
    director.migrate(instance)
    if director.until_status(instance, _S.PREPARING):
        director.wait(1.0)
    director.abort(instance)
    _ends(director, instance)


def cutover_fails(director: Director, begin: Callable[[], None]) -> None:
    """A guest that its user has paused fails to switch over, and its hypervisor leaves it as it is then."""
    instance = director.cloud.boot('one', 'host1')
    director.cloud.world.hypervisors['host1'].pause(instance.uuid)
    _faults(director).fail('cutover', 'planned: the link is lost')
    begin()
    director.migrate(instance)
    _ends(director, instance)


def refused(director: Director, begin: Callable[[], None]) -> None:
    """A destination is named that there is none of."""
    instance = director.cloud.boot('one', 'host1')
    begin()
    director.migrate(instance, 'nowhere')


def next_move(director: Director, begin: Callable[[], None]) -> None:
    """The source owes its post step, and so is no destination of the next move; when it has paid, it is."""
    instance = director.cloud.boot('one', 'host1')
    _faults(director).fail('post_live_migration_at_source', 'planned: it cannot', sticky=True)
    director.migrate(instance)
    _ends(director, instance)
    begin()
    director.migrate(instance)
    _ends(director, instance)
    _faults(director).clear()
    director.until(lambda: not director.cloud.database.debts.list())
    director.migrate(instance)
    _ends(director, instance)


def cleanup_first(director: Director, begin: Callable[[], None]) -> None:
    """Its source has still to restore it after an earlier migration, in which it was killed; and cannot at first."""
    instance = director.cloud.boot('one', 'host1')
    _faults(director).fail('copying', 'planned: the link is lost')
    stall = _faults(director, 'host2').stall('rollback_live_migration_at_destination')
    director.migrate(instance, 'host2')
    director.until(stall.reached.is_set)
    # It is known by then that it is to be restored.
    director.kill('host1', back_after=80.0)
    _faults(director).fail('rollback_live_migration_at_source', 'planned: it cannot', sticky=True)
    stall.release()
    _ends(director, instance, within=75.0)
    director.until(lambda: director.cloud.database.debts.list() and 'host1' in director.cloud.computes)
    director.wait(5.0)
    begin()
    director.migrate(instance)
    director.wait(5.0)
    _faults(director).clear()
    _ends(director, instance)


def cleanup_beside(director: Director, begin: Callable[[], None]) -> None:
    """The host that it has left before owes its post step, and does it while it moves on."""
    instance = director.cloud.boot('one', 'host1')
    _faults(director).fail('post_live_migration_at_source', 'planned: it cannot', sticky=True)
    director.migrate(instance, 'host2')
    _ends(director, instance)
    begin()
    stall = _faults(director, 'host2').stall('copying', sticky=True)
    director.migrate(instance, 'host3')
    director.until_status(instance, _S.RUNNING)
    _faults(director).clear()
    director.until(lambda: not director.cloud.database.debts.list())
    stall.release()
    _ends(director, instance)


def brought_back(director: Director, begin: Callable[[], None]) -> None:
    """An embedding service has brought it back to a host that has still to remove it: it waits until an operator has
    the cleanup discarded."""
    instance = director.cloud.boot('one', 'host1')
    _faults(director).fail('post_live_migration_at_source', 'planned: it cannot', sticky=True)
    director.migrate(instance, 'host2')
    _ends(director, instance)
    director.bring_back(instance, 'host1', shut_off=False)
    _faults(director).clear()
    database = director.cloud.database
    director.until(lambda: any(debt.alarm for debt in database.debts.list()))
    begin()
    director.migrate(instance, 'host2')
    director.until(lambda: (row := director.newest(instance)) is not None and row.stuck_reason)
    for debt in database.debts.list():
        database.debts.discard(debt)
    _ends(director, instance)


def restart_with_a_queue(director: Director, begin: Callable[[], None]) -> None:
    """Its source is killed while one copies and two wait, and started again; the last one is aborted when it is the
    turn of the one before it."""
    guests = [director.cloud.boot(name, 'host1') for name in ('first', 'second', 'third')]
    stalls = [_faults(director).stall('copying', instance_uuid=one.uuid, sticky=True) for one in guests[:2]]
    for instance, status in zip(guests, (_S.RUNNING, _S.QUEUED, _S.QUEUED), strict=True):
        director.migrate(instance, 'host2')
        director.until_status(instance, status)
    begin()
    director.kill('host1', back_after=1.0)
    director.wait(8.0)
    stalls[0].release()
    director.until_status(guests[1], _S.RUNNING)
    director.abort(guests[2])
    stalls[1].release()
    for instance in guests:
        _ends(director, instance)


def moves_between_answers(director: Director, begin: Callable[[], None]) -> None:
    """It is aborted when it is about to switch over; and of the two hosts that are then asked where it is, the source
    takes so long to answer that it has moved meanwhile."""
    instance = director.cloud.boot('one', 'host1')
    cutover = _faults(director).stall('cutover')
    begin()
    director.migrate(instance)
    director.until(lambda: cutover.reached.is_set() or director.ended(instance))
    # The first question leads to the settling epoch, in which what is answered to the second counts.
    first, second = (_faults(director).stall('get_guest', instance_uuid=instance.uuid) for _ in range(2))
    director.abort(instance)
    director.until(first.reached.is_set, within=1.0)
    first.release()
    director.until(second.reached.is_set, within=1.0)
    cutover.release()
    director.until(lambda: director.cloud.world.active_on(instance.uuid) == ['host2'], within=1.0)
    second.release()
    _ends(director, instance)


def restarted_after_an_abort(director: Director, begin: Callable[[], None]) -> None:
    """It is aborted while it waits for its turn; when it has ended, its hosts are killed and started again, and what is
    late arrives.
    """
    instance = _queued(director, begin)
    director.abort(instance)
    _ends(director, instance, within=LATE)
    for host in ('host1', 'host2'):
        director.kill(host, back_after=1.0)
    director.wait(LATE)


def restarted_twice(director: Director, begin: Callable[[], None]) -> None:
    """Its source is killed while it copies and started again, and once more; and it copies for longer than a message
    may be late."""
    instance = director.cloud.boot('one', 'host1')
    stall = _faults(director).stall('copying', sticky=True)
    begin()
    director.migrate(instance)
    director.until_status(instance, _S.RUNNING)
    for _ in range(2):
        director.kill('host1', back_after=1.0)
        director.wait(10.0)
    director.wait(LATE)
    stall.release()
    _ends(director, instance)


PATHS = (
    Path('success', success, (_S.COMPLETED,)),
    Path('pre fails', pre_fails, (_S.FAILED,)),
    Path('driver fails', driver_fails, (_S.FAILED,)),
    Path('abort queued', abort_queued, (_S.CANCELLED,)),
    Path('abort running', abort_running, (_S.CANCELLED,)),
    Path('abort loses to cut-over', abort_loses, (_S.COMPLETED,)),
    Path('stop with a queue', stop_with_a_queue, (_S.CANCELLED,)),
    Path('second candidate', second_candidate, (_S.COMPLETED,), hosts=3),
    Path('post-copy', post_copy, (_S.COMPLETED,), knobs={'post_copy': True}),
    Path('abort preparing', abort_preparing, (_S.CANCELLED,), knobs={'pre_seconds': 4.0}),
    Path('abort starting', abort_starting, (_S.CANCELLED,)),
    Path('cut-over fails', cutover_fails, (_S.FAILED,), knobs={'leave_paused': True}),
    Path('refused', refused, ()),
    Path('next move', next_move, (_S.FAILED, _S.COMPLETED), options={'conductor.post_max_attempts': 2}),
    Path('cleanup first', cleanup_first, (_S.COMPLETED,)),
    Path('cleanup beside', cleanup_beside, (_S.COMPLETED,), hosts=3, options={'conductor.post_max_attempts': 2}),
    Path('brought back', brought_back, (_S.COMPLETED,), options={'conductor.post_max_attempts': 2}),
    Path('restart with a queue', restart_with_a_queue, (_S.COMPLETED, _S.COMPLETED, _S.CANCELLED)),
    Path('moves between answers', moves_between_answers, (_S.COMPLETED,)),
)

#: The matrix has no cells of these, which take long: they are for what is caught nowhere else.
APART = (
    Path('restarted twice', restarted_twice, (_S.COMPLETED,)),
    Path('restarted after an abort', restarted_after_an_abort, (_S.CANCELLED,)),
)

BY_NAME = {path.name: path for path in (*PATHS, *APART)}
