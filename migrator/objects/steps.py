# SPDX-License-Identifier: Apache-2.0

"""The steps of compute hosts: one row for each, from which every list of steps is derived.

A step is named like the RPC method that requests it, and like the driver's method where it has one. The sagas
(``migrator/conductor/tasks``) say in which order a migration does them; a conductor does all their other steps itself.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable


class At(enum.StrEnum):
    """The host of a migration that does a step."""

    SOURCE = 'source'
    DESTINATION = 'destination'


class Saga(enum.StrEnum):
    """A saga with steps of compute hosts."""

    LIVE_MIGRATION = 'live migration'
    EVACUATION = 'evacuation'
    #: Cold migrations, and resizes to another host.
    COLD_MIGRATION = 'cold migration'
    #: A resize at one host.
    RESIZE_HERE = 'resize here'


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostStep:
    """A step of a compute host.

    :ivar undo: the step that undoes it at the same host; '': it leaves nothing there, or cannot be undone.
    :ivar in_saga: it is a step of the saga, or the undo of one. Otherwise it is a request about the job of another
        step, or only ever a deferred cleanup.
    :ivar ends: it only cleans up, restores or ends. It never moves a migration forward, and a failed one runs again if
        a conductor sends it again, even in one epoch.
    :ivar pivot: it moves the guest, or starts it anew. What follows from it only a host can report.
    :ivar removes: it removes a guest, or what is left of it, from the host.
    :ivar ends_copy: it may end an active copy of the guest.
    :ivar restores: it restores the guest, and may start it.
    :ivar exchanges: its result has data of the host for the other host, or for a later step.
    :ivar action: the action of nova's notifications that it begins; '': none.
    :ivar ends_action: whether that action ends with it.
    """

    name: str
    at: At
    saga: Saga
    undo: str = ''
    in_saga: bool = True
    pivot: bool = False
    ends: bool = False
    removes: bool = False
    ends_copy: bool = False
    restores: bool = False
    exchanges: bool = False
    action: str = ''
    ends_action: bool = False


_LIVE, _EVACUATION, _COLD, _HERE = Saga
_SOURCE, _DESTINATION = At

#: The cleanup at the source of an evacuation.
AFTER_EVACUATION = 'post_evacuation_at_source'
#: The cleanup at the destination of a cold migration that was undone or reverted while that host was fenced.
AFTER_REVERT = 'revert_migration_at_destination'

#: The records of an abandonment in the log of a migration, which no saga declares, in order: the request, which is done
#: at the end; the other host; the allocations.
ABANDONMENT = ABANDON, ABANDON_CLEAN, ABANDON_ALLOCATIONS = 'abandon', 'abandon_clean', 'abandon_allocations'

#: Every step of a host, in the order of its saga.
STEPS = (
    HostStep(name='check_can_live_migrate_destination', at=_DESTINATION, saga=_LIVE, exchanges=True,
             undo='rollback_live_migration_at_destination'),
    HostStep(name='check_can_live_migrate_source', at=_SOURCE, saga=_LIVE, exchanges=True),
    HostStep(name='pre_live_migration', at=_DESTINATION, saga=_LIVE, exchanges=True,
             undo='rollback_live_migration_at_destination', action='live_migration_pre', ends_action=True),
    HostStep(name='live_migration', at=_SOURCE, saga=_LIVE, pivot=True, undo='rollback_live_migration_at_source'),
    HostStep(name='live_migration_abort', at=_SOURCE, saga=_LIVE, in_saga=False),
    HostStep(name='live_migration_force_complete', at=_SOURCE, saga=_LIVE, in_saga=False),
    HostStep(name='post_live_migration_at_source', at=_SOURCE, saga=_LIVE, ends=True, removes=True,
             action='live_migration_post', ends_action=True),
    HostStep(name='post_live_migration_at_destination', at=_DESTINATION, saga=_LIVE, ends=True,
             action='live_migration_post_dest', ends_action=True),
    HostStep(name='rollback_live_migration_at_source', at=_SOURCE, saga=_LIVE, ends=True, restores=True),
    HostStep(name='rollback_live_migration_at_destination', at=_DESTINATION, saga=_LIVE, ends=True, removes=True),

    HostStep(name='check_can_evacuate', at=_DESTINATION, saga=_EVACUATION, exchanges=True),
    HostStep(name='evacuate', at=_DESTINATION, saga=_EVACUATION, pivot=True, undo='rollback_evacuation_at_destination',
             action='rebuild'),
    HostStep(name='rollback_evacuation_at_destination', at=_DESTINATION, saga=_EVACUATION, ends=True, removes=True),
    HostStep(name=AFTER_EVACUATION, at=_SOURCE, saga=_EVACUATION, in_saga=False, ends=True, removes=True,
             ends_copy=True),

    HostStep(name='check_can_migrate_source', at=_SOURCE, saga=_COLD, exchanges=True),
    HostStep(name='check_can_migrate_destination', at=_DESTINATION, saga=_COLD, exchanges=True),
    HostStep(name='migrate_disk_and_power_off', at=_SOURCE, saga=_COLD, undo='revert_migration_at_source',
             action='resize', ends_action=True),
    HostStep(name='finish_migration', at=_DESTINATION, saga=_COLD, pivot=True, undo=AFTER_REVERT,
             action='resize_finish'),
    HostStep(name='confirm_migration_at_source', at=_SOURCE, saga=_COLD, ends=True, removes=True,
             action='resize_confirm'),
    HostStep(name=AFTER_REVERT, at=_DESTINATION, saga=_COLD, ends=True, removes=True, ends_copy=True,
             action='resize_revert'),
    HostStep(name='revert_migration_at_source', at=_SOURCE, saga=_COLD, ends=True, restores=True),

    HostStep(name='check_can_resize', at=_SOURCE, saga=_HERE, exchanges=True),
    HostStep(name='resize', at=_SOURCE, saga=_HERE, pivot=True, undo='revert_resize', action='resize'),
    HostStep(name='confirm_resize', at=_SOURCE, saga=_HERE, ends=True, action='resize_confirm'),
    HostStep(name='revert_resize', at=_SOURCE, saga=_HERE, ends=True, restores=True, action='resize_revert'),
)  # fmt: skip


def names(wanted: Callable[[HostStep], bool]) -> tuple[str, ...]:
    """Return the names of the steps that a function selects, in the order of :data:`STEPS`."""
    return tuple(step.name for step in STEPS if wanted(step))


#: The commands that a conductor sends.
COMMANDS = names(lambda step: True)
AT_SOURCE = frozenset(names(lambda step: step.at == At.SOURCE and step.in_saga))
AT_DESTINATION = frozenset(names(lambda step: step.at == At.DESTINATION))
#: See :attr:`HostStep.pivot`.
PIVOTS = frozenset(names(lambda step: step.pivot))
#: Step of a saga -> its undo. Only the first one is done by the conductor itself.
UNDOS = {'move_allocation': 'return_allocation'} | {step.name: step.undo for step in STEPS if step.undo}
#: See :attr:`HostStep.ends`.
ENDING = frozenset(names(lambda step: step.ends))
#: The commands that may move a migration forward. One that is still on its way is fenced off by a new epoch.
FORWARD = frozenset(names(lambda step: not step.ends and step.in_saga))
REMOVING = names(lambda step: step.removes)
ENDS_COPIES = names(lambda step: step.ends_copy)
RESTORING = names(lambda step: step.restores)
#: The newest data is first.
EXCHANGING = names(lambda step: step.exchanges)[::-1]
