# SPDX-License-Identifier: Apache-2.0

"""What a compute host tells the conductor: an interface, so that the compute wing needs to know no conductor."""

from __future__ import annotations

from typing import Protocol

from migrator.objects import protocol


class EventClient(Protocol):
    """The one small client that a compute is handed at start. No correctness rests on any of its messages."""

    def step_ended(self, reply_to: str, report: protocol.Report) -> None:
        """Tell the owner's server that a step's work has started or ended. A cast: a wake-up, which may be lost."""

    def compute_started(self, report: protocol.HostReport) -> list[protocol.Assignment]:
        """Tell any conductor that this host has started; return what it is to do, in queued_at order.

        :raises migrator.exception.ServiceUnreachable: no conductor answered; call again.
        """

    def compute_heartbeat(self, report: protocol.HostReport) -> None:
        """Tell any conductor that this host is alive. A cast."""

    def compute_stopping(self, host: str, boot_id: str, cancelled: list[str]) -> None:
        """Tell any conductor of a planned stop, and which queued migrations it has cancelled, within 1 s.

        :param cancelled: migration uuids.
        :raises migrator.exception.ServiceUnreachable: no conductor answered in time; they are queued again at start.
        """

    def live_migration_timed_out(
        self, host: str, boot_id: str, migration_uuid: str, action: str, seconds: float
    ) -> None:
        """Tell any conductor that a move has taken longer than it may; when this returns, the wish is committed.

        :param action: ``abort`` or ``force_complete``.
        :param seconds: how long it may have taken.
        :raises migrator.exception.ServiceUnreachable: no conductor answered; tell it again.
        """
