# SPDX-License-Identifier: Apache-2.0

"""The check that the registered boot of a host is never replaced by an older one (I16)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from migrator.objects import Service
from migrator.simulator.world import World
from migrator.testing.bus import Message


class Boots:
    """The boots of all hosts, and which of them were registered at the last look."""

    def __init__(self) -> None:
        #: boot_id -> its number, in the order in which the boots have sent their first start report.
        self._numbers: dict[str, int] = {}
        #: Host -> the boot that was registered at the last look.
        self._registered: dict[str, str] = {}
        self._services: Sequence[Service] = ()

    def sent(self, message: Message) -> None:
        """Note that a compute service is about to send its start report."""
        if message.method == 'compute_started':
            boot = message.document['args']['report']['data']['boot_id']
            self._numbers.setdefault(boot, len(self._numbers))

    def look(self, world: World) -> Iterator[str]:
        """Yield each host whose registered boot is older than the one before."""
        if world.services is self._services:
            return
        self._services = world.services
        before, self._registered = self._registered, {}
        for service in world.services:
            boot, last = service.boot_id, before.get(service.host)
            if boot is None:
                continue
            self._registered[service.host] = boot
            if last is not None and self._numbers.get(boot, 0) < self._numbers.get(last, 0):
                yield f'boot {boot} of {service.host} is registered, which is older than boot {last} before it'
