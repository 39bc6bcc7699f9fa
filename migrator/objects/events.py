# SPDX-License-Identifier: Apache-2.0

"""The reports of a compute host to the conductor.

This is an interface, so that the compute service does not depend on the conductor.
"""

from __future__ import annotations

from typing import Protocol

from migrator.objects import protocol


class EventClient(Protocol):
    """The client for reports to conductors, which a compute service receives at its start.

    Each message only saves time: correctness does not depend on its arrival.
    """

    def step_ended(self, reply_to: str, report: protocol.Report) -> None:
        """Report to the owner's server that the work of a step has started or ended.

        This is a cast. It only wakes the owner up, and may be lost.
        """

    def compute_started(self, report: protocol.HostReport) -> list[protocol.Assignment]:
        """Report to any conductor that this host has started. Return its assignments in queued_at order.

        :raises migrator.exception.ServiceUnreachable: no conductor answered; call again.
        """

    def compute_heartbeat(self, report: protocol.HostReport) -> None:
        """Report to any conductor that this host is alive. This is a cast."""

    def compute_stopping(self, host: str, boot_id: str, cancelled: list[str]) -> None:
        """Report a planned stop, and the queued migrations that it cancelled, to any conductor, within 1 s.

        :param cancelled: migration uuids.
        :raises migrator.exception.ServiceUnreachable: no conductor answered in time; the migrations are queued again
            when the service starts.
        """

    def live_migration_timed_out(
        self, host: str, boot_id: str, migration_uuid: str, action: str, seconds: float
    ) -> None:
        """Report to any conductor that a live migration has exceeded its time-out.

        When this returns, the conductor has committed the request for the action.

        :param action: ``abort`` or ``force_complete``.
        :param seconds: the time-out.
        :raises migrator.exception.ServiceUnreachable: no conductor answered; report it again.
        """
