# SPDX-License-Identifier: Apache-2.0

"""Every do and undo, repeated at once, twice, and after each later step, changes nothing visible.

The steps are those of the sagas themselves; each is run again by the conductor that has just done it, and what it sends
is sent again, so that the hosts are asked again too.
"""

import contextlib
import copy
import dataclasses

import pytest

from migrator.conductor.tasks import cold_migrate, evacuate, live_migrate, resize_here
from migrator.saga.saga import Done, Parked, Saga
from migrator.simulator import scenarios
from migrator.simulator.actors.operator import Operator
from migrator.simulator.monitor import Monitor
from migrator.testing.cloud import SimulatedCloud

#: Seconds that what was asked for again gets to happen.
WHILE = 1.0
PIVOTS = ('live_migration', 'evacuate', 'finish_migration', 'resize')
#: The fields of a row that record how the migration ran, and not what it did.
RUN_FIELDS = {'epoch', 'updated_at', 'history', 'tries', 'created_at', 'started_at', 'ended_at'}
RUN_FIELDS |= {'wait_kind', 'wait_hosts', 'wait_words'}
RUN_FIELDS |= {f'{what}_{how_much}' for what in ('memory', 'disk') for how_much in ('total', 'processed', 'remaining')}

#: Path -> how many steps are done there, and how many undone; a change of the saga changes it.
DONE = {
    'success': (10, 0),
    'second candidate': (13, 2),
    'driver fails': (5, 3),
    'abort running': (5, 3),
    # What was cancelled in the queue is not undone at the source.
    'abort queued': (15, 2),
    'pre fails': (3, 2),
    # What was done before the guest moves again counts, too.
    'cleanup first': (15, 3),
    'brought back': (20, 0),
    'evacuation': (6, 0),
    'evacuation retried': (9, 2),
    'evacuation fails': (3, 2),
    'evacuated while running': (6, 0),
    'source returns during the start': (6, 0),
    'evacuated back': (12, 0),
    'cold': (9, 0),
    'cold reverted': (6, 5),
    'cold fails': (5, 3),
    'cold power-off fails': (3, 2),
    'resize': (15, 5),
    'resize here': (7, 0),
    'resize here reverted': (4, 3),
    'resize here fails': (3, 3),
    'resize here retried': (9, 6),
}
#: The paths with every step and every undo of their saga.
SHORTEST = ('success', 'driver fails', 'evacuation', 'evacuation fails')


class Again:
    """A saga whose steps each run again, and a check of whether that has changed anything."""

    def __init__(self, cloud):
        self.cloud = cloud
        self.pairs = 0
        self.changed = []
        self.dones = {}
        self.wrapped = {}

    def saga(self, saga, way='do'):
        """Return a saga whose bodies are run again and again.

        :param way: 'undo' for a saga that takes back what another one has done.
        """
        items = []
        for group in saga.groups:
            steps = tuple(
                dataclasses.replace(
                    step,
                    do=self.body(step.name, way, step.do),
                    undo=step.undo and self.body(step.name, 'undo', step.undo),
                )
                for step in group
            )
            items.append(steps if len(steps) > 1 else steps[0])
        return Saga(*items, settle=saga.settle, abandon=saga.abandon)

    def body(self, name, direction, real):
        if (real, direction) in self.wrapped:
            return self.wrapped[real, direction]

        def again(m):
            verdict = real(m)
            is_done = isinstance(verdict, Done)
            # The pivot never returns Done itself; once it was sent, it must be safe to send again.
            if is_done or (name in PIVOTS and isinstance(verdict, Parked)):
                done = self.dones.setdefault((m.row.uuid, m.attempt, direction), [])
                if name not in [known for known, _body in done]:
                    done.append((name, real))
                if is_done:
                    self.run_again(m, name, direction, done)
            return verdict

        self.wrapped[real, direction] = again
        return again

    def run_again(self, m, name, direction, done):
        # The step itself twice more, each earlier one once more.
        for earlier, body in [*done, done[-1]]:
            before = self.seen()
            # As if no report had been received: the hosts are asked again.
            reports, writes = dict(m.replies.reports), m.writes
            m.writes = copy.deepcopy(writes)
            m.replies.reports = {key: report for key, report in reports.items() if key[1] != earlier}
            with contextlib.suppress(AssertionError):
                body(m)
            m.tools.threads.sleep(WHILE)
            m.replies.reports = {**m.replies.reports, **reports}
            m.writes = writes
            self.pairs += 1
            after = self.seen()
            if after != before:
                self.changed.append(
                    f'{earlier} {direction} again after {name} {direction}: {difference(before, after)}'
                )

    def seen(self):
        """Return what can be seen of the cloud, without RUN_FIELDS."""
        world = self.cloud.monitor.snapshot()
        return {
            'instances': {uuid: plain(one) for uuid, one in world.instances.items()},
            'migrations': {uuid: plain(one) for uuid, one in world.migrations.items()},
            'step_log': {uuid: [plain(one) for one in records] for uuid, records in world.step_log.items()},
            'allocations': {uuid: one.holders for uuid, one in world.providers.items()},
            'guests': {
                host.name: {
                    uuid: (guest.state, guest.job, sorted(host.parts.get(uuid, ())))
                    for uuid, guest in host.guests.items()
                }
                for host in world.hosts.values()
            },
            'sizes': {host.name: (host.sizes, host.resizing) for host in world.hosts.values()},
            'kept': {host.name: host.persistent for host in world.hosts.values()},
            'waiting': {host.name: host.waiting for host in world.hosts.values()},
            'cleanups': [plain(one) for one in world.cleanups],
        }


def plain(one):
    found = {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
    if isinstance(found.get('input'), dict):
        # What a move is bound to is read anew for each try.
        found['input'] = {key: value for key, value in found['input'].items() if key != 'instance_generation'}
    return {name: value for name, value in found.items() if name not in RUN_FIELDS}


def difference(before, after):
    return '; '.join(f'{key}: {before[key]} -> {after[key]}' for key in before if before[key] != after[key])


@pytest.mark.parametrize(
    'name', [pytest.param(name, marks=() if name in SHORTEST else pytest.mark.slow) for name in DONE]
)
def test_a_step_done_again_changes_nothing(name, backend, monkeypatch, record_property):
    path = scenarios.BY_NAME[name]
    again = Again(None)
    for task in (live_migrate, evacuate, cold_migrate, resize_here):
        monkeypatch.setattr(task, 'saga', lambda real=task.saga: again.saga(real()))
    for task in (cold_migrate, resize_here):
        monkeypatch.setattr(task, 'reverts', lambda real=task.reverts: again.saga(real(), 'undo'))
    cloud = again.cloud = SimulatedCloud(
        backend.directory, path.hosts, backend=backend, options=path.options, **path.knobs
    )
    cloud.monitor = Monitor(cloud)
    try:
        operator = Operator(cloud)
        path.act(operator, lambda: None)
        operator.finish()
        assert not operator.judge(cloud.monitor)
        assert not again.changed, '\n'.join(again.changed)
        assert cloud.migrations()[-1].status == path.ends[-1]
    finally:
        cloud.monitor.close()
        cloud.stop()
    steps = {
        way: sum(len(done) for (_, _, direction), done in again.dones.items() if direction == way)
        for way in ('do', 'undo')
    }
    assert (steps['do'], steps['undo']) == DONE[name]
    # Of n steps each is run again after itself, twice, and after each later one.
    wanted = sum(
        place + 2
        for (_, _, direction), done in again.dones.items()
        for place, (step, _body) in enumerate(done)
        if step not in PIVOTS or direction != 'do'
    )
    assert again.pairs == wanted
    record_property('pairs', again.pairs)


def test_every_step_of_the_saga_is_run_again():
    for task, forward, back in (
        (live_migrate, 'success', 'driver fails'),
        (evacuate, 'evacuation', 'evacuation fails'),
        (cold_migrate, 'cold', 'cold fails'),
    ):
        steps = task.saga().steps
        assert DONE[forward] == (len(steps), 0)
        assert DONE[back][1] == len({step.undo for step in steps if step.undo})
    # The first saga runs up to the decision. The pivot is done before the second one begins.
    undecided = [step.name for step in cold_migrate.saga().steps].index('confirm_migration_at_source')
    assert DONE['cold reverted'] == (undecided, len(cold_migrate.reverts().steps) - 1)
    steps = resize_here.saga().steps
    assert DONE['resize here'] == (len(steps), 0)
    # The next attempt finds no host, and returns the allocation once more.
    assert DONE['resize here fails'][1] == len({step.undo for step in steps if step.undo}) + 1
    undecided = [step.name for step in steps].index('confirm_resize')
    assert DONE['resize here reverted'] == (undecided, len(resize_here.reverts().steps) - 1)
