# SPDX-License-Identifier: Apache-2.0

"""A request in the API: its caller, its version, and the services that answer it."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Collection
from typing import Any

import microversion_parse
import webob
import webob.exc
from oslo_config import cfg
from oslo_policy import policy

from migrator import exception, executors
from migrator.conductor import rpcapi
from migrator.context import RequestContext
from migrator.db.api import Database
from migrator.objects import Migration, base, times
from migrator.views import timeline

#: Longer bodies are not read. This is nova's limit.
MAX_BODY = 114688
#: The greatest nesting of objects and arrays. No body of this API needs more than three levels.
MAX_DEPTH = 20

#: The characters that no database can store: NUL, and halves of surrogate pairs.
_UNSTORABLE = re.compile('[\0\ud800-\udfff]')


class Streams:
    """How many event streams are open, of which there is a maximum."""

    def __init__(self, threads: executors.Threads) -> None:
        self._lock = threads.lock()
        self._open = 0

    def begin(self, most: int) -> bool:
        """Count one more, and return whether it is allowed. :meth:`end` has to follow if it is.

        :param most: how many may be open.
        """
        with self._lock:
            if self._open >= most:
                return False
            self._open += 1
            return True

    def end(self) -> None:
        """Count one less."""
        with self._lock:
            self._open -= 1


@dataclasses.dataclass(frozen=True)
class Services:
    """The services that the handlers use.

    :ivar sagas: the sagas that explain what a migration does next.
    :ivar drain_command: the beginning of the operator's commands about drains.
    """

    conf: cfg.ConfigOpts
    database: Database
    conductor: rpcapi.ConductorAPI
    threads: executors.Threads
    sagas: timeline.Sagas
    enforcer: policy.Enforcer
    streams: Streams
    drain_command: str


class Request(webob.Request):  # type: ignore[misc]  # WebOb has no types
    """A webob request that knows its context and version.

    Both are in the WSGI environment, because keystonemiddleware creates a request object of its own.
    """

    @property
    def services(self) -> Services:
        """The services that the handlers use."""
        found: Services = self.environ['migrator.services']
        return found

    @property
    def context(self) -> RequestContext:
        """The caller, after the authentication."""
        found: RequestContext = self.environ['migrator.context']
        return found

    @property
    def request_id(self) -> str:
        """The id of this request."""
        return str(self.environ['openstack.request_id'])

    @property
    def is_own(self) -> bool:
        """Whether the request is for migrator's own API, which has no microversions."""
        return bool(self.path_info.startswith('/migrator/'))

    @property
    def version(self) -> microversion_parse.Version:
        """The version of the request."""
        found: microversion_parse.Version = self.environ['migrator.version']
        return found

    @property
    def given(self) -> dict[str, str]:
        """The parameters of the query that the version's schema knows. A repeated one has its last value."""
        found: dict[str, str] = self.environ['migrator.given']
        return found

    def concerns(self, migration: Migration) -> None:
        """Record that the request concerns a migration, so that it is a part of its trace."""
        self.environ['migrator.migration'] = migration.uuid

    def since(self, minor: int) -> bool:
        """Return whether the version of the request is 2.``minor`` or later."""
        return bool(self.version.minor >= minor)

    def can(self, rule: str, target: dict[str, Any] | None = None) -> bool:
        """Return whether a policy allows the caller to do it.

        :param target: the owner of the object; None: the caller's own project.
        """
        try:
            self.authorize(rule, target)
        except exception.Forbidden:
            return False
        return True

    def authorize(self, rule: str, target: dict[str, Any] | None = None) -> None:
        """Raise unless a policy allows the caller to do it.

        :param target: the owner of the object; None: the caller's own project.
        :raises migrator.exception.Forbidden: the policy does not allow it.
        """
        if target is None:
            target = {'project_id': self.context.project_id, 'user_id': self.context.user_id}
        try:
            allowed = self.services.enforcer.authorize(rule, target, self.context)
        except policy.InvalidScope:
            allowed = False
        if not allowed:
            raise exception.Forbidden(action=rule)

    def may(self, rule: str) -> bool:
        """Return whether a policy allows the caller to do it."""
        try:
            self.authorize(rule)
        except exception.Forbidden:
            return False
        return True

    def json_document(self) -> Any:
        """Return the JSON document in the body.

        :raises migrator.exception.Invalid: the body is not JSON, is nested too deep, or has a character that no
            database can store.
        :raises webob.exc.HTTPException: the body is too long, or has another content type.
        """
        # wsgiref sets text/plain if the client sends no content type.
        if self.content_type not in ('', 'application/json', 'text/plain'):
            raise webob.exc.HTTPUnsupportedMediaType('Unsupported Content-Type: send application/json.')
        if self.content_length is not None and self.content_length > MAX_BODY:
            raise webob.exc.HTTPRequestEntityTooLarge(f'The body is longer than {MAX_BODY} bytes.')
        try:
            raw = self.body_file.read(MAX_BODY + 1) if self.content_length is None else self.body
        except OSError:  # also WebOb's error for a disconnected client
            raise exception.Invalid('Malformed request body: it ended before its Content-Length.') from None
        if len(raw) > MAX_BODY:
            raise webob.exc.HTTPRequestEntityTooLarge(f'The body is longer than {MAX_BODY} bytes.')
        if not raw:
            raise exception.Invalid('Malformed request body: it is empty: send a JSON object.')
        try:
            document = json.loads(raw, parse_constant=_no_such_number)
        except RecursionError:
            raise _too_deep() from None
        except ValueError as error:
            # The message of the decoder quotes only positions.
            raise exception.Invalid(f'Malformed request body: it is not JSON ({error}).') from None
        _check_part(document, '', MAX_DEPTH)
        return document


Handler = Callable[..., webob.Response]


def _no_such_number(name: str) -> Any:
    raise ValueError(f'{name} is not a JSON number')


def _too_deep() -> exception.Invalid:
    return exception.Invalid(
        f'Malformed request body: its objects and arrays are nested more than {MAX_DEPTH} deep. Nest them less.'
    )


def _check_part(part: Any, path: str, depth: int) -> None:
    """Raise if a part of a body is nested too deep, or has a character that no database can store.

    :param path: the names that lead to the part.
    :param depth: how many levels the part may have.
    """
    if isinstance(part, str):
        check_text(path or 'the body', part)
    if not isinstance(part, (dict, list)):
        return
    if depth <= 0:
        raise _too_deep()
    if isinstance(part, list):
        for item in part:
            _check_part(item, path, depth - 1)
        return
    for name, item in part.items():
        check_text(path or 'the body', name)
        _check_part(item, f'{path}.{name}' if path else name, depth - 1)


def check_text(path: str, text: str) -> None:
    """Raise if a text of a request has a character that no database can store.

    :param path: the name of the field.
    :raises migrator.exception.ValidationError: it has one.
    """
    found = _UNSTORABLE.search(text)
    if found is not None:
        raise exception.ValidationError(
            path=path,
            value=base.text(text, 200),
            detail=f'No database can store its character U+{ord(found[0]):04X}. Leave the character out.',
        )


def answer(body: Any, status: int = 200) -> webob.Response:
    """Return a response that holds a JSON document, which may have aware times."""
    text = json.dumps(body, default=times.as_json)
    return webob.Response(text=text, status=status, content_type='application/json', charset='UTF-8')


def wrong_method(request: Request, allowed: Collection[str]) -> webob.exc.HTTPMethodNotAllowed:
    """Return the error for a URL that does not have the method of the request.

    :param allowed: the methods that it has.
    """
    names = {*allowed} | ({'HEAD'} if 'GET' in allowed else set())
    methods = ', '.join(sorted(names))
    text = f'This URL does not have the method: {request.method} {request.path_info}. Allowed: {methods}.'
    return webob.exc.HTTPMethodNotAllowed(text, headers=[('Allow', methods)])


def accepted(status: int = 202) -> webob.Response:
    """Return the empty response with which nova answers an action."""
    response = webob.Response(status=status)
    response.content_type = 'application/json'
    return response
