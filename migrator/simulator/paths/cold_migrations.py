# SPDX-License-Identifier: Apache-2.0

"""The paths of cold migrations and resizes; see :class:`migrator.simulator.paths.Path`."""

from __future__ import annotations

from collections.abc import Callable

from migrator.objects import Flavor, Instance, MigrationStatus
from migrator.simulator.actors.operator import Operator
from migrator.simulator.faults import LATE
from migrator.simulator.paths import Path

_S = MigrationStatus

CONFIRM, REVERT = 'confirmResize', 'revertResize'
#: The flavor that guests are resized to.
LARGE = Flavor(name='large', vcpus=2, memory_mb=1024, root_gb=2)


def _ends(operator: Operator, instance: Instance) -> None:
    operator.user.until(lambda: operator.user.ended(instance))


def _finishes(operator: Operator, instance: Instance) -> None:
    operator.user.until_status(instance, _S.FINISHED)


def confirmed(operator: Operator, begin: Callable[[], None]) -> None:
    """Migrate a guest to a host that Placement proposes, and confirm it."""
    instance = operator.cloud.boot('one', 'host1')
    begin()
    operator.user.migrate_cold(instance)
    _finishes(operator, instance)
    operator.user.decide(instance, CONFIRM)
    _ends(operator, instance)


def reverted(operator: Operator, begin: Callable[[], None]) -> None:
    """Migrate a guest, and revert it."""
    instance = operator.cloud.boot('one', 'host1')
    begin()
    operator.user.migrate_cold(instance)
    _finishes(operator, instance)
    operator.user.decide(instance, REVERT)
    _ends(operator, instance)


def start_fails(operator: Operator, begin: Callable[[], None]) -> None:
    """Let the named destination fail to start the guest."""
    instance = operator.cloud.boot('one', 'host1')
    operator.cloud.world.hypervisors['host2'].faults.fail('finish_migration', 'planned: it cannot', sticky=True)
    begin()
    operator.user.migrate_cold(instance, 'host2')
    _ends(operator, instance)


def power_off_fails(operator: Operator, begin: Callable[[], None]) -> None:
    """Let the source fail to power the guest off."""
    instance = operator.cloud.boot('one', 'host1')
    faults = operator.cloud.world.hypervisors['host1'].faults
    faults.fail('migrate_disk_and_power_off', 'planned: it cannot', sticky=True)
    begin()
    operator.user.migrate_cold(instance, 'host2')
    _ends(operator, instance)


def second_candidate(operator: Operator, begin: Callable[[], None]) -> None:
    """Let the first destination fail to start the guest, and revert the move to the second one."""
    instance = operator.cloud.boot('one', 'host1')
    operator.cloud.world.hypervisors['host2'].faults.fail('finish_migration', 'planned: it cannot', sticky=True)
    begin()
    operator.user.migrate_cold(instance)
    _finishes(operator, instance)
    operator.user.decide(instance, REVERT)
    _ends(operator, instance)


def destination_lost(operator: Operator, begin: Callable[[], None]) -> None:
    """Lose the destination of a finished migration, revert it, and bring the destination back."""
    instance = operator.cloud.boot('one', 'host1')
    operator.user.migrate_cold(instance, 'host2')
    _finishes(operator, instance)
    operator.supervisor.lose_power('host2', None)
    operator.force_down('host2', True)
    operator.user.wait(LATE)
    begin()
    operator.user.decide(instance, REVERT)
    _ends(operator, instance)
    operator.supervisor.bring_back('host2')
    operator.user.wait(5.0)


def confirmed_late(operator: Operator, begin: Callable[[], None]) -> None:
    """Confirm a migration whose destination has just lost its power, and try to revert it too.

    The source, whose service is away for a while, keeps its copy until the destination is back and reports the guest.
    Once the destination counts as down, a confirmation is refused.
    """
    instance = operator.cloud.boot('one', 'host1')
    operator.user.migrate_cold(instance, 'host2')
    _finishes(operator, instance)
    operator.supervisor.lose_power('host2', None)
    begin()
    for action in (CONFIRM, REVERT):
        operator.user.request('POST', f'/servers/{instance.uuid}/action', {action: None})
    operator.supervisor.kill('host1', 3 * LATE)
    operator.user.wait(4 * LATE)
    operator.supervisor.bring_back('host2')
    _ends(operator, instance)


def destination_unreachable(operator: Operator, begin: Callable[[], None]) -> None:
    """Revert a migration whose destination runs the guest, but does not answer, and bring it back.

    The source does not start its copy meanwhile.
    """
    instance = operator.cloud.boot('one', 'host1')
    operator.user.migrate_cold(instance, 'host2')
    _finishes(operator, instance)
    operator.supervisor.kill('host2', None)
    operator.user.wait(2 * LATE)
    begin()
    operator.user.decide(instance, REVERT)
    operator.user.wait(2 * LATE)
    operator.supervisor.bring_back('host2')
    _ends(operator, instance)


def then_moved_live(operator: Operator, begin: Callable[[], None]) -> None:
    """Confirm while the source cannot remove its copy, and migrate the guest live back to it."""
    instance = operator.cloud.boot('one', 'host1')
    faults = operator.cloud.world.hypervisors['host1'].faults
    faults.fail('confirm_migration_at_source', 'planned: it cannot', sticky=True)
    operator.user.migrate_cold(instance, 'host2')
    _finishes(operator, instance)
    begin()
    operator.user.decide(instance, CONFIRM)
    _ends(operator, instance)
    faults.clear()
    operator.user.until(lambda: not operator.cloud.database.cleanups.list())
    operator.user.migrate(instance, 'host1')
    _ends(operator, instance)


def resized(operator: Operator, begin: Callable[[], None]) -> None:
    """Resize a guest, revert that, resize it again, and confirm that."""
    instance = operator.cloud.boot('one', 'host1')
    operator.cloud.database.flavors.create(LARGE)
    begin()
    for decision in (REVERT, CONFIRM):
        operator.user.resize(instance, LARGE.name)
        _finishes(operator, instance)
        operator.user.decide(instance, decision)
        _ends(operator, instance)


def resized_here(operator: Operator, begin: Callable[[], None]) -> None:
    """Resize a guest that no other host can take, and confirm it."""
    _resize_here(operator, begin, CONFIRM)


def resized_here_and_reverted(operator: Operator, begin: Callable[[], None]) -> None:
    """Resize a guest that no other host can take, and revert it."""
    _resize_here(operator, begin, REVERT)


def _resize_here(operator: Operator, begin: Callable[[], None], decision: str) -> None:
    instance = operator.cloud.boot('one', 'host1')
    operator.cloud.database.flavors.create(LARGE)
    begin()
    operator.user.resize(instance, LARGE.name)
    _finishes(operator, instance)
    operator.user.decide(instance, decision)
    _ends(operator, instance)


def resize_here_fails(operator: Operator, begin: Callable[[], None]) -> None:
    """Let the host of a guest that no other host can take fail after it has resized the guest."""
    instance = operator.cloud.boot('one', 'host1')
    operator.cloud.database.flavors.create(LARGE)
    operator.cloud.world.hypervisors['host1'].faults.fail('resize', 'planned: it cannot', sticky=True, after=True)
    begin()
    operator.user.resize(instance, LARGE.name)
    _ends(operator, instance)


def resized_here_after_another(operator: Operator, begin: Callable[[], None]) -> None:
    """Let the other host fail to start the guest, so that it is resized at its host, and revert that."""
    instance = operator.cloud.boot('one', 'host1')
    operator.cloud.database.flavors.create(LARGE)
    operator.cloud.world.hypervisors['host2'].faults.fail('finish_migration', 'planned: it cannot', sticky=True)
    begin()
    operator.user.resize(instance, LARGE.name)
    _finishes(operator, instance)
    operator.user.decide(instance, REVERT)
    _ends(operator, instance)


def resize_here_interrupted(operator: Operator, begin: Callable[[], None]) -> None:
    """Lose a host while the guest is off for its resize there, declare it forced down, and bring it back.

    The resize is undone before the guest has its new size.
    """
    instance = operator.cloud.boot('one', 'host1')
    operator.cloud.database.flavors.create(LARGE)
    guest = operator.cloud.world.hypervisors['host1'].guests[instance.uuid]
    begin()
    operator.user.resize(instance, LARGE.name)
    operator.user.until(lambda: guest.resize is not None)
    operator.supervisor.kill('host1', None)
    operator.force_down('host1', True)
    operator.user.wait(LATE)
    operator.supervisor.bring_back('host1')
    operator.force_down('host1', False)
    _ends(operator, instance)


_HERE = {'allow_resize_to_same_host': True}
#: The other host takes no resized guest. With two hosts the first conductor takes the migration.
_AT_HOME = {'no_resizes': ['host2']}

PATHS = (
    Path('cold', confirmed, (_S.CONFIRMED,)),
    Path('cold reverted', reverted, (_S.REVERTED,)),
    Path('cold fails', start_fails, (_S.FAILED,)),
    Path('cold power-off fails', power_off_fails, (_S.FAILED,)),
    Path('cold retried', second_candidate, (_S.REVERTED,), hosts=3),
    Path('cold destination lost', destination_lost, (_S.REVERTED,)),
    Path(
        'cold then live',
        then_moved_live,
        (_S.CONFIRMED, _S.COMPLETED),
        options={'conductor.post_max_attempts': 2},
    ),
    Path('resize', resized, (_S.REVERTED, _S.CONFIRMED)),
    Path('resize here', resized_here, (_S.CONFIRMED,), options=_HERE, knobs=_AT_HOME),
    Path('resize here reverted', resized_here_and_reverted, (_S.REVERTED,), options=_HERE, knobs=_AT_HOME),
    Path('resize here fails', resize_here_fails, (_S.FAILED,), options=_HERE, knobs=_AT_HOME),
    Path('resize here retried', resized_here_after_another, (_S.REVERTED,), options=_HERE),
)

#: Paths without cells in the matrix; see :data:`migrator.simulator.scenarios.APART`.
APART = (
    Path('cold confirmed late', confirmed_late, (_S.CONFIRMED,)),
    Path('cold destination unreachable', destination_unreachable, (_S.REVERTED,)),
    Path('resize here interrupted', resize_here_interrupted, (_S.FAILED,), options=_HERE, knobs=_AT_HOME),
)
