# SPDX-License-Identifier: Apache-2.0

"""The WSGI application: one function assembles the pipeline from a request to its answer."""

from __future__ import annotations

import webob
import webob.dec
from oslo_config import cfg
from oslo_context.context import generate_request_id
from oslo_policy import policy

from migrator import exception, executors
from migrator.api import errors, microversions, openapi, policies, routes, versions
from migrator.api.auth import App, Auth, of_conf, only_known_hosts
from migrator.api.own import ui
from migrator.api.policies.base import CONTEXT_IS_ADMIN
from migrator.api.request import Handler, Request, Services, Streams
from migrator.conductor import rpcapi
from migrator.db.api import Database
from migrator.objects import remedies
from migrator.views import timeline


def make_app(
    conf: cfg.ConfigOpts,
    database: Database,
    conductor_api: rpcapi.ConductorAPI,
    threads: executors.Threads,
    sagas: timeline.Sagas,
    *,
    auth: Auth | None = None,
    enforcer: policy.Enforcer | None = None,
    drain_command: str = remedies.DRAINS,
) -> App:
    """Return the WSGI application.

    With noauth2 it answers only under the names of loopback and of ``[api] host_names``.

    :param conf: with the options of :mod:`migrator.conf.api` and :mod:`migrator.conf.conductor` registered; this
        registers ``[oslo_policy]`` and, at the first request, ``[keystone_authtoken]`` on it.
    :param threads: the source of uuids, of the clock and of sleep.
    :param sagas: those of the conductors, for the page of a migration; empty: there are no migrations.
    :param auth: the authentication; None: the one that ``[api] auth_strategy`` names.
    :param enforcer: the policies; None: those of the configuration.
    :param drain_command: the beginning of the operator's commands about drains, for the page.
    :raises migrator.exception.ConfigurationError: the file of policies is not valid.
    """
    if enforcer is None:
        enforcer = policies.make_enforcer(conf)
        enforcer.load_rules()  # so that a wrong file is an error of the start, and not of each request
    services = Services(conf, database, conductor_api, threads, sagas, enforcer, Streams(threads), drain_command)

    # A request passes these from the bottom to the top.
    handle: Handler = routes.dispatch
    handle = _in_its_version(handle)
    handle = _with_its_rights(handle)
    handle = _with_errors(handle)
    handle = (auth or of_conf(conf))(handle)
    handle = _or_public(handle)
    handle = _with_errors(handle)
    handle = _with_request_id(handle, services)

    # The pipeline has no middleware of oslo.middleware, because its import registers options on the global
    # configuration. migrator.cmd.api wraps this application in HTTPProxyToWSGI.
    served: App = webob.dec.wsgify(handle, RequestClass=Request)
    is_open = auth is None and conf.api.auth_strategy == 'noauth2'
    return only_known_hosts(served, conf.api.host_names) if is_open else served


def _with_request_id(handle: Handler, services: Services) -> Handler:
    def identified(request: Request) -> webob.Response:
        request_id = generate_request_id()
        request.environ['openstack.request_id'] = request_id
        request.environ['migrator.services'] = services
        response = handle(request)
        response.headers['X-OpenStack-Request-Id'] = request_id
        response.headers['X-Compute-Request-Id'] = request_id
        return response

    return identified


def _with_errors(handle: Handler) -> Handler:
    # This is in the pipeline twice: inside keystonemiddleware, which must not see our errors, and outside of it.
    def answered(request: Request) -> webob.Response:
        try:
            return handle(request)
        except Exception as error:  # noqa: BLE001 -- the caller gets an answer for any error, and the log its details
            return errors.of(error, request)

    return answered


def _or_public(handle: Handler) -> Handler:
    """Answer what needs no token: the documents of versions and URLs, and the files of the page."""

    def answered(request: Request) -> webob.Response:
        try:
            path = request.path_info
        except UnicodeDecodeError:
            raise exception.Invalid('The URL is not UTF-8.') from None
        if request.method in ('GET', 'HEAD') and path in versions.PATHS:
            return versions.discover(request)
        if path in ui.PATHS:
            return ui.serve(request)
        if path == openapi.PATH:
            return openapi.serve(request)
        return handle(request)

    return answered


def _with_its_rights(handle: Handler) -> Handler:
    def judged(request: Request) -> webob.Response:
        # A policy decides whether the caller is an administrator. The whole API uses this one decision.
        request.context.is_admin = request.can(CONTEXT_IS_ADMIN)
        return handle(request)

    return judged


def _in_its_version(handle: Handler) -> Handler:
    def versioned(request: Request) -> webob.Response:
        version = request.environ['migrator.version'] = microversions.MINIMUM
        if request.is_own:
            return handle(request)
        try:
            version = request.environ['migrator.version'] = microversions.of_request(request)
            response = handle(request)
        except Exception as error:  # noqa: BLE001 -- an error is answered in the request's version too
            response = errors.of(error, request)
        microversions.mark(response, version)
        return response

    return versioned
