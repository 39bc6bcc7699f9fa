# SPDX-License-Identifier: Apache-2.0

"""Traces: one for each migration, to which each service that takes part adds spans.

The id of a trace is the uuid of its migration, and those of the spans of the migration and its steps follow from it. So
no service stores or sends them, and a conductor that takes a migration over continues its trace. Only
:mod:`migrator.runtime.tracing` knows OpenTelemetry. See ``doc/source/decisions/0041-traces.rst``.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from migrator import context, executors

_UUID = re.compile('[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')


class Place(NamedTuple):
    """The place of a span: the id of its trace and its own, both in hexadecimal."""

    trace: str
    span: str

    @property
    def header(self) -> str:
        """The ``traceparent`` of what is part of the span."""
        return f'00-{self.trace}-{self.span}-01'


def read(header: object) -> Place | None:
    """Return the place in a ``traceparent``, or None if it is not valid."""
    found = context.TRACEPARENT.fullmatch(header) if isinstance(header, str) else None
    return Place(*found.groups()) if found and any(found[2].strip('0')) and found[1].strip('0') else None


def of_migration(uuid: str) -> Place | None:
    """Return the place of the span of a migration, or None if its uuid is not valid."""
    return Place(uuid.replace('-', ''), _span(uuid)) if _UUID.fullmatch(uuid) else None


def of_step(uuid: str, attempt: int, step: str, direction: str) -> Place:
    """Return the place of the span of a step of a migration."""
    return Place(uuid.replace('-', ''), _span(uuid, attempt, step, direction))


def _span(*of: object) -> str:
    return hashlib.sha256(repr(of).encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Span:
    """What one service did for a migration.

    :ivar parent: the place of the span that it is part of; None: it is the span of the migration.
    :ivar place: its own place; None: it gets a new one in the trace of its parent.
    """

    name: str
    parent: Place | None
    began: datetime.datetime
    ended: datetime.datetime
    place: Place | None = None
    failed: bool = False
    attributes: Mapping[str, str | int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Tracer:
    """What a service records its spans with.

    :ivar export: takes a span that has ended. It returns at once, and raises nothing.
    """

    clock: executors.Clock
    export: Callable[[Span], None]

    def now(self) -> datetime.datetime:
        """Return the time at which a span begins or ends."""
        return self.clock.now()


class Around:
    """An object with functions around some of its methods, which measure or record each call.

    :param inner: the object.
    :param every: is called in place of every method.
    :param around: name of a method -> what is called in its place, with the method and its arguments.
    """

    def __init__(self, inner: Any, every: Callable[..., Any] | None = None, /, **around: Callable[..., Any]) -> None:
        self._inner = inner
        self._every = every
        self._around = around

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        around = self._around.get(name, self._every)
        if around is None:
            return found
        made = functools.partial(around, found)
        # The attributes that mark a method of an RPC object.
        made.__dict__.update(getattr(found, '__dict__', {}))
        return made


def traced_adapter(adapter: Any, tracer: Tracer) -> Any:
    """Return an adapter of keystoneauth1 whose requests are spans of the step that sends them."""

    def request(send: Callable[..., Any], url: str, method: str, **more: Any) -> Any:
        parent = read(context.subject().traceparent)
        if parent is None:
            return send(url, method, **more)
        began, code = tracer.now(), 0
        try:
            response = send(url, method, **more)
            code = response.status_code
        finally:
            attributes: dict[str, str | int] = {
                'http.request.method': method,
                'http.response.status_code': code,
                'url.path': url.partition('?')[0],
            }
            failed, ended = not 0 < code < 400, tracer.now()
            tracer.export(Span(f'Placement {method}', parent, began, ended, failed=failed, attributes=attributes))
        return response

    return Around(adapter, request=request)
