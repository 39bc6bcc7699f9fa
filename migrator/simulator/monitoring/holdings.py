# SPDX-License-Identifier: Apache-2.0

"""Placement as a monitor sees it: it is read again only after a request that may have changed it."""

from __future__ import annotations

from typing import Any

from migrator.simulator.reader import Provider, Reader


class Holdings:
    """The resource providers with their allocations.

    :ivar providers: provider uuid -> resource provider, as read last.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._trees_changed = True
        self._consumers: set[str] = set()
        self.providers: dict[str, Provider] = {}

    def note_request(self, url: str, method: str, **more: Any) -> bool:
        """Note what a request may have changed; return whether it is anything."""
        if method == 'GET':
            return False
        if url == '/allocations':
            self._consumers |= more['json'].keys()
        elif url.startswith('/allocations/'):
            self._consumers.add(url.rpartition('/')[2])
        else:
            self._trees_changed = True
        return True

    def note_unknown_requests(self) -> None:
        """Note that anything may have changed."""
        self._trees_changed = True

    def read(self) -> bool:
        """Read what may have changed; return whether it is anything."""
        if self._trees_changed:
            self.providers = self._reader.providers()
        elif self._consumers:
            self.providers = self._reader.held_by(self._consumers, self.providers)
        else:
            return False
        self._trees_changed = False
        self._consumers.clear()
        return True
