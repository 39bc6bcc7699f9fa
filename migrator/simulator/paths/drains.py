# SPDX-License-Identifier: Apache-2.0

"""The paths of drains and of a maintenance; see :class:`migrator.simulator.paths.Path`."""

from __future__ import annotations

from collections.abc import Callable

from migrator.objects import MigrationStatus
from migrator.simulator.actors import deeds, workers
from migrator.simulator.actors.operator import Operator


def drain(operator: Operator, begin: Callable[[], None]) -> None:
    """Drain a host with two guests."""
    for name in ('one', 'two'):
        operator.cloud.boot(name, 'host1')
    begin()
    deeds.drain(operator, 'host1', {})
    operator.user.until(lambda: not operator.open_drains())


def drain_cancelled(operator: Operator, begin: Callable[[], None]) -> None:
    """Cancel a drain with all that it has requested, while one guest is copied and one is queued."""
    first, second, _third = (operator.cloud.boot(name, 'host1') for name in ('one', 'two', 'three'))
    operator.cloud.world.hypervisors['host1'].faults.stall('copying', sticky=True)
    begin()
    deeds.drain(operator, 'host1', {})
    operator.user.until(lambda: operator.user.newest(first) and operator.user.newest(second), within=5.0)
    operator.user.until_status(first, MigrationStatus.RUNNING)
    deeds.change_drain(operator, 'host1', {'cancel': {'abort_running': True}})
    operator.user.until(lambda: not operator.open_drains())


def drain_fails(operator: Operator, begin: Callable[[], None]) -> None:
    """Drain a host whose guest cannot be moved, in two attempts."""
    operator.cloud.boot('one', 'host1')
    operator.cloud.world.hypervisors['host1'].faults.fail('cutover', 'planned: the link is lost', sticky=True)
    begin()
    deeds.drain(operator, 'host1', {'max_attempts': 2})
    operator.user.until(lambda: not operator.open_drains())


def drain_with_a_stopped_guest(operator: Operator, begin: Callable[[], None]) -> None:
    """Drain a host whose guest is shut off."""
    instance = operator.cloud.boot('one', 'host1')
    operator.cloud.world.hypervisors['host1'].shut_off(instance.uuid)
    operator.cloud.database.instances.update(instance.uuid, vm_state='stopped', power_state=4)
    begin()
    deeds.drain(operator, 'host1', {'include_stopped': True})
    operator.user.until(lambda: not operator.open_drains())


def maintenance(operator: Operator, begin: Callable[[], None]) -> None:
    """Have two users work at a host with a guest, whose compute service is started anew."""
    operator.cloud.boot('one', 'host1')
    begin()
    workers.maintain(operator, 'host1', _MAINTENANCE)
    store = operator.cloud.database.maintenances
    operator.user.until(lambda: not store.list(in_progress=True), within=400.0)


_MAINTENANCE = {
    'hosts': ['host1'],
    'returned_by': 'restart',
    'max_failures': 9,
    'return_timeout': 240.0,
    'work_timeout': 60.0,
    'deadline': None,
    'cancel': None,
    'calm': True,
}
