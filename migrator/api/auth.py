# SPDX-License-Identifier: Apache-2.0

"""Authentication: Keystone, or noauth2 for development, chosen by ``[api] auth_strategy``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import webob.dec
from oslo_config import cfg

from migrator import exception
from migrator.api.request import Handler, Request
from migrator.context import RequestContext

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
