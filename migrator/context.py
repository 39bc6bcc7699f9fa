# SPDX-License-Identifier: Apache-2.0

"""The context of a request, carried on every call; and what a thread works on, for the lines that it logs."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any

from oslo_context import context as oslo_context


class RequestContext(oslo_context.RequestContext):
    """Who asks, and under which request id.

    It is oslo.context's context as it stands; only :meth:`from_primitive` and :meth:`to_primitive` are added, for the
    form in which it travels with an RPC message: JSON-safe, and without the token.
    """

    def to_primitive(self) -> dict[str, Any]:
        """Return the JSON-safe form that travels with a message; it holds no token."""
        return {
            'request_id': self.request_id,
            'global_request_id': self.global_request_id,
            'user_id': self.user_id,
            'project_id': self.project_id,
            'roles': list(self.roles),
            'is_admin': bool(self.is_admin),
        }

    @classmethod
    def from_primitive(cls, values: dict[str, Any]) -> RequestContext:
        """Return the context that :meth:`to_primitive` wrote."""
        known = ('request_id', 'global_request_id', 'user_id', 'project_id', 'roles', 'is_admin')
        return cls(overwrite=False, **{key: values[key] for key in known if values.get(key) is not None})


def admin_context(request_id: str | None = None) -> RequestContext:
    """Return the context under which a service acts on its own account.

    :param request_id: the request that caused the act, where there was one; that which this thread works on
        (:func:`about`), unless given.
    """
    if request_id is None:
        known = subject().request
        request_id = known.request_id if known is not None else None
    return RequestContext(is_admin=True, overwrite=False, request_id=request_id)


@dataclasses.dataclass(frozen=True)
class Subject:
    """What a thread works on.

    :ivar request: the request that caused it.
    """

    request: RequestContext | None = None
    migration_uuid: str | None = None
    instance_uuid: str | None = None


# A green thread has a context of its own too, so that it is kept apart in a process that eventlet has patched.
_subject: contextvars.ContextVar[Subject] = contextvars.ContextVar('migrator_subject')
_NOTHING = Subject()


def subject() -> Subject:
    """Return what this thread works on."""
    return _subject.get(_NOTHING)


@contextlib.contextmanager
def about(
    request: RequestContext | None = None, migration_uuid: str | None = None, instance_uuid: str | None = None
) -> Iterator[None]:
    """Keep, for this thread and this block, what it works on; what is not given stays as it was outside.

    A thread that is started within begins with nothing: a pool's work says for itself what it is about.
    """
    outer = subject()
    if migration_uuid is None or migration_uuid == outer.migration_uuid:
        migration_uuid = outer.migration_uuid
        instance_uuid = instance_uuid or outer.instance_uuid
    # Else it is another migration, and the instance around it is not its own.
    token = _subject.set(Subject(request or outer.request, migration_uuid, instance_uuid))
    try:
        yield
    finally:
        _subject.reset(token)
