# SPDX-License-Identifier: Apache-2.0

"""A record of which migration acts on which guest at which fake hypervisor.

A driver call *acts* if it checks, prepares, migrates, aborts, cleans up or restores. A call that only reads the state
of a guest does not act. Two rules hold for one guest at one host, and this module notes each violation:

- When a migration has acted, no other migration may act before the first one has ended.
- Two migrations never act at the same time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from migrator.objects import steps

#: The driver methods that act on a guest: those of the steps that hosts run, and three that belong to steps.
ACTING = {*steps.COMMANDS, 'cleanup_live_migration_destination_check'}


class Acts:
    """The acts of the drivers of all hosts, each on behalf of a migration.

    :ivar intrusions: violations of the two rules, one sentence each.
    :ivar removals: cleanups at the host where the database has the guest. The monitor of the cloud adds them.
    :ivar in_progress: a function that returns whether a migration is in progress. The monitor of the cloud sets it.
    :ivar on_begin: called with host, driver method, instance and migration before a driver call acts.
    """

    def __init__(self) -> None:
        self.intrusions: list[str] = []
        self.removals: list[str] = []
        self.on_begin: Callable[[str, str, str, str], None] = lambda host, method, instance_uuid, migration_uuid: None
        self.in_progress: Callable[[str], bool] = lambda migration_uuid: False
        #: (host, instance) -> the migration that acted there last.
        self._last: dict[tuple[str, str], str] = {}
        #: (host, instance) -> (driver, migration, method) of each call that has not returned.
        self._running: dict[tuple[str, str], list[tuple[str, str, str]]] = {}

    @contextlib.contextmanager
    def act(self, driver: str, host: str, method: str, instance_uuid: str, migration_uuid: str) -> Iterator[None]:
        """Record a driver call until it returns, and note the violations.

        :param driver: the name of the driver. The calls of an earlier driver of the host ended with its process, so
            they do not count.
        """
        key = (host, instance_uuid)
        last, self._last[key] = self._last.get(key, migration_uuid), migration_uuid
        if last != migration_uuid and self.in_progress(last):
            self.intrusions.append(
                f'host {host} ran {method} of guest {instance_uuid} for migration {migration_uuid} while migration '
                f'{last}, which had acted on the guest there, was in progress'
            )
        running = [call for call in self._running.get(key, []) if call[0] == driver]
        for _, other, what in running:
            if other != migration_uuid:
                self.intrusions.append(
                    f'host {host} ran {method} of guest {instance_uuid} for migration {migration_uuid} while {what} '
                    f'for migration {other} had not returned'
                )
        call = (driver, migration_uuid, method)
        self._running[key] = [*running, call]
        self.on_begin(host, method, instance_uuid, migration_uuid)
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):
                self._running[key].remove(call)
