# SPDX-License-Identifier: Apache-2.0

"""Whether a host is back after its work.

A host that has just been rebooted still counts as up for a while. So only a report counts that was made after the work
had ended, and that the host could not have made before it.
"""

from __future__ import annotations

import dataclasses
import datetime

from migrator.drain.maintenance.turns import ReturnedBy, Turn
from migrator.objects import times


@dataclasses.dataclass(frozen=True)
class Report:
    """What the compute service of a host has reported last.

    :ivar at: when; None: it has stopped as planned, or has never reported.
    :ivar reports: whether it reports, forced down or not.
    :ivar boot: the start of the service.
    :ivar kernel: the start of the kernel; None: it reports none.
    :ivar forced_down: whether an operator has declared it down.
    :ivar disabled: whether it gets no guests.
    """

    at: datetime.datetime | None
    reports: bool
    boot: str | None = None
    kernel: str | None = None
    forced_down: bool = False
    disabled: bool = False


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a host is back.

    :ivar why_not: why it is not; '': it is back.
    :ivar settles_from: as of :class:`~migrator.drain.maintenance.turns.Turn`, to be kept until the next look.
    :ivar seen_at: the same.
    """

    why_not: str = ''
    settles_from: datetime.datetime | None = None
    seen_at: datetime.datetime | None = None

    @property
    def is_back(self) -> bool:
        """Whether the host is back."""
        return not self.why_not


def judge(turn: Turn, report: Report | None, by: str, settle: float, gap: float) -> Verdict:
    """Return whether a host is back whose work has ended.

    :param report: its newest report; None: it has no compute service.
    :param by: what shows it, of :class:`~migrator.drain.maintenance.turns.ReturnedBy`.
    :param settle: for how many seconds it has to report, if that shows it.
    :param gap: seconds between two reports after which it may have been away.
    """
    if report is None:
        return Verdict('it has no compute service')
    if report.forced_down:
        return Verdict('it is forced down. Declare it up once it is repaired')
    if turn.work_ended_at is None or report.at is None or report.at <= turn.work_ended_at or not report.reports:
        return Verdict('its compute service has not reported since the work ended')
    if by == ReturnedBy.REBOOT:
        if report.kernel is None:
            return Verdict('it does not report the start of its kernel')
        return Verdict() if report.kernel != turn.kernel else Verdict('it was not rebooted since its work began')
    if by == ReturnedBy.RESTART:
        again = report.boot is not None and report.boot != turn.boot
        return Verdict() if again else Verdict('its compute service was not restarted since its work began')
    since = turn.settles_from
    # If no look saw a report for longer than the gap, the host may have been away.
    if since is None or turn.seen_at is None or (report.at - turn.seen_at).total_seconds() > gap:
        since = report.at
    has_settled = (report.at - since).total_seconds() >= settle
    return Verdict('' if has_settled else f'it has to report for {times.span(settle)} without a gap', since, report.at)
