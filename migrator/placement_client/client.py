# SPDX-License-Identifier: Apache-2.0

"""The client of Placement: one method sends every request and converts the errors.

The class of an error says what a writer may assume:

- :class:`~migrator.exception.PlacementUnreachable`: the write may or may not have been done. Observe before the write
  is sent again.
- :class:`~migrator.exception.PlacementConflict`: the write was not done, because a generation was stale. Observe again.
- :class:`~migrator.exception.PlacementRefused`: the write was not done, and Placement would refuse it again.

The HTTP status and Placement's error *code* decide the class, never the text of an error.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any, Protocol

import requests
from keystoneauth1 import loading, token_endpoint
from keystoneauth1.exceptions import (
    AuthorizationFailure,
    AuthPluginException,
    ClientException,
    Forbidden,
    MissingRequiredOptions,
    NoMatchingPlugin,
    Unauthorized,
)
from oslo_config import cfg

from migrator import exception
from migrator.conf import keystone

#: The newest microversion of Placement Yoga (2022). Consumer types need 1.38.
MICROVERSION = '1.39'
#: That of Placement Rocky (2018), the first with nested providers and generations of consumers.
ROCKY = '1.30'

CONCURRENT_UPDATE = 'placement.concurrent_update'
DUPLICATE_NAME = 'placement.duplicate_name'

#: The number of connections that are kept open: one for each migration that a conductor runs at the same time.
CONNECTIONS = 64

#: Statuses below 500 with which a proxy asks for a later try. They do not show whether the request was done.
NOT_NOW = frozenset({408, 425, 429})
DENIED = frozenset({401, 403})
#: user:password@ in a URL, such as in endpoint_override.
_USERINFO = re.compile(r'(?<=//)[^/@\s]+@')


#: Replaces keystoneauth1's rate limiter, which has no limit either but reads the wall clock. If the wall clock were set
#: back by an hour, that limiter would delay each request by an hour.
_UNLIMITED = contextlib.nullcontext()


class Adapter(Protocol):
    """The part of a keystoneauth1 adapter that the client uses; tests and counters replace it."""

    def request(self, url: str, method: str, **kwargs: Any) -> requests.Response:
        """Send one request and return the response, whatever its status."""


class PlacementClient:
    """A client that sends each request to Placement once.

    :param adapter: a keystoneauth1 adapter with any session and auth plug-in, or an object with the same ``request``.
    :param oldest: the oldest microversion that is enough. The newest one that both sides know is used.
    :ivar on_result: called after each request, with the error if Placement was unreachable, else with None. It reports
        outages.
    """

    def __init__(self, adapter: Adapter, oldest: str = MICROVERSION) -> None:
        self.adapter = adapter
        self._oldest = oldest
        #: None: Placement was not asked for its versions yet.
        self._negotiated = MICROVERSION if oldest == MICROVERSION else None
        self.on_result: Callable[[exception.PlacementUnreachable | None], None] = lambda error: None

    @property
    def microversion(self) -> tuple[int, int]:
        """The microversion of the requests.

        :raises PlacementUnreachable: Placement does not show which it has.
        :raises PlacementRefused: it is too old.
        """
        if self._negotiated is None:
            self._negotiated = self._negotiate()
        return numbers(self._negotiated)

    def _negotiate(self) -> str:
        response = self._send('GET', '/', None, None)
        versions = _json_of(response).get('versions') or [{}]
        newest = str(versions[0].get('max_version'))
        if response.status_code >= 400 or not re.fullmatch('[0-9]{1,4}[.][0-9]{1,4}', newest):
            raise exception.PlacementUnreachable(reason=_not_placement('/', response.status_code))
        if numbers(newest) < numbers(self._oldest):
            raise exception.PlacementRefused(
                method='GET',
                url='/',
                status=406,
                reason=f'it has microversion {newest} at most, and {self._oldest} is needed: upgrade it',
                placement_code=None,
            )
        return min(newest, MICROVERSION, key=numbers)

    def request(self, method: str, url: str, json: Any = None, allow: tuple[int, ...] = ()) -> requests.Response:
        """Send one request; every other method uses this one.

        :param method: the HTTP method, such as 'GET'.
        :param url: the path below Placement's endpoint, with its query.
        :param json: the body; None sends none.
        :param allow: error statuses (such as 404) with which the response is returned instead of raised.
        :returns: the response; its status is below 400 or in ``allow``.
        :raises PlacementUnreachable: there was no response, or one that does not show whether the request was done.
        :raises PlacementUnauthorized: the credentials were not accepted; a kind of PlacementUnreachable.
        :raises PlacementConflict: a consumer or provider generation was stale; nothing was done.
        :raises PlacementRefused: Placement refused the request; nothing was done.
        """
        try:
            response = self._answer(method, url, json, allow)
        except exception.PlacementUnreachable as error:
            self.on_result(error)
            raise
        except exception.PlacementError:
            self.on_result(None)  # a refusal is a reply too
            raise
        self.on_result(None)
        return response

    def _answer(self, method: str, url: str, json: Any, allow: tuple[int, ...]) -> requests.Response:
        version = '{}.{}'.format(*self.microversion)
        response = self._send(method, url, json, version)
        if response.status_code >= 400 and response.status_code not in allow:
            raise _error_of(method, url, response)
        return response

    def _send(self, method: str, url: str, json: Any, version: str | None) -> requests.Response:
        wanted = {} if version is None else {'OpenStack-API-Version': f'placement {version}'}
        try:
            # keystoneauth1 must not retry, because the write may have been done, and must not raise for a status. Only
            # after a 401 it fetches a new token and sends the request again, and a request with a 401 was not done.
            return self.adapter.request(
                url,
                method,
                json=json,
                raise_exc=False,
                connect_retries=0,
                status_code_retries=0,
                rate_semaphore=_UNLIMITED,
                headers={**wanted, 'Accept': 'application/json'},
            )
        except (Unauthorized, Forbidden, AuthorizationFailure, AuthPluginException) as error:
            raise exception.PlacementUnauthorized(reason=public(error)) from error
        except (ClientException, requests.exceptions.RequestException, OSError) as error:
            raise exception.PlacementUnreachable(reason=public(error)) from error

    def get(self, url: str, allow: tuple[int, ...] = ()) -> requests.Response:
        """Send a GET; see :meth:`request`."""
        return self.request('GET', url, allow=allow)

    def post(self, url: str, json: Any) -> requests.Response:
        """Send a POST; see :meth:`request`."""
        return self.request('POST', url, json)

    def put(self, url: str, json: Any = None) -> requests.Response:
        """Send a PUT; see :meth:`request`."""
        return self.request('PUT', url, json)

    def delete(self, url: str, allow: tuple[int, ...] = ()) -> requests.Response:
        """Send a DELETE; see :meth:`request`."""
        return self.request('DELETE', url, allow=allow)

    def read(self, url: str) -> dict[str, Any]:
        """Get a JSON document.

        :raises PlacementUnreachable: the server is not Placement; otherwise as :meth:`request`.
        """
        found = self.read_or_none(url)
        if found is None:
            raise exception.PlacementRefused(method='GET', url=url, status=404, reason='not found', placement_code=None)
        return found

    def read_or_none(self, url: str) -> dict[str, Any] | None:
        """Get a JSON document, or None if Placement replies with 404.

        :raises PlacementUnreachable: the server is not Placement; otherwise as :meth:`request`.
        """
        response = self.get(url, allow=(404,))
        document = _json_of(response)
        if response.status_code == 404 and 'errors' in document:
            return None
        if response.status_code == 404 or not document:
            raise exception.PlacementUnreachable(reason=_not_placement(url, response.status_code))
        return document

    def holders(self, provider: str) -> set[str]:
        """Return the consumers of a resource provider; none if Placement does not have it.

        :raises PlacementUnreachable: the server is not Placement; otherwise as :meth:`request`.
        """
        url = f'/resource_providers/{provider}/allocations'
        found = self.read_or_none(url)
        if found is None:
            return set()
        if not isinstance(found.get('allocations'), dict):
            # Without this check a reply of another server would say that nothing is left.
            raise exception.PlacementUnreachable(reason=_not_placement(url, 200))
        return {*found['allocations']}


def numbers(version: str) -> tuple[int, int]:
    """Return the numbers of a microversion, which can be compared."""
    major, minor = version.split('.')
    return int(major), int(minor)


def _not_placement(url: str, status: int) -> str:
    return (
        f'the server that answered GET {url} with {status} is not Placement: look at endpoint_override in [placement], '
        'or at the service catalog'
    )


def client_from_conf(conf: cfg.ConfigOpts) -> PlacementClient:
    """Return a client with the settings of section ``[placement]``; see :func:`adapter_from_conf`."""
    return PlacementClient(adapter_from_conf(conf, keystone.PLACEMENT))


def adapter_from_conf(conf: cfg.ConfigOpts, section: keystone.Section) -> Any:
    """Return an adapter of keystoneauth1 with the settings of a section.

    ``auth_type = none`` (or ``noauth``) is for a service whose auth_strategy is noauth2. Such a service accepts 'admin'
    as a token, and ``endpoint_override`` gives its address.

    :param conf: a configuration on which :meth:`migrator.conf.keystone.Section.register_opts` was called.
    :raises ConfigurationError: an option is missing or has an invalid value.
    """
    group = section.group
    section.check(conf)
    settings = conf[group]
    if settings.auth_type in ('none', 'noauth'):
        if not settings.endpoint_override:
            raise _misconfigured(group, 'endpoint_override', None, f'auth_type {settings.auth_type} needs an address')
        auth: Any = token_endpoint.Token(settings.endpoint_override, 'admin')
    else:
        try:
            auth = loading.load_auth_from_conf_options(conf, group)
        except NoMatchingPlugin as error:
            raise _misconfigured(group, 'auth_type', settings.auth_type, 'no such plug-in is installed') from error
        except MissingRequiredOptions as error:
            missing = ', '.join(option.dest for option in error.options)
            raise _misconfigured(
                group, 'auth_type', settings.auth_type, f'it also needs the options {missing}'
            ) from error
    for name in {'endpoint_override', 'auth_url'}.intersection(settings):
        url = settings[name]
        if url and not re.match(r'https?://[^/\s]', url):
            detail = 'it is not the URL of a service: give one such as http://HOST:PORT'
            raise _misconfigured(group, name, '***@' * ('@' in url) + url.rpartition('@')[2], detail)
    if auth is None:
        raise _misconfigured(group, 'auth_type', None, "give 'password', or 'none' for a service with noauth2")
    try:
        session = loading.load_session_from_conf_options(conf, group, auth=auth)
        adapter = loading.load_adapter_from_conf_options(conf, group, session=session, auth=auth)
    except (TypeError, ValueError) as error:
        # The error concerns several options.
        raise exception.ConfigurationError(f'Section [{group}] is invalid: {public(error)}') from error
    for transport in session.session.adapters.values():
        if isinstance(transport, requests.adapters.HTTPAdapter):
            # Connections above the size of the pool are closed after each response, with a warning in the log.
            transport.init_poolmanager(requests.adapters.DEFAULT_POOLSIZE, CONNECTIONS)
    return adapter


def _misconfigured(group: str, option: str, value: object, detail: str) -> exception.ConfigurationError:
    return exception.ConfigurationError(option=f'[{group}] {option}', value=value, detail=detail)


def public(error: object) -> str:
    """Return the text of an error in one line and without credentials."""
    return ' '.join(_USERINFO.sub('***@', str(error) or type(error).__name__).split())


def _json_of(response: requests.Response) -> dict[str, Any]:
    """Return the JSON object of a response, or an empty one."""
    try:
        document = response.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _error_of(method: str, url: str, response: requests.Response) -> exception.MigratorException:
    """Return the exception for an error response."""
    status = response.status_code
    errors = _json_of(response).get('errors')
    first = errors[0] if isinstance(errors, list) and errors and isinstance(errors[0], dict) else {}
    reason = ' '.join(str(first.get('detail') or first.get('title') or response.reason or '').split())
    observed = f'it answered {status} to {method} {url}: {reason}'
    if status >= 500 or status in NOT_NOW:
        return exception.PlacementUnreachable(reason=observed, status=status)
    if status in DENIED:
        return exception.PlacementUnauthorized(reason=observed, status=status)
    if status == 406:
        reason = f'migrator needs microversion {MICROVERSION} (Yoga, 2022) of Placement: {reason}'
    details: dict[str, Any] = {
        'method': method,
        'url': url,
        'status': status,
        'reason': reason,
        'placement_code': first.get('code'),
    }
    if status == 409 and first.get('code') == CONCURRENT_UPDATE:
        return exception.PlacementConflict(**details)
    return exception.PlacementRefused(**details)
