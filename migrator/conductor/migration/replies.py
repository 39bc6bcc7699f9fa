# SPDX-License-Identifier: Apache-2.0

"""What the hosts of one migration have replied, and what was sent to them."""

from __future__ import annotations

import math

from oslo_log import log as logging

from migrator import executors
from migrator.conductor.migration import settle_table
from migrator.objects import protocol

LOG = logging.getLogger(__name__)


class Polls:
    """The polls of a run in their order, for the next run if a host has no free call slot for this one.

    The next run does not repeat them. Otherwise migrations that need slots of the same two hosts could take them from
    each other for ever. An old answer does no harm, since a conductor may be slow between any two polls.

    :ivar are_cut_short: whether a host had no free call slot for this run.
    """

    def __init__(self) -> None:
        self.are_cut_short = False
        self._answers: list[tuple[str, settle_table.Host]] = []
        self._before: list[tuple[str, settle_table.Host]] = []

    def begin_run(self) -> None:
        """Keep the answers of the run before if it was cut short."""
        self._before = self._answers if self.are_cut_short else []
        self._answers, self.are_cut_short = [], False

    def note(self, host: str, answer: settle_table.Host) -> None:
        """Note the answer of a host."""
        self._answers.append((host, answer))

    def answer_before(self, host: str) -> settle_table.Host | None:
        """Return the answer to the same poll of the run before, or None: it has to be sent."""
        if not self._before or self._before[0][0] != host:
            self._before.clear()
            return None
        self._answers.append(self._before.pop(0))
        return self._answers[-1][1]

    def forget(self) -> None:
        """Forget all answers, since the hosts may answer otherwise now."""
        self._answers.clear()
        self._before.clear()


class Replies:
    """The newest replies of the hosts, and what was sent without a reply.

    :ivar settling: whether the present epoch was raised to poll the hosts again, and nothing was sent in it since.
    :ivar reports: the newest report of each host's step.
    :ivar seen: the newest observation of each host in the present epoch.
    :ivar unreported: the hosts that were polled in this run and have not reported where the guest is.
    :ivar polls: the answers to the polls of this run.
    :ivar unpolled: the hosts that were not polled in this run because they had no free call slot.
    :ivar received_at: when a host last reported or replied (monotonic seconds).
    :ivar must_poll: the hosts that must answer in this epoch before anything else is done: the first act after a
        takeover.
    :ivar unsure: steps that were sent without a reply. The host must be polled before they are sent again.
    :ivar woken_for_silence: when the run was last woken only because a host did not answer (monotonic seconds).
    """

    def __init__(self, clock: executors.Clock, settling: bool) -> None:
        self._clock = clock
        self.settling = settling
        self.reports: dict[tuple[str, str], protocol.Report] = {}
        self.seen: dict[str, protocol.Observation] = {}
        self.unreported: set[str] = set()
        self.unpolled: set[str] = set()
        self.polls = Polls()
        self.received_at = clock.monotonic()
        self.must_poll: set[str] = set()
        self.unsure: set[tuple[str, str]] = set()
        self.woken_for_silence = -math.inf
        #: The hosts that answer without reporting this guest -> since when (monotonic seconds).
        self._unresponsive: dict[str, float] = {}
        #: Attempt, epoch and name of each step -> whether it was sent; False: there was no free call slot.
        self._sent: dict[tuple[int, int, str], bool] = {}

    def begin_run(self, news: bool) -> None:
        """Forget which hosts were polled in vain in the run before.

        :param news: whether a host has reported something since then.
        """
        if news:
            self.polls.forget()
        self.polls.begin_run()
        self.unreported, self.unpolled = set(), set()

    def begin_epoch(self) -> None:
        """Forget the observations: only those of the new epoch count, in which nothing was sent yet."""
        self.settling = True
        self.seen.clear()
        self.polls.forget()
        self.unsure.clear()

    def reread(self, fresh: Replies, same_epoch: bool) -> None:
        """Keep what still holds after the migration was read again.

        :param fresh: what holds for the migration as it was read.
        :param same_epoch: whether no new epoch has begun.
        """
        if not same_epoch:
            self.settling, self.unsure, self.must_poll = fresh.settling, fresh.unsure, fresh.must_poll
        self.seen, self.received_at = {}, fresh.received_at
        self.begin_run(news=True)

    # --- what was sent -----------------------------------------------------------------------------------------------

    def note_sent(self, attempt: int, epoch: int, step: str) -> None:
        """Note that a step was sent to its host, whether or not the host has replied."""
        self.polls.forget()
        self._sent[attempt, epoch, step] = True

    def note_unsent(self, attempt: int, epoch: int, step: str) -> None:
        """Note that a step was not sent yet because its host had no free call slot."""
        self.polls.are_cut_short = True
        self._sent.setdefault((attempt, epoch, step), False)

    def is_unsent(self, attempt: int, epoch: int, step: str) -> bool:
        """Return whether a step was certainly not sent in an epoch, although its intent is in the log."""
        return self._sent.get((attempt, epoch, step)) is False

    # --- what was replied --------------------------------------------------------------------------------------------

    def take_report(self, report: protocol.Report, epoch: int) -> None:
        """Keep a host's report of a step, unless it is of an older epoch than the one that is known.

        :param epoch: the present epoch.
        """
        if report.epoch > max(epoch, protocol.HIGHEST):
            # It would take precedence over every later report of the host.
            LOG.warning(
                'Ignoring a report with impossible epoch %(epoch)d of step %(step)s from host %(host)s',
                {'epoch': report.epoch, 'step': report.step, 'host': report.host},
            )
            return
        key = (report.host, report.step)
        known = self.reports.get(key)
        newer = known is None or report.epoch > known.epoch
        if newer or (known and report.epoch == known.epoch and known.state == protocol.WorkState.RUNNING):
            self.reports[key] = report
        self.unsure.discard(key)
        self.received_at = self._clock.monotonic()

    def take_observation(self, observation: protocol.Observation, epoch: int) -> None:
        """Keep what a host reported when it was polled.

        :param epoch: the present epoch.
        """
        self.received_at = self._clock.monotonic()
        self._unresponsive.pop(observation.host, None)
        if observation.refusal is not None:
            return
        self.seen[observation.host] = observation
        going_on = {report.step for report in observation.reports}
        for host, step in list(self.reports):
            running = self.reports[host, step].state == protocol.WorkState.RUNNING
            if host == observation.host and running and step not in going_on:
                # The host no longer knows the step because it has restarted.
                del self.reports[host, step]
        self.unsure = {key for key in self.unsure if key[0] != observation.host}
        for report in observation.reports:
            self.take_report(report, epoch)

    def note_unresponsive(self, host: str) -> None:
        """Note that a host has answered without reporting this guest, since its hypervisor does not."""
        self._unresponsive.setdefault(host, self._clock.monotonic())

    def unresponsive_for(self, host: str) -> float:
        """Return for how many seconds a host has answered without reporting this guest."""
        now = self._clock.monotonic()
        return now - self._unresponsive.get(host, now)
