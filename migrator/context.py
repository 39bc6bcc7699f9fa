# SPDX-License-Identifier: Apache-2.0

"""The context of a request, sent with every call, and the subject of a thread, for its log lines."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import oslo_context.context

#: The form of a ``traceparent`` of W3C's trace context.
TRACEPARENT = re.compile('00-([0-9a-f]{32})-([0-9a-f]{16})-01')


class RequestContext(oslo_context.context.RequestContext):
    """The caller and the id of a request.

    This is oslo.context's context with :meth:`from_primitive` and :meth:`to_primitive` added, for the form that travels
    with an RPC message: JSON-safe and without the token.

    :ivar traceparent: the span whose part the request is, if it is traced; see :mod:`migrator.tracing`.
    """

    traceparent: str | None = None

    def to_policy_values(self) -> Any:
        """Return what a policy may compare, as in nova also ``is_admin``."""
        # A dict of its own: that of oslo.context warns of each key that is added to it.
        return {**super().to_policy_values(), 'is_admin': bool(self.is_admin)}

    def to_primitive(self) -> dict[str, Any]:
        """Return the JSON-safe form that travels with a message, without the token."""
        traced = {'traceparent': self.traceparent} if self.traceparent is not None else {}
        return {
            **traced,
            'request_id': self.request_id,
            'global_request_id': self.global_request_id,
            'user_id': self.user_id,
            'project_id': self.project_id,
            'roles': list(self.roles),
            'is_admin': bool(self.is_admin),
        }

    @classmethod
    def from_primitive(cls, values: dict[str, Any]) -> RequestContext:
        """Return the context that :meth:`to_primitive` wrote, without a ``traceparent`` of another form."""
        known = ('request_id', 'global_request_id', 'user_id', 'project_id', 'roles', 'is_admin')
        found = cls(overwrite=False, **{key: values[key] for key in known if values.get(key) is not None})
        header = values.get('traceparent')
        # A host keeps it for as long as its work lasts.
        found.traceparent = header if isinstance(header, str) and TRACEPARENT.fullmatch(header) else None
        return found


def admin_context(request_id: str | None = None) -> RequestContext:
    """Return the context for what a service does with its own rights.

    :param request_id: the request that caused it, if any; by default the request that this thread works on
        (:func:`about`).
    """
    known = subject()
    if request_id is None and known.request is not None:
        request_id = known.request.request_id
    found = RequestContext(is_admin=True, overwrite=False, request_id=request_id)
    found.traceparent = known.traceparent
    return found


@dataclasses.dataclass(frozen=True)
class Subject:
    """The subject of a thread's work.

    :ivar request: the request that caused the work.
    :ivar traceparent: the span whose part the work is; None: it is not traced.
    """

    request: RequestContext | None = None
    migration_uuid: str | None = None
    instance_uuid: str | None = None
    traceparent: str | None = None


# Each green thread has its own context too, so this also works in a process that eventlet has patched.
_subject: contextvars.ContextVar[Subject] = contextvars.ContextVar('migrator_subject')
_NOTHING = Subject()


def subject() -> Subject:
    """Return the subject of this thread's work."""
    return _subject.get(_NOTHING)


@contextlib.contextmanager
def about(
    request: RequestContext | None = None,
    migration_uuid: str | None = None,
    instance_uuid: str | None = None,
    traceparent: str | None = None,
) -> Iterator[None]:
    """Set the subject of this thread's work for a block. An omitted value keeps its value from outside.

    A thread that is started within the block has no subject: the work of a pool sets its own.
    """
    outer = subject()
    if migration_uuid is None or migration_uuid == outer.migration_uuid:
        migration_uuid = outer.migration_uuid
        instance_uuid = instance_uuid or outer.instance_uuid
    # Another migration must not inherit the instance.
    span = traceparent or (request.traceparent if request is not None else None) or outer.traceparent
    token = _subject.set(Subject(request or outer.request, migration_uuid, instance_uuid, span))
    try:
        yield
    finally:
        _subject.reset(token)
