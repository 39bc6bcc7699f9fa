# SPDX-License-Identifier: Apache-2.0
"""How a conductor asks the hosts, and what it makes of the answers."""

from __future__ import annotations

from migrator.conductor.migration.settle_table import Host, Observed
from tests.simulation.model import settling
from tests.simulation.model.next_act import Next, next_act
from tests.simulation.model.rules import Rules, Steps
from tests.simulation.model.search import Step
from tests.simulation.model.state import (
    NO_OWNER,
    Conductor,
    Destination,
    Row,
    Source,
    StopReport,
    Up,
)

_JOB = (Observed.JOB, Observed.CUTOVER_JOB)


class Asking(Rules):
    """Polls: an adopter's first, those of settling, those for one host's report."""

    def ask_source(self, me: Conductor, row: Row, source: Source) -> Steps:
        """Poll the source, wherever that is what comes next."""
        ask = self._what_to_ask(me, row, 'S')
        if not ask:
            return
        if ask == 'settle' and row.verdict == 'stop':
            after = me._replace(at=('half', me.at == ('settle', True), settling.CALLED_OFF))
            yield self.step('knows from its stop that S had not begun', after)
        elif source.up in (Up.DEAD, Up.UNREACHABLE):
            yield self._received(me, ask, 'S', settling.DOWN)
        elif source.up != Up.STARTING and not isinstance(source.up, StopReport):
            after, refused = self._poll(me, row, source)
            if refused:
                yield Step(f'{self.side} asks S: refused', {self.side: refused, 'source': after})
                return
            report = settling.of_source(source, hasty='h' in self.plants)
            step = self._received(me, ask, 'S', report)
            yield step._replace(changes={**step.changes, 'source': after})

    def ask_destination(self, me: Conductor, row: Row, host: Destination, name: str, part: str) -> Steps:
        """Poll a destination, wherever that is what comes next."""
        ask = self._what_to_ask(me, row, name)
        if not ask:
            return
        if host.up in (Up.DEAD, Up.UNREACHABLE):
            yield self._received(me, ask, name, settling.DOWN)
        elif host.up == Up.UP:
            after, refused = self._poll(me, row, host)
            if refused:
                yield Step(f'{self.side} asks {name}: refused', {self.side: refused, part: after})
                return
            report = settling.of_destination(host)
            if report == settling.MISSING and ask != 'settle':
                # It waits for the observation. The poll has raised the epoch.
                yield Step(f'{self.side} asks {name}, whose hypervisor hangs', {part: after})
                return
            step = self._received(me, ask, name, report, host.work)
            yield step._replace(changes={**step.changes, part: after})

    def _what_to_ask(self, me: Conductor, row: Row, host: str) -> str:
        """Return why the conductor asks a host now: first, settle, once, job, pre; or ''."""
        if not self.owns(me, row):
            return ''
        here = me.at[0]
        if here == 'ask':
            return 'first' if host in me.at[1] else ''
        if here == 'ask once':
            return 'once' if me.at[2] == host else ''
        if here == 'settle' and host == 'S':
            return 'settle'
        if here == 'half' and host == row.destination:
            return 'settle'
        if here == 'run':
            act = next_act(row, self.index, me)
            if act is Next.SETTLE and host == 'S':
                return 'settle'
            if act is Next.AWAIT_JOB and host == 'S':
                return 'job'
            if act is Next.AWAIT_PRE and host == row.destination:
                return 'pre'
        return ''

    def _poll(
        self, me: Conductor, row: Row, host: Source | Destination
    ) -> tuple[Source | Destination, Conductor | None]:
        """Return the host with the epoch raised, or the conductor refused."""
        if row.boot('S' if isinstance(host, Source) else row.destination) != host.boot:
            # A dead boot's registration was committed late: it refuses, and registers again.
            return host._replace(up=Up.STARTING) if host.up == Up.UP else host, me._replace(at=('refused',))
        if me.epoch < host.seen or (me.epoch == host.seen and host.seen_of not in (self.index, NO_OWNER)):
            return host, me._replace(at=('refused', host.seen))
        return host._replace(
            seen=me.epoch, seen_of=NO_OWNER if row.destination == 'E' and isinstance(host, Destination) else self.index
        ), None

    def _received(self, me: Conductor, ask: str, name: str, report: Host, work: str = '') -> Step:
        down = report == settling.DOWN
        label = f'(epoch {me.epoch}) asks {name}: {report.observed}{" " + report.verdict if report.verdict else ""}'
        run = me._replace(at=('run',))
        if ask == 'first':
            left = me.at[1].replace(name, '')
            return self.step(label, me._replace(at=('ask', left)) if left else run)
        if ask == 'once':
            return self.step(label, me._replace(at=('defer', *me.at[1:])) if down else run)
        if ask == 'job':
            return self.step(label, run if report.observed in _JOB else me._replace(at=('job ended',)))
        if ask == 'pre':
            return self.step(f'asks {name} for the preparation: {"down" if down else work}', self._pre(run, down, work))
        if name == 'S':
            return self.step(label, me._replace(at=('half', me.at == ('settle', True), report)))
        return self.step(label, me._replace(at=('both', *me.at[1:], report)))

    def _pre(self, run: Conductor, down: bool, work: str) -> Conductor:
        if down or work == 'failed':
            return run._replace(must_abort=True)
        if work == 'prepared':
            return run._replace(at=('prepared',))
        return run if work else run._replace(at=('pre again',))
