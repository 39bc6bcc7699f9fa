# SPDX-License-Identifier: Apache-2.0

"""A migration is one trace across the API, conductors, hosts and Placement, also after a takeover."""

import collections
import sys
import threading

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from migrator import context
from migrator.cmd import api
from migrator.runtime import tracing
from migrator.testing.cloud import SimulatedCloud
from tests.functional import state
from tests.functional.faults import LONG, faults
from tests.functional.test_measures import LIVE

pytestmark = pytest.mark.simulated(reason='it reads the spans of processes in this process')

AT_SOURCE = {'check_can_live_migrate_source', 'live_migration', 'post_live_migration_at_source'}


class Traces:
    """The spans that the processes of a cloud have exported."""

    def __init__(self):
        self.exporter = InMemorySpanExporter()

    def tree(self, migration):
        """Return each span's name, process and parent's name; every span is part of the migration's trace."""
        spans = self.exporter.get_finished_spans()
        assert {f'{span.context.trace_id:032x}' for span in spans} == {migration.uuid.replace('-', '')}
        by_id = {span.context.span_id: span for span in spans}
        assert len(by_id) == len(spans), 'each span has an id of its own'
        for span in spans:
            if span.parent is not None:
                outer = by_id[span.parent.span_id]
                assert outer.start_time <= span.start_time <= span.end_time <= outer.end_time, (span.name, outer.name)
        return [
            (span.name, span.resource.attributes['host.name'], span.parent and by_id[span.parent.span_id].name)
            for span in spans
        ]


@pytest.fixture
def traces():
    return Traces()


class TracedCloud(SimulatedCloud):
    def __init__(self, traces, *args, **more):
        self.traces = traces
        super().__init__(*args, **more)

    def tracer_for(self, name):
        processor, clock = SimpleSpanProcessor(self.traces.exporter), self.threads_for(name).clock
        return tracing.make_tracer(processor, name, name, clock)

    def start_api(self):
        self.app = api.logged(super().start_api(), tracer=self.tracer_for('api'))
        return self.app


@pytest.fixture
def traced(backend, traces):
    """Return a cloud whose processes are traced."""
    cloud = TracedCloud(traces, backend.directory, backend=backend, hosts=3, seed=1)
    yield cloud
    cloud.stop()


def end(cloud, instance):
    cloud.wait(LONG)
    return cloud.migrations(instance)[-1]


def test_migration_is_one_trace_of_the_api_the_conductor_the_hosts_and_placement(traced, traces):
    instance = traced.boot('one', 'host1')
    traces.exporter.clear()
    assert traced.live_migrate(instance, 'host2').status_int == 202
    migration = end(traced, instance)
    assert migration.status == 'completed'
    tree = traces.tree(migration)
    assert ('live-migration', 'conductor1', None) in tree
    assert ('POST /v2.1/servers/{server_id}/action', 'api', 'live-migration') in tree
    steps = [name for name, process, parent in tree if (process, parent) == ('conductor1', 'live-migration')]
    assert steps == LIVE
    works = {(name, parent) for name, process, parent in tree if process.startswith('host')}
    on_hosts = [step for step in LIVE if 'migrat' in step]
    assert works == {(f'{step} at {"host1" if step in AT_SOURCE else "host2"}', step) for step in on_hosts}
    requests = [(name, parent) for name, process, parent in tree if name.startswith('Placement')]
    assert ('Placement POST', 'move_allocation') in requests
    assert ('Placement PUT', 'release_source_allocation') in requests


def test_conductor_that_takes_over_continues_the_trace(traced, traces):
    instance = traced.boot('one', 'host1')
    traces.exporter.clear()
    stall = faults(traced, 'host1').stall('copying')
    assert traced.live_migrate(instance, 'host2').status_int == 202
    traced.simulation.run_until(stall.reached.is_set)
    traced.simulation.advance(1)
    traced.kill('conductor1')
    traced.start_conductor('conductor2')
    traced.simulation.advance(60)
    stall.release()
    migration = end(traced, instance)
    assert migration.status == 'completed'
    tree = traces.tree(migration)
    by = {name: process for name, process, parent in tree if parent == 'live-migration' and process != 'api'}
    pivot = LIVE.index('live_migration')
    assert by == {step: 'conductor1' if LIVE.index(step) < pivot else 'conductor2' for step in LIVE}
    assert ('live-migration', 'conductor2', None) in tree
    assert ('live_migration at host1', 'host1', 'live_migration') in tree


def test_failed_steps_undos_and_further_attempts_are_in_the_trace(traced, traces):
    instance = traced.boot('one', 'host1')
    traces.exporter.clear()
    faults(traced, 'host2').fail('pre_live_migration', 'no room')
    assert traced.live_migrate(instance).status_int == 202
    migration = end(traced, instance)
    assert (migration.status, migration.attempt) == ('completed', 2)
    names = [name for name, _, parent in traces.tree(migration) if parent == 'live-migration']
    assert names.count('pre_live_migration') == names.count('move_allocation') == 2
    assert {'undo pre_live_migration', 'undo move_allocation'} <= set(names)
    (failed,) = [
        span.attributes
        for span in traces.exporter.get_finished_spans()
        if span.name == 'pre_live_migration' and not span.status.is_unset
    ]
    assert (failed['migrator.result'], 'no room' in failed['migrator.reason']) == ('failed', True)


@pytest.mark.parametrize(
    'header',
    [
        '00-{other}-00f067aa0ba902b7-01',
        '00-{trace}-0000000000000000-01',
        '00-{trace}-00f067aa0ba902b7-01' + 1000 * '0',
        17,
    ],
)
def test_context_that_is_not_valid_leaves_the_work_to_the_trace_of_its_migration(traced, traces, header):
    instance = traced.boot('one', 'host1')
    traces.exporter.clear()
    serve = context.RequestContext.from_primitive

    def forged(values):
        trace = (values.get('traceparent') or '').split('-')[1:2]
        if trace and isinstance(header, str):
            values = {**values, 'traceparent': header.format(trace=trace[0], other=32 * 'a')}
        elif trace:
            values = {**values, 'traceparent': header}
        return serve(values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context.RequestContext, 'from_primitive', forged)
        assert traced.live_migrate(instance, 'host2').status_int == 202
        migration = end(traced, instance)
    assert migration.status == 'completed'
    assert ('live_migration at host1', 'host1', 'live-migration') in traces.tree(migration)


def test_migration_that_is_not_traced_calls_nothing_of_it_and_sends_nothing(cloud):
    """The cost without traces: no function of the modules is called, and no message grows."""
    instance = cloud.boot('one', 'host1')
    called, sizes = collections.Counter(), []
    cloud.bus.faults = lambda message: sizes.append('traceparent' in message.body)

    def count(frame, event, _argument):
        name = frame.f_code.co_filename.rpartition('/')[2]
        times = frame.f_code.co_qualname.startswith('StepTimes.')
        if event == 'call' and (name == 'tracing.py' or times):
            called['times' if times else name] += 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        assert cloud.live_migrate(instance, 'host2').status_int == 202
        cloud.wait()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    state.completed(cloud, instance, 'host2')
    assert called['times'] > len(LIVE), 'it counts'
    assert set(called) == {'times'}
    assert sizes
    assert not any(sizes)
