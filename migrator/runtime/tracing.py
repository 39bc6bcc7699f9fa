# SPDX-License-Identifier: Apache-2.0

"""The export of traces with OpenTelemetry, which is an extra.

Only a service that traces imports this module.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from migrator import executors, tracing

_SCOPE = InstrumentationScope('migrator')
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def to_collector(service: str, host: str, clock: executors.Clock) -> tuple[tracing.Tracer, Callable[[], None]]:
    """Return a tracer that sends to the collector of OpenTelemetry's environment variables.

    Spans wait in a bounded queue of the library, so that a collector that is away delays nothing.

    :param service: the name of the service, unless ``OTEL_SERVICE_NAME`` has another.
    :param host: the name of the host.
    :param clock: the clock of the spans.
    :returns: the tracer, and a function that sends the spans that are left and stops the export.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    processor = BatchSpanProcessor(OTLPSpanExporter())
    return make_tracer(processor, service, host, clock), processor.shutdown


def make_tracer(processor: SpanProcessor, service: str, host: str, clock: executors.Clock) -> tracing.Tracer:
    """Return a tracer that gives each span to a processor of OpenTelemetry.

    The ids of spans follow from the migration. So they are made without a tracer of the library, whose ids are random.

    :param processor: gets each span when it has ended.
    :param service: the name of the service, unless ``OTEL_SERVICE_NAME`` has another.
    :param host: the name of the host.
    :param clock: the clock of the spans.
    """
    resource = Resource.create({'host.name': host})
    if str(resource.attributes['service.name']).startswith('unknown_service'):
        resource = resource.merge(Resource({'service.name': service}))
    ids = RandomIdGenerator()

    def context_of(place: tracing.Place) -> trace.SpanContext:
        flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
        return trace.SpanContext(int(place.trace, 16), int(place.span, 16), is_remote=False, trace_flags=flags)

    def export(span: tracing.Span) -> None:
        place = span.place
        if place is None:
            assert span.parent is not None, 'only the span of a migration has no parent, and it has a place'
            place = tracing.Place(span.parent.trace, f'{ids.generate_span_id():016x}')
        status = trace.Status(trace.StatusCode.ERROR if span.failed else trace.StatusCode.UNSET)
        processor.on_end(
            ReadableSpan(
                span.name,
                context=context_of(place),
                parent=context_of(span.parent) if span.parent is not None else None,
                resource=resource,
                attributes=dict(span.attributes),
                status=status,
                start_time=_nanoseconds(span.began),
                end_time=_nanoseconds(max(span.began, span.ended)),
                instrumentation_scope=_SCOPE,
            )
        )

    return tracing.Tracer(clock, export)


def _nanoseconds(moment: datetime.datetime) -> int:
    return (moment - _EPOCH) // datetime.timedelta(microseconds=1) * 1000
