# SPDX-License-Identifier: Apache-2.0

"""Authentication: Keystone, or noauth2 for development, chosen by ``[api] auth_strategy``."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import webob.dec
from oslo_config import cfg

from migrator import exception
from migrator.api.request import Handler, Request
from migrator.conf.api import is_loopback
from migrator.context import RequestContext
from migrator.objects import base

#: A WSGI application.
App = Callable[..., Iterable[bytes]]
#: Wraps a handler in the authentication.
Auth = Callable[[Handler], Handler]

#: The roles that Keystone implies for an administrator, highest first.
ADMIN_ROLES = ['admin', 'manager', 'member', 'reader']
USER_ROLES = ['member', 'reader']


def of_conf(conf: cfg.ConfigOpts) -> Auth:
    """Return the authentication that the configuration names."""
    return noauth2 if conf.api.auth_strategy == 'noauth2' else keystone(conf)


def noauth2(handle: Handler) -> Handler:
    """Accept any token of the form ``user:project`` or ``user``, without a check.

    User ``admin`` is an administrator.
    """

    def authenticated(request: Request) -> webob.Response:
        token = request.headers.get('X-Auth-Token', '')
        user, _, project = token.partition(':')
        if not user:
            raise exception.Unauthorized()
        roles = ADMIN_ROLES if user == 'admin' else USER_ROLES
        request.environ['migrator.context'] = RequestContext(
            user_id=user,
            project_id=project or user,
            roles=list(roles),
            is_admin=user == 'admin',
            request_id=request.request_id,
            overwrite=False,
        )
        return handle(request)

    return authenticated


def only_known_hosts(
    serve: App,
    names: Sequence[str],
    what: str = 'With noauth2, this API',
    do: str = 'Use a loopback address, or add the name to [api] host_names.',
) -> App:
    """Return an application that answers 403 to a Host header of neither loopback nor one of some names.

    The owner of a name can let it point at loopback, after a browser has loaded a page from it. The browser then lets
    that page use the API, and noauth2 asks for no secret. A request without the header is of no browser.

    :param serve: a WSGI application.
    :param names: host names and addresses, without ports.
    :param what: what is served, for the message.
    :param do: what to do, as a sentence.
    """
    known = {_bare(name) for name in names}

    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        given = environ.get('HTTP_HOST', '')
        name = _bare(_PORT.sub('', given))
        if not given or name in known or is_loopback(name):
            return serve(environ, start_response)
        message = f'{what} is not served as {base.printable(name)[:253]}. {do}'
        response = webob.Response(status=403, json_body={'forbidden': {'code': 403, 'message': message}})
        answer: Iterable[bytes] = response(environ, start_response)
        return answer

    return guarded


_PORT = re.compile(r':\d*$')


def _bare(name: str) -> str:
    return name.strip().strip('[]').rstrip('.').lower()


def keystone(conf: cfg.ConfigOpts) -> Auth:
    """Let keystonemiddleware validate the token.

    :param conf: the first request registers and reads its section ``[keystone_authtoken]``.
    """

    def wrap(handle: Handler) -> Handler:
        def validated(request: Request) -> webob.Response:
            request.environ['migrator.context'] = RequestContext.from_environ(
                request.environ, request_id=request.request_id, overwrite=False
            )
            return handle(request)

        inner = webob.dec.wsgify(validated, RequestClass=Request)

        @functools.lru_cache(maxsize=1)
        def middleware() -> Any:
            # An embedding service with noauth2 does not need this import.
            from keystonemiddleware import auth_token

            return auth_token.AuthProtocol(inner, {'oslo_config_config': conf})

        def authenticated(request: Request) -> webob.Response:
            return request.get_response(middleware())

        return authenticated

    return wrap
