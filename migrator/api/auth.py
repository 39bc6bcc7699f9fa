# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Who asks: two ways to find out, chosen by ``[api] auth_strategy``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import webob.dec
from oslo_config import cfg

from migrator import context as migrator_context
from migrator import exception
from migrator.api import request as api_request

#: Puts the finding out before a handler.
Auth = Callable[[api_request.Handler], api_request.Handler]

#: What Keystone implies for an administrator, highest first.
ADMIN_ROLES = ['admin', 'manager', 'member', 'reader']
USER_ROLES = ['member', 'reader']


def of_conf(conf: cfg.ConfigOpts) -> Auth:
    """Return the way that the configuration names."""
    return noauth2 if conf.api.auth_strategy == 'noauth2' else keystone(conf)


def noauth2(handle: api_request.Handler) -> api_request.Handler:
    """Take the token at its word: ``user:project``, or ``user`` alone; user ``admin`` is an administrator."""

    def authenticated(request: api_request.Request) -> webob.Response:
        token = request.headers.get('X-Auth-Token', '')
        user, _, project = token.partition(':')
        if not user:
            raise exception.Unauthorized()
        roles = ADMIN_ROLES if user == 'admin' else USER_ROLES
        request.environ['migrator.context'] = migrator_context.RequestContext(
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

    :param conf: its section ``[keystone_authtoken]`` is registered and read at the first request, not before.
    """

    def wrap(handle: api_request.Handler) -> api_request.Handler:
        def validated(request: api_request.Request) -> webob.Response:
            request.environ['migrator.context'] = migrator_context.RequestContext.from_environ(
                request.environ, request_id=request.request_id, overwrite=False
            )
            return handle(request)

        inner = webob.dec.wsgify(validated, RequestClass=api_request.Request)

        @functools.lru_cache(maxsize=1)
        def middleware() -> Any:
            # Imported here: an embedding service with noauth2 pays nothing for it.
            from keystonemiddleware import auth_token

            return auth_token.AuthProtocol(inner, {'oslo_config_config': conf})

        def authenticated(request: api_request.Request) -> webob.Response:
            return request.get_response(middleware())

        return authenticated

    return wrap
