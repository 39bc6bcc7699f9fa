# SPDX-License-Identifier: Apache-2.0

"""Which migration acts on which guest at which fake hypervisor, and what no two migrations of one guest may do.

A driver call acts if it prepares, migrates, aborts, cleans up or restores; one that only asks does not. Once a
migration has acted on a guest at a host, no other one may act on it there before that has ended. Nor may two act at the
same time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

#: The driver methods that act on a guest.
ACTING = frozenset(
    {
        'check_can_live_migrate_destination',
        'check_can_live_migrate_source',
        'cleanup_live_migration_destination_check',
        'pre_live_migration',
        'live_migration',
        'live_migration_abort',
        'live_migration_force_complete',
        'post_live_migration_at_source',
        'post_live_migration_at_destination',
        'rollback_live_migration_at_source',
        'rollback_live_migration_at_destination',
    }
)
#: Those of them that remove what there is of a guest.
REMOVING = frozenset({'post_live_migration_at_source', 'rollback_live_migration_at_destination'})


class Acts:
    """What the drivers of all hosts do to guests in the name of migrations.

    :ivar intrusions: what one migration did to a guest that another had in hand, one sentence each.
    :ivar removals: cleanups at the host where the database has the guest; a watcher of the cloud notes them.
    :ivar in_progress: whether a migration has not ended; a watcher of the cloud knows.
    :ivar on_begin: called with host, driver method, instance and migration before a driver call acts.
    """

    def __init__(self) -> None:
        self.intrusions: list[str] = []
        self.removals: list[str] = []
        self.on_begin: Callable[[str, str, str, str], None] = lambda host, method, instance_uuid, migration_uuid: None
        self.in_progress: Callable[[str], bool] = lambda migration_uuid: False
        #: (host, instance) -> the migration that has acted there last.
        self._last: dict[tuple[str, str], str] = {}
        #: (host, instance) -> driver, migration and method of each call that has not returned.
        self._running: dict[tuple[str, str], list[tuple[str, str, str]]] = {}

    @contextlib.contextmanager
    def act(self, life: str, host: str, method: str, instance_uuid: str, migration_uuid: str) -> Iterator[None]:
        """Note a driver call for as long as it lasts.

        :param life: the name of the driver; the calls of an earlier driver of the host have ended with it.
        """
        key = (host, instance_uuid)
        last, self._last[key] = self._last.get(key, migration_uuid), migration_uuid
        if last != migration_uuid and self.in_progress(last):
            self.intrusions.append(
                f'{host}: {method} of guest {instance_uuid} for migration {migration_uuid}, while migration {last} '
                'has it in hand there'
            )
        running = [call for call in self._running.get(key, []) if call[0] == life]
        for _, other, what in running:
            if other != migration_uuid:
                self.intrusions.append(
                    f'{host}: {method} of guest {instance_uuid} for migration {migration_uuid}, while {what} for '
                    f'migration {other} had not returned'
                )
        call = (life, migration_uuid, method)
        self._running[key] = [*running, call]
        self.on_begin(host, method, instance_uuid, migration_uuid)
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):
                self._running[key].remove(call)
