# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import datetime
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from oslo_config import cfg

from migrator import exception, executors, tracing
from migrator.conf import service
from migrator.runtime import process
from tests.unit.runtime.collector import Collector, collecting

UUID = '12345678-9abc-4def-8123-456789abcdef'
NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


def a_process(traces: bool) -> process.Process:
    conf = cfg.ConfigOpts()
    service.register_opts(conf)
    conf.register_opt(cfg.StrOpt('host', default='h1'))
    conf([], project='migrator', default_config_files=[], default_config_dirs=[])
    conf.set_override('trace_migrations', traces)
    return process.Process('migrator-conductor', conf, executors.NativeThreads())


def export(tracer: tracing.Tracer | None) -> None:
    migration = tracing.of_migration(UUID)
    assert tracer is not None
    assert migration is not None
    ended = NOON + datetime.timedelta(seconds=2.5)
    place = tracing.of_step(UUID, 1, 'complete', 'do')
    tracer.export(tracing.Span('complete', migration, NOON, ended, place, True, {'migrator.attempt': 1}))


def test_stop_sends_the_last_spans_to_the_collector_of_the_environment(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('OTEL_EXPORTER_OTLP_ENDPOINT', collector.url)
    monkeypatch.setenv('OTEL_RESOURCE_ATTRIBUTES', 'deployment.environment=test')
    made = a_process(traces=True)
    export(made.tracer())
    made.stop()
    ((path, request),) = collector.received
    assert path == '/v1/traces'
    (resource,) = request.resource_spans
    attributes = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert (attributes['service.name'], attributes['host.name']) == ('migrator-conductor', 'h1')
    assert attributes['deployment.environment'] == 'test'
    (span,) = resource.scope_spans[0].spans
    assert span.trace_id.hex() == UUID.replace('-', '')
    assert (span.name, span.status.code, span.end_time_unix_nano - span.start_time_unix_nano) == ('complete', 2, 25e8)
    assert (span.span_id.hex(), span.parent_span_id.hex()) == (
        tracing.of_step(UUID, 1, 'complete', 'do').span,
        tracing.of_migration(UUID)[1],  # type: ignore[index]
    )


def test_process_that_exits_without_a_stop_sends_the_last_spans(collector: Collector) -> None:
    code = 'from tests.unit.runtime import test_tracing as here; here.export(here.a_process(traces=True).tracer())'
    environment = {**os.environ, 'OTEL_EXPORTER_OTLP_ENDPOINT': collector.url}
    assert subprocess.run([sys.executable, '-c', code], env=environment, check=False).returncode == 0
    assert collector.spans() == ['complete']


def test_service_name_of_the_environment_is_kept(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('OTEL_EXPORTER_OTLP_ENDPOINT', collector.url)
    monkeypatch.setenv('OTEL_SERVICE_NAME', 'migrator-of-berlin')
    made = a_process(traces=True)
    export(made.tracer())
    made.stop()
    attributes = collector.received[0][1].resource_spans[0].resource.attributes
    assert {one.key: one.value.string_value for one in attributes}['service.name'] == 'migrator-of-berlin'


def test_collector_that_does_not_answer_delays_a_stop_by_two_seconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('OTEL_EXPORTER_OTLP_ENDPOINT', 'http://127.0.0.1:9')
    made = a_process(traces=True)
    export(made.tracer())
    began = time.monotonic()
    made.stop()
    assert time.monotonic() - began < process.LAST_SPANS + 3


def test_without_the_option_there_is_no_tracer() -> None:
    assert a_process(traces=False).tracer() is None


def test_option_without_the_extra_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in sys.modules if one.startswith(('opentelemetry', 'migrator.runtime.tracing'))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, 'opentelemetry', None)
    with pytest.raises(exception.ConfigurationError, match='install the extra "tracing"'):
        a_process(traces=True).tracer()


def test_option_without_the_exporter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'opentelemetry.exporter.otlp.proto.http.trace_exporter', None)
    with pytest.raises(exception.ConfigurationError, match=r'trace_exporter cannot .* install the extra "tracing"'):
        a_process(traces=True).tracer()


def test_environment_that_opentelemetry_refuses_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('OTEL_BSP_MAX_QUEUE_SIZE', '-1')
    with pytest.raises(exception.ConfigurationError, match=r'OTEL_\.\.\.: max_queue_size must be a positive integer'):
        a_process(traces=True).tracer()


def test_services_do_not_import_opentelemetry() -> None:
    code = 'import sys, migrator.cmd.api, migrator.cmd.conductor, migrator.cmd.compute, migrator.conductor.manager; '
    code += 'sys.exit(any(name.partition(".")[0] == "opentelemetry" for name in sys.modules))'
    assert subprocess.run([sys.executable, '-c', code], check=False).returncode == 0


@pytest.mark.parametrize(
    'header',
    [None, 17, '', 'x' * 10**6, f'00-{"0" * 32}-00f067aa0ba902b7-01', f'00-{"a" * 32}-{"0" * 16}-01', '00-a-b-01'],
)
def test_context_that_is_not_valid_has_no_place(header: object) -> None:
    assert tracing.read(header) is None


def test_context_is_read_as_it_was_written() -> None:
    place = tracing.of_step(UUID, 2, 'live_migration', 'undo')
    assert tracing.read(place.header) == place
    assert tracing.of_migration('not a uuid') is None
