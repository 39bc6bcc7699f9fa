# SPDX-License-Identifier: Apache-2.0

"""A request on its way through the API: who asks, in which version, and what there is to answer with."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from typing import Any

import microversion_parse
import webob
from oslo_config import cfg
from oslo_policy import policy

from migrator import exception, executors
from migrator.conductor import rpcapi
from migrator.context import RequestContext
from migrator.db.api import Database
from migrator.objects import base

#: Longer bodies are not read; nova's limit.
MAX_BODY = 114688
#: Objects and arrays within each other; no body of this API needs more than three.
MAX_DEPTH = 20

#: What no database can hold: NUL, and halves of surrogate pairs.
_UNSTORABLE = re.compile('[\0\ud800-\udfff]')


@dataclasses.dataclass(frozen=True)
class Services:
    """What the handlers work with."""

    conf: cfg.ConfigOpts
    database: Database
    conductor: rpcapi.ConductorAPI
    threads: executors.Threads
    enforcer: policy.Enforcer


class Request(webob.Request):  # type: ignore[misc]  # WebOb has no types
    """A webob request that knows its context and version.

    Both live in the WSGI environment, for keystonemiddleware makes a request object of its own in between.
    """

    @property
    def services(self) -> Services:
        """What there is to answer with."""
        found: Services = self.environ['migrator.services']
        return found

    @property
    def context(self) -> RequestContext:
        """Who asks, once that is known."""
        found: RequestContext = self.environ['migrator.context']
        return found

    @property
    def request_id(self) -> str:
        """The id of this request."""
        return str(self.environ['openstack.request_id'])

    @property
    def version(self) -> microversion_parse.Version:
        """The version that the request speaks."""
        found: microversion_parse.Version = self.environ['migrator.version']
        return found

    def since(self, minor: int) -> bool:
        """Whether the request speaks version 2.``minor`` or a later one."""
        return bool(self.version.minor >= minor)

    def can(self, rule: str, target: dict[str, Any] | None = None) -> bool:
        """Whether a policy lets the asker do it.

        :param target: whose it is done to; the asker's own project unless given.
        """
        try:
            self.authorize(rule, target)
        except exception.Forbidden:
            return False
        return True

    def authorize(self, rule: str, target: dict[str, Any] | None = None) -> None:
        """Raise unless a policy lets the asker do it.

        :param target: whose it is done to; the asker's own project unless given.
        :raises migrator.exception.Forbidden: it does not.
        """
        if target is None:
            target = {'project_id': self.context.project_id, 'user_id': self.context.user_id}
        try:
            allowed = self.services.enforcer.authorize(rule, target, self.context)
        except policy.InvalidScope:
            allowed = False
        if not allowed:
            raise exception.Forbidden(action=rule)

    def json_document(self) -> Any:
        """Return what the body says.

        :raises migrator.exception.Invalid: it is no JSON, is nested too deep, or has a character in it that no database
            can hold.
        :raises webob.exc.HTTPException: it is too long, or says that it is something else.
        """
        # wsgiref says text/plain where the client said nothing.
        if self.content_type not in ('', 'application/json', 'text/plain'):
            raise webob.exc.HTTPUnsupportedMediaType('Unsupported Content-Type: send application/json.')
        if self.content_length is not None and self.content_length > MAX_BODY:
            raise webob.exc.HTTPRequestEntityTooLarge(f'The body is longer than {MAX_BODY} bytes.')
        try:
            raw = self.body_file.read(MAX_BODY + 1) if self.content_length is None else self.body
        except OSError:  # WebOb's too
            raise exception.Invalid('Malformed request body: it ended before its Content-Length.') from None
        if len(raw) > MAX_BODY:
            raise webob.exc.HTTPRequestEntityTooLarge(f'The body is longer than {MAX_BODY} bytes.')
        try:
            document = json.loads(raw, parse_constant=_no_such_number)
        except RecursionError:
            raise _too_deep() from None
        except ValueError as error:
            # A decoder's message quotes no more than positions.
            raise exception.Invalid(f'Malformed request body: it is no JSON ({error}).') from None
        _check_part(document, '', MAX_DEPTH)
        return document


Handler = Callable[..., webob.Response]


def _no_such_number(name: str) -> Any:
    raise ValueError(f'{name} is no JSON number')


def _too_deep() -> exception.Invalid:
    return exception.Invalid(
        f'Malformed request body: its objects and arrays are nested more than {MAX_DEPTH} deep. Nest them less.'
    )


def _check_part(part: Any, path: str, depth: int) -> None:
    """Raise unless a part of a body may be handed on.

    :param path: the names that lead to it.
    :param depth: how many levels it may have.
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
    """Raise if a text of a request has a character in it that no database can hold.

    :param path: the name of the field.
    :raises migrator.exception.ValidationError: it has.
    """
    found = _UNSTORABLE.search(text)
    if found is not None:
        raise exception.ValidationError(
            path=path,
            value=base.text(text, 200),
            detail=f'No database can hold its character U+{ord(found[0]):04X}. Leave the character out.',
        )


def answer(body: Any, status: int = 200) -> webob.Response:
    """Return a response that holds a JSON document."""
    return webob.Response(json_body=body, status=status, content_type='application/json', charset='UTF-8')


def accepted() -> webob.Response:
    """Return the empty 202 that nova gives to an action."""
    response = webob.Response(status=202)
    response.content_type = 'application/json'
    return response
