# SPDX-License-Identifier: Apache-2.0

"""The check that no remedy is shown for long that harms a living guest (I30)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from migrator.objects import COMPUTE_BINARY
from migrator.simulator.world import World

#: Seconds within which a remedy is withdrawn once a host reports the guest. The hosts are compared once a minute.
WITHDRAWN = 150.0
_DELETE = re.compile(r'instance delete (\S+)')
_EVACUATE = re.compile(r'server evacuate ([0-9a-f-]{36})')


class Remedies:
    """For how long remedies have been shown against what hosts report.

    I30, always: no remedy forgets a guest that a host has, or evacuates one from a host whose service reports. It is
    withdrawn soon after the host has the guest, or reports. A host that an operator has declared down does not count.
    """

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], float] = {}

    def look(self, world: World) -> Iterator[str]:
        """Note the remedies that hosts contradict, and yield those that were contradicted for too long."""
        if not world.differences and not world.members and not self._since:
            return
        shown = {found: self._since.get(found, world.at) for found in _contradicted(world)}
        self._since = shown
        for (guest, what), since in shown.items():
            if not world.busy:  # no conductor lives that could withdraw it
                self._since[guest, what] = world.at
            elif world.at - since > WITHDRAWN:
                yield f'{what} for guest {guest}, against what hosts have had for {WITHDRAWN:g} s'


def _contradicted(world: World) -> Iterator[tuple[str, str]]:
    compute = {one.host: one for one in world.services if one.binary == COMPUTE_BINARY}
    unlisted = {one.host for one in compute.values() if one.may_run_unlisted}
    powered = {name for name, host in world.hosts.items() if host.powered}
    have = {name for name in powered if name in compute and not compute[name].forced_down}
    for one in world.differences:
        remedy = one.remedy(unlisted)
        for guest in _DELETE.findall(remedy):
            if any(guest in world.hosts[host].states for host in have):
                yield guest, f'a difference shows "{remedy}"'
    for members in world.members.values():
        for member in members:
            for guest in _EVACUATE.findall(member.reason) if member.reason else ():
                owner = world.instances.get(guest)
                if owner is not None and owner.host in powered and compute[owner.host].reports:
                    yield guest, f'a drain shows "{member.reason}"'
