# SPDX-License-Identifier: Apache-2.0

"""The paths of migrations and evacuations, as actions of users, operators and hypervisors."""

from __future__ import annotations

from collections.abc import Callable

from migrator.objects import FINAL, Instance, MigrationStatus
from migrator.simulator.actors import deeds
from migrator.simulator.actors.operator import Operator
from migrator.simulator.faults import LATE
from migrator.simulator.monitoring import aborts
from migrator.simulator.paths import Path, cold_migrations, drains
from migrator.testing.hypervisor.faults import Faults

_S = MigrationStatus


def _faults(operator: Operator, host: str = 'host1') -> Faults:
    faults: Faults = operator.cloud.world.hypervisors[host].faults
    return faults


def _ends(operator: Operator, instance: Instance, within: float = 60.0) -> None:
    operator.user.until(lambda: operator.user.ended(instance), within)


def success(operator: Operator, begin: Callable[[], None]) -> None:
    """Migrate a guest to a host that Placement proposes."""
    instance = operator.cloud.boot('one', 'host1')
    begin()
    operator.user.migrate(instance)
    _ends(operator, instance)


def second_candidate(operator: Operator, begin: Callable[[], None]) -> None:
    """Let the first destination fail to prepare; the second one succeeds."""
    instance = operator.cloud.boot('one', 'host1')
    _faults(operator, 'host2').fail('pre_live_migration', 'planned: it cannot', sticky=True)
    begin()
    operator.user.migrate(instance)
    _ends(operator, instance)


def pre_fails(operator: Operator, begin: Callable[[], None]) -> None:
    """Let the named destination fail to prepare."""
    instance = operator.cloud.boot('one', 'host1')
    _faults(operator, 'host2').fail('pre_live_migration', 'planned: it cannot', sticky=True)
    begin()
    operator.user.migrate(instance, 'host2')
    _ends(operator, instance)


def driver_fails(operator: Operator, begin: Callable[[], None]) -> None:
    """Let the job fail during the copy."""
    instance = operator.cloud.boot('one', 'host1')
    _faults(operator).fail('copying', 'planned: the link is lost')
    begin()
    operator.user.migrate(instance)
    _ends(operator, instance)


def _queued(operator: Operator, begin: Callable[[], None]) -> Instance:
    """Queue a migration behind another one whose copy hangs, and return its instance."""
    first = operator.cloud.boot('first', 'host1')
    instance = operator.cloud.boot('one', 'host1')
    _faults(operator).stall('copying', instance_uuid=first.uuid, sticky=True)
    operator.user.migrate(first, 'host2')
    operator.user.until_status(first, _S.RUNNING)
    begin()
    operator.user.migrate(instance, 'host2')
    operator.user.until_status(instance, _S.QUEUED)
    return instance


def abort_queued(operator: Operator, begin: Callable[[], None]) -> None:
    """Abort a migration while it waits in the queue."""
    instance = _queued(operator, begin)
    operator.user.abort(instance)
    _ends(operator, instance)


def waits_for_a_slot(operator: Operator, begin: Callable[[], None]) -> None:
    """Let a migration wait until another one from elsewhere has left its slot at the destination."""
    first, instance = operator.cloud.boot('first', 'host3'), operator.cloud.boot('one', 'host1')
    stall = _faults(operator, 'host3').stall('copying', sticky=True)
    operator.user.migrate(first, 'host2')
    operator.user.until_status(first, _S.RUNNING)
    begin()
    operator.user.migrate(instance, 'host2')
    operator.user.wait(1.0)
    stall.release()
    _ends(operator, instance)


def stop_with_a_queue(operator: Operator, begin: Callable[[], None]) -> None:
    """Stop the source as planned while a migration waits in the queue, and start it again."""
    instance = _queued(operator, begin)
    operator.supervisor.stop_and_start('host1', back_after=1.0)
    _ends(operator, instance)


def abort_running(operator: Operator, begin: Callable[[], None]) -> None:
    """Abort a migration during the copy."""
    instance = operator.cloud.boot('one', 'host1')
    _faults(operator).stall('copying', sticky=True)
    begin()
    operator.user.migrate(instance)
    operator.user.until_status(instance, _S.RUNNING)
    operator.user.abort(instance)
    # The copy lasts until then. The abort reaches the driver long before, whatever message is lost.
    _ends(operator, instance, within=2 * aborts.PATIENCE)


def abort_starting(operator: Operator, begin: Callable[[], None]) -> None:
    """Abort a migration after it got its slot, while the driver call hangs before it starts a job."""
    instance = operator.cloud.boot('one', 'host1')
    stall = _faults(operator).stall('live_migration')
    begin()
    operator.user.migrate(instance)
    operator.user.until(lambda: stall.reached.is_set() or operator.user.ended(instance))
    operator.user.abort(instance)
    operator.user.wait(11.0)
    stall.release()
    _ends(operator, instance)


def abort_loses(operator: Operator, begin: Callable[[], None]) -> None:
    """Abort a migration when the destination already runs the guest and has not reported it yet."""
    instance = operator.cloud.boot('one', 'host1')
    stall = _faults(operator).stall('arrived', sticky=True)
    begin()
    operator.user.migrate(instance)
    operator.user.until(lambda: stall.reached.is_set() or operator.user.ended(instance))
    operator.user.abort(instance)
    operator.user.wait(1.0)
    stall.release()
    _ends(operator, instance)


def post_copy(operator: Operator, begin: Callable[[], None]) -> None:
    """Force a migration to complete by post-copy."""
    instance = operator.cloud.boot('one', 'host1', dirty_rate=100000.0)
    stall = _faults(operator).stall('postcopy', sticky=True)
    begin()
    operator.user.migrate(instance)
    if operator.user.until_status(instance, _S.RUNNING):
        operator.user.force_complete(instance)
        # The copy of the memory lasts long enough for a poll to observe the status.
        operator.user.until_status(instance, _S.RUNNING_POST_COPY)
    stall.release()
    _ends(operator, instance)


def abort_preparing(operator: Operator, begin: Callable[[], None]) -> None:
    """Abort a migration while the destination prepares for the guest, which takes long."""
    instance = operator.cloud.boot('one', 'host1')
    begin()
    operator.user.migrate(instance)
    if operator.user.until_status(instance, _S.PREPARING):
        operator.user.wait(1.0)
    operator.user.abort(instance)
    _ends(operator, instance)


def cutover_fails(operator: Operator, begin: Callable[[], None]) -> None:
    """Let the switchover of a paused guest fail; the hypervisor leaves the guest in that state."""
    instance = operator.cloud.boot('one', 'host1')
    operator.cloud.world.hypervisors['host1'].pause(instance.uuid)
    _faults(operator).fail('cutover', 'planned: the link is lost')
    begin()
    operator.user.migrate(instance)
    _ends(operator, instance)


def refused(operator: Operator, begin: Callable[[], None]) -> None:
    """Request a migration to a host that does not exist."""
    instance = operator.cloud.boot('one', 'host1')
    begin()
    operator.user.migrate(instance, 'nowhere')


def next_move(operator: Operator, begin: Callable[[], None]) -> None:
    """Migrate back to a host with a deferred cleanup of the guest, which fails, and again after it."""
    instance = operator.cloud.boot('one', 'host1')
    _faults(operator).fail('post_live_migration_at_source', 'planned: it cannot', sticky=True)
    operator.user.migrate(instance)
    _ends(operator, instance)
    begin()
    operator.user.migrate(instance)
    _ends(operator, instance)
    _faults(operator).clear()
    operator.user.until(lambda: not operator.cloud.database.cleanups.list())
    operator.user.migrate(instance)
    _ends(operator, instance)


def cleanup_first(operator: Operator, begin: Callable[[], None]) -> None:
    """Migrate a guest whose source must first restore it after an earlier migration.

    The source was killed in that migration, and at first it fails to restore the guest.
    """
    instance = operator.cloud.boot('one', 'host1')
    _faults(operator).fail('copying', 'planned: the link is lost')
    stall = _faults(operator, 'host2').stall('rollback_live_migration_at_destination')
    operator.user.migrate(instance, 'host2')
    operator.user.until(stall.reached.is_set)
    # The migration has decided to roll back, so that the source must restore the guest.
    operator.supervisor.kill('host1', back_after=80.0)
    _faults(operator).fail('rollback_live_migration_at_source', 'planned: it cannot', sticky=True)
    stall.release()
    _ends(operator, instance, within=75.0)
    operator.user.until(lambda: operator.cloud.database.cleanups.list() and 'host1' in operator.cloud.computes)
    operator.user.wait(5.0)
    begin()
    operator.user.migrate(instance)
    operator.user.wait(5.0)
    _faults(operator).clear()
    _ends(operator, instance)


def cleanup_beside(operator: Operator, begin: Callable[[], None]) -> None:
    """Run the deferred post step of an earlier source while the guest migrates to a third host."""
    instance = operator.cloud.boot('one', 'host1')
    _faults(operator).fail('post_live_migration_at_source', 'planned: it cannot', sticky=True)
    operator.user.migrate(instance, 'host2')
    _ends(operator, instance)
    begin()
    stall = _faults(operator, 'host2').stall('copying', sticky=True)
    operator.user.migrate(instance, 'host3')
    operator.user.until_status(instance, _S.RUNNING)
    _faults(operator).clear()
    operator.user.until(lambda: not operator.cloud.database.cleanups.list())
    stall.release()
    _ends(operator, instance)


def brought_back(operator: Operator, begin: Callable[[], None]) -> None:
    """Migrate a guest that an embedding service has brought back to a host with a pending cleanup of it.

    The migration waits until an operator discards the cleanup.
    """
    instance = operator.cloud.boot('one', 'host1')
    _faults(operator).fail('post_live_migration_at_source', 'planned: it cannot', sticky=True)
    operator.user.migrate(instance, 'host2')
    _ends(operator, instance)
    deeds.bring_back(operator.cloud, instance, 'host1', shut_off=False)
    _faults(operator).clear()
    database = operator.cloud.database
    operator.user.until(lambda: any(cleanup.blocked_because for cleanup in database.cleanups.list()))
    begin()
    operator.user.migrate(instance, 'host2')
    operator.user.until(lambda: (row := operator.user.newest(instance)) is not None and row.stuck_reason)
    for cleanup in database.cleanups.list():
        database.cleanups.discard(cleanup)
    _ends(operator, instance)


def restart_with_a_queue(operator: Operator, begin: Callable[[], None]) -> None:
    """Kill and restart the source while one migration copies and two wait in the queue.

    The last one is aborted while the second one copies.
    """
    guests = [operator.cloud.boot(name, 'host1') for name in ('first', 'second', 'third')]
    stalls = [_faults(operator).stall('copying', instance_uuid=one.uuid, sticky=True) for one in guests[:2]]
    for instance, status in zip(guests, (_S.RUNNING, _S.QUEUED, _S.QUEUED), strict=True):
        operator.user.migrate(instance, 'host2')
        operator.user.until_status(instance, status)
    begin()
    operator.supervisor.kill('host1', back_after=1.0)
    operator.user.wait(8.0)
    stalls[0].release()
    operator.user.until_status(guests[1], _S.RUNNING)
    operator.user.abort(guests[2])
    stalls[1].release()
    for instance in guests:
        _ends(operator, instance)


def moves_between_answers(operator: Operator, begin: Callable[[], None]) -> None:
    """Abort a migration just before the switchover, and let the guest move while both hosts are polled.

    The guest moves before the source replies.
    """
    instance = operator.cloud.boot('one', 'host1')
    cutover = _faults(operator).stall('cutover')
    begin()
    operator.user.migrate(instance)
    operator.user.until(lambda: cutover.reached.is_set() or operator.user.ended(instance))
    # After the reply to the first poll the conductor raises the epoch. The reply to the second poll decides.
    first, second = (_faults(operator).stall('get_guest', instance_uuid=instance.uuid) for _ in range(2))
    operator.user.abort(instance)
    operator.user.until(first.reached.is_set, within=1.0)
    first.release()
    operator.user.until(second.reached.is_set, within=1.0)
    cutover.release()
    operator.user.until(lambda: operator.cloud.world.active_on(instance.uuid) == ['host2'], within=1.0)
    second.release()
    _ends(operator, instance)


def restarted_after_an_abort(operator: Operator, begin: Callable[[], None]) -> None:
    """Abort a queued migration, then kill and restart its hosts, and let late messages arrive."""
    instance = _queued(operator, begin)
    operator.user.abort(instance)
    _ends(operator, instance, within=LATE)
    for host in ('host1', 'host2'):
        operator.supervisor.kill(host, back_after=1.0)
    operator.user.wait(LATE)


def restarted_twice(operator: Operator, begin: Callable[[], None]) -> None:
    """Kill and restart the source twice during a copy that lasts longer than a message may be late."""
    instance = operator.cloud.boot('one', 'host1')
    stall = _faults(operator).stall('copying', sticky=True)
    begin()
    operator.user.migrate(instance)
    operator.user.until_status(instance, _S.RUNNING)
    for _ in range(2):
        operator.supervisor.kill('host1', back_after=1.0)
        operator.user.wait(10.0)
    operator.user.wait(LATE)
    stall.release()
    _ends(operator, instance)


# --- evacuations ------------------------------------------------------------------------------------------------------


def _lost(operator: Operator, has_power: bool = False) -> Instance:
    """Return an instance whose host is lost and declared forced down.

    :param has_power: whether only the compute service of the host has ended, so that the guest runs on.
    """
    instance = operator.cloud.boot('one', 'host1')
    _defined(operator, instance, 'host1')
    if has_power:
        operator.supervisor.kill('host1', None)
    else:
        operator.supervisor.lose_power('host1', None)
    operator.force_down('host1', True)
    return instance


def _defined(operator: Operator, instance: Instance, host: str) -> None:
    """Let time pass until the conductor has stored what another host needs to start a guest of this host."""
    for _ in range(30):
        if operator.cloud.database.definitions.get(instance.uuid, host):
            break
        operator.user.wait(1.0)


def _completes(operator: Operator) -> None:
    """Let time pass until no evacuation waits for its source."""
    operator.user.until(lambda: all(row.status in FINAL for row in operator.cloud.migrations()))


def evacuation(operator: Operator, begin: Callable[[], None]) -> None:
    """Evacuate a guest, and bring its host back after that."""
    instance = _lost(operator)
    begin()
    operator.user.evacuate(instance)
    _ends(operator, instance)
    operator.supervisor.bring_back('host1')
    _completes(operator)


def evacuated_while_running(operator: Operator, begin: Callable[[], None]) -> None:
    """Evacuate a guest that still runs on its host, and start the compute service of that host after it."""
    instance = _lost(operator, has_power=True)
    begin()
    operator.user.evacuate(instance)
    _ends(operator, instance)
    operator.supervisor.bring_back('host1')
    _completes(operator)


def evacuation_fails(operator: Operator, begin: Callable[[], None]) -> None:
    """Let the named destination fail to start the guest, and bring its host back after that."""
    instance = _lost(operator)
    _faults(operator, 'host2').fail('evacuate', 'planned: it cannot', sticky=True)
    begin()
    operator.user.evacuate(instance, 'host2')
    _ends(operator, instance)
    operator.supervisor.bring_back('host1')
    operator.user.wait(5.0)


def evacuation_retried(operator: Operator, begin: Callable[[], None]) -> None:
    """Let the first destination fail to start the guest; the second one succeeds."""
    instance = _lost(operator)
    _faults(operator, 'host2').fail('evacuate', 'planned: it cannot', sticky=True)
    begin()
    operator.user.evacuate(instance)
    _ends(operator, instance)
    operator.supervisor.bring_back('host1')
    _completes(operator)


def evacuated_then_migrated(operator: Operator, begin: Callable[[], None]) -> None:
    """Migrate a guest that was evacuated, and bring its first host back after that."""
    instance = _lost(operator)
    operator.user.evacuate(instance, 'host2')
    _ends(operator, instance)
    begin()
    operator.user.migrate(instance, 'host3')
    _ends(operator, instance)
    operator.supervisor.bring_back('host1')
    _completes(operator)


def evacuated_back(operator: Operator, begin: Callable[[], None]) -> None:
    """Evacuate a guest to the host from which it was evacuated."""
    instance = _lost(operator)
    operator.user.evacuate(instance, 'host2')
    _ends(operator, instance)
    operator.supervisor.bring_back('host1')
    _completes(operator)
    operator.force_down('host1', False)
    _defined(operator, instance, 'host2')
    operator.supervisor.lose_power('host2', None)
    operator.force_down('host2', True)
    begin()
    operator.user.evacuate(instance, 'host1')
    _ends(operator, instance)
    operator.supervisor.bring_back('host2')
    _completes(operator)


def evacuated_and_brought_back(operator: Operator, begin: Callable[[], None]) -> None:
    """Let an embedding service bring an evacuated guest back to its first host before the cleanup.

    It is shut off there. An operator discards the cleanup.
    """
    instance = _lost(operator)
    _faults(operator).fail('post_evacuation_at_source', 'planned: it cannot', sticky=True)
    operator.user.evacuate(instance, 'host2')
    _ends(operator, instance)
    operator.supervisor.bring_back('host1')
    operator.user.wait(10.0)
    begin()
    deeds.bring_back(operator.cloud, instance, 'host1', shut_off=True)
    _faults(operator).clear()
    database = operator.cloud.database
    operator.user.until(lambda: any(cleanup.blocked_because for cleanup in database.cleanups.list()))
    for cleanup in database.cleanups.list():
        database.cleanups.discard(cleanup)
    _completes(operator)


def evacuation_starts_slowly(operator: Operator, begin: Callable[[], None]) -> None:
    """Let the start at the destination take longer than a host may be down.

    Another host is free.
    """
    instance = _lost(operator)
    stall = _faults(operator, 'host2').stall('evacuate')
    begin()
    operator.user.evacuate(instance)
    operator.user.wait(LATE)
    stall.release()
    _ends(operator, instance)
    operator.supervisor.bring_back('host1')
    _completes(operator)


def both_hosts_lost(operator: Operator, begin: Callable[[], None]) -> None:
    """Lose the host to which a guest was evacuated, and bring back the first one, where a copy runs."""
    instance = _lost(operator, has_power=True)
    operator.user.evacuate(instance, 'host2')
    _ends(operator, instance)
    operator.supervisor.lose_power('host2', None)
    operator.user.wait(3 * LATE)
    begin()
    operator.supervisor.bring_back('host1')
    operator.user.wait(LATE)


def source_returns_before_the_start(operator: Operator, begin: Callable[[], None]) -> None:
    """Bring the host of a guest back while the destination still checks whether it can start the guest."""
    instance = _lost(operator)
    stall = _faults(operator, 'host2').stall('check_can_evacuate')
    begin()
    operator.user.evacuate(instance, 'host2')
    operator.user.until(lambda: stall.reached.is_set() or operator.user.ended(instance))
    operator.supervisor.bring_back('host1')
    operator.user.wait(2.0)
    stall.release()
    _ends(operator, instance)


def source_returns_during_the_start(operator: Operator, begin: Callable[[], None]) -> None:
    """Bring the host of a guest back while the destination starts the guest."""
    instance = _lost(operator)
    stall = _faults(operator, 'host2').stall('evacuate')
    begin()
    operator.user.evacuate(instance, 'host2')
    operator.user.until(lambda: stall.reached.is_set() or operator.user.ended(instance))
    operator.supervisor.bring_back('host1')
    operator.user.wait(2.0)
    stall.release()
    _ends(operator, instance)
    _completes(operator)


def evacuation_stays_shut_off(operator: Operator, begin: Callable[[], None]) -> None:
    """Evacuate a guest by a version that leaves it shut off, and bring its host back."""
    instance = _lost(operator)
    begin()
    operator.user.evacuate(instance, version='2.95')
    _ends(operator, instance)
    operator.supervisor.bring_back('host1')
    _completes(operator)


#: Bounds of one on each axis.
_ONE_AT_A_TIME = {
    'max_concurrent_inbound_live_migrations': 1,
    'conductor.max_cluster_live_migrations': 1,
    'conductor.prepare_ahead': 0,
}
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
    Path(
        'next move',
        next_move,
        (_S.FAILED, _S.COMPLETED),
        # The look at the guests would move the times at which two planted bugs show.
        options={'conductor.post_max_attempts': 2, 'conductor.guests_interval': 0},
    ),
    Path('cleanup first', cleanup_first, (_S.COMPLETED,)),
    Path('cleanup beside', cleanup_beside, (_S.COMPLETED,), hosts=3, options={'conductor.post_max_attempts': 2}),
    Path('brought back', brought_back, (_S.COMPLETED,), options={'conductor.post_max_attempts': 2}),
    Path('restart with a queue', restart_with_a_queue, (_S.COMPLETED, _S.COMPLETED, _S.CANCELLED)),
    Path('waits for a slot', waits_for_a_slot, (_S.COMPLETED,), hosts=3, options=_ONE_AT_A_TIME),
    Path('second candidate, bounded', second_candidate, (_S.COMPLETED,), hosts=3, options=_ONE_AT_A_TIME),
    Path('moves between answers', moves_between_answers, (_S.COMPLETED,)),
    Path('drain', drains.drain, (_S.COMPLETED, _S.COMPLETED)),
    Path('drain cancelled', drains.drain_cancelled, (_S.CANCELLED, _S.CANCELLED)),
    Path('drain fails', drains.drain_fails, (_S.FAILED, _S.FAILED)),
    Path('drain in a maintenance', drains.maintenance, (_S.COMPLETED,), options={'conductor.sweep_interval': 5}),
    Path('drain with a stopped guest', drains.drain_with_a_stopped_guest, (_S.CONFIRMED,)),
    Path('evacuation', evacuation, (_S.COMPLETED,)),
    Path('evacuated while running', evacuated_while_running, (_S.COMPLETED,)),
    Path('evacuation fails', evacuation_fails, (_S.FAILED,)),
    Path('evacuation retried', evacuation_retried, (_S.COMPLETED,), hosts=3),
    Path('evacuated then migrated', evacuated_then_migrated, (_S.COMPLETED,), hosts=3),
    Path('evacuated back', evacuated_back, (_S.COMPLETED,)),
    Path('evacuated and brought back', evacuated_and_brought_back, (_S.COMPLETED,)),
    Path('evacuation starts slowly', evacuation_starts_slowly, (_S.COMPLETED,), hosts=3),
    Path('both hosts lost', both_hosts_lost, (_S.DONE,)),
    Path('source returns before the start', source_returns_before_the_start, (_S.FAILED,)),
    Path('source returns during the start', source_returns_during_the_start, (_S.COMPLETED,)),
    Path('evacuation stays shut off', evacuation_stays_shut_off, (_S.COMPLETED,)),
    *cold_migrations.PATHS,
)

#: Paths without cells in the matrix. Tests use them for bugs that no other path finds.
APART = (
    Path('restarted twice', restarted_twice, (_S.COMPLETED,)),
    Path('restarted after an abort', restarted_after_an_abort, (_S.CANCELLED,)),
    *cold_migrations.APART,
)

BY_NAME = {path.name: path for path in (*PATHS, *APART)}
