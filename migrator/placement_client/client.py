# SPDX-License-Identifier: Apache-2.0

"""The way to Placement: one method through which every request goes, and its errors made ours.

What an error means to a writer decides its class:

- :class:`~migrator.exception.PlacementUnreachable`: it may or may not have been done (or nobody could ask). Observe
  again; never send it again blindly.
- :class:`~migrator.exception.PlacementConflict`: not done, for a generation was stale. Observe again.
- :class:`~migrator.exception.PlacementRefused`: not done, and asking the same again will be refused again.

They are told apart by HTTP status and by Placement's error *codes*, never by its texts.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any, Protocol

import requests
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1 import loading, token_endpoint
from oslo_config import cfg

from migrator import exception
from migrator.conf import placement

#: The newest that the Placement of 2022 (Yoga) and later has; consumer types need 1.38.
MICROVERSION = '1.39'

CONCURRENT_UPDATE = 'placement.concurrent_update'
DUPLICATE_NAME = 'placement.duplicate_name'

#: How many connections are kept: one for each story that a conductor runs at a time.
CONNECTIONS = 64

#: Statuses below 500 that say "not now" and not "no": they come from proxies, and leave open what was done.
_NOT_NOW = frozenset({408, 425, 429})
_DENIED = frozenset({401, 403})
#: user:password@ in a URL, which some put into endpoint_override.
_USERINFO = re.compile(r'(?<=//)[^/@\s]+@')


#: In place of keystoneauth1's own, which limits nothing either, but by the wall clock: should that be set back by an
#: hour, it would hold up each request for an hour.
_UNLIMITED = contextlib.nullcontext()


class Adapter(Protocol):
    """What a client needs of a keystoneauth1 adapter; a test or a counter may stand in for it."""

    def request(self, url: str, method: str, **kwargs: Any) -> requests.Response:
        """Send one request and return what came back, whatever its status."""


class PlacementClient:
    """Sends requests to Placement, each once.

    :param adapter: a keystoneauth1 adapter with any session and auth plug-in, or something with the same ``request``.
    :ivar heard: called after each request, with why it was not answered, or None; for who tells of outages.
    """

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.heard: Callable[[exception.PlacementUnreachable | None], None] = lambda error: None

    def request(self, method: str, url: str, json: Any = None, allow: tuple[int, ...] = ()) -> requests.Response:
        """Send one request; every other method comes through here.

        :param method: the HTTP method, such as 'GET'.
        :param url: the path below Placement's endpoint, with its query.
        :param json: the body; None sends none.
        :param allow: error statuses that are an answer here (such as 404) and are returned, not raised.
        :returns: the response, of a status below 400 or in ``allow``.
        :raises PlacementUnreachable: no answer, or none that tells whether it was done.
        :raises PlacementUnauthorized: the credentials are not accepted; a kind of PlacementUnreachable.
        :raises PlacementConflict: a consumer or provider generation was stale; nothing was done.
        :raises PlacementRefused: Placement says no; nothing was done.
        """
        try:
            response = self._answer(method, url, json, allow)
        except exception.PlacementUnreachable as error:
            self.heard(error)
            raise
        except exception.PlacementError:
            self.heard(None)  # no, but an answer
            raise
        self.heard(None)
        return response

    def _answer(self, method: str, url: str, json: Any, allow: tuple[int, ...]) -> requests.Response:
        try:
            # No retries and no exceptions of keystoneauth1's: it would send a write again that may have been done.
            # (A 401 is the exception: it fetches a new token and sends once more, and a 401 did nothing.)
            response = self.adapter.request(
                url,
                method,
                json=json,
                raise_exc=False,
                connect_retries=0,
                status_code_retries=0,
                rate_semaphore=_UNLIMITED,
                headers={'OpenStack-API-Version': f'placement {MICROVERSION}', 'Accept': 'application/json'},
            )
        except (
            ks_exceptions.Unauthorized,
            ks_exceptions.Forbidden,
            ks_exceptions.AuthorizationFailure,
            ks_exceptions.AuthPluginException,
        ) as error:
            raise exception.PlacementUnauthorized(reason=_public(error)) from error
        except (ks_exceptions.ClientException, requests.exceptions.RequestException, OSError) as error:
            raise exception.PlacementUnreachable(reason=_public(error)) from error
        if response.status_code >= 400 and response.status_code not in allow:
            raise _error_of(method, url, response)
        return response

    def get(self, url: str, allow: tuple[int, ...] = ()) -> requests.Response:
        """GET; see :meth:`request`."""
        return self.request('GET', url, allow=allow)

    def post(self, url: str, json: Any) -> requests.Response:
        """POST; see :meth:`request`."""
        return self.request('POST', url, json)

    def put(self, url: str, json: Any = None) -> requests.Response:
        """PUT; see :meth:`request`."""
        return self.request('PUT', url, json)

    def delete(self, url: str, allow: tuple[int, ...] = ()) -> requests.Response:
        """DELETE; see :meth:`request`."""
        return self.request('DELETE', url, allow=allow)

    def read(self, url: str) -> dict[str, Any]:
        """GET a JSON document.

        :raises PlacementUnreachable: what answered is not Placement; else as :meth:`request`.
        """
        found = self.read_or_none(url)
        if found is None:
            raise exception.PlacementRefused(method='GET', url=url, status=404, reason='not found', placement_code=None)
        return found

    def read_or_none(self, url: str) -> dict[str, Any] | None:
        """GET a JSON document, or None where Placement has none (404).

        :raises PlacementUnreachable: what answered is not Placement; else as :meth:`request`.
        """
        response = self.get(url, allow=(404,))
        document = _json_of(response)
        if response.status_code == 404 and 'errors' in document:
            return None
        if response.status_code == 404 or not document:
            raise exception.PlacementUnreachable(
                reason=f'what answered GET {url} with {response.status_code} is not Placement: look at '
                f'endpoint_override in [placement], or at the service catalog'
            )
        return document


def client_from_conf(conf: cfg.ConfigOpts) -> PlacementClient:
    """Return a client made from the section ``[placement]``.

    With ``auth_type = none`` (or ``noauth``) it speaks to a Placement whose own auth_strategy is noauth2, which takes
    the word 'admin' for a token; the address comes from ``endpoint_override`` then.

    :param conf: where :func:`migrator.conf.placement.register_opts` has been called.
    :raises ConfigurationError: an option is missing, or has a value that cannot be.
    """
    group = placement.GROUP
    placement.check(conf)
    settings = conf[group]
    if settings.auth_type in ('none', 'noauth'):
        if not settings.endpoint_override:
            raise _misconfigured('endpoint_override', None, f'auth_type {settings.auth_type} needs an address')
        auth: Any = token_endpoint.Token(settings.endpoint_override, 'admin')
    else:
        try:
            auth = loading.load_auth_from_conf_options(conf, group)
        except ks_exceptions.NoMatchingPlugin as error:
            raise _misconfigured('auth_type', settings.auth_type, 'no such plug-in is installed') from error
        except ks_exceptions.MissingRequiredOptions as error:
            missing = ', '.join(option.dest for option in error.options)
            raise _misconfigured('auth_type', settings.auth_type, f'it needs {missing} too') from error
    for name in {'endpoint_override', 'auth_url'}.intersection(settings):
        url = settings[name]
        if url and not re.match(r'https?://[^/\s]', url):
            detail = 'it is no URL of a service; http://HOST:PORT is how it looks'
            raise _misconfigured(name, '***@' * ('@' in url) + url.rpartition('@')[2], detail)
    if auth is None:
        raise _misconfigured('auth_type', None, 'give password, or none for a Placement with noauth2')
    try:
        session = loading.load_session_from_conf_options(conf, group, auth=auth)
        adapter = loading.load_adapter_from_conf_options(conf, group, session=session, auth=auth)
    except (TypeError, ValueError) as error:
        # It is about several at once.
        raise exception.ConfigurationError(f'Section [placement] is not right: {_public(error)}') from error
    for transport in session.session.adapters.values():
        if isinstance(transport, requests.adapters.HTTPAdapter):
            # What is above its size is closed after each answer, and a warning logged.
            transport.init_poolmanager(requests.adapters.DEFAULT_POOLSIZE, CONNECTIONS)
    return PlacementClient(adapter)


def _misconfigured(option: str, value: object, detail: str) -> exception.ConfigurationError:
    return exception.ConfigurationError(option=f'[placement] {option}', value=value, detail=detail)


def _public(error: Exception) -> str:
    """Return an error's text as one line without credentials."""
    return ' '.join(_USERINFO.sub('***@', str(error) or type(error).__name__).split())


def _json_of(response: requests.Response) -> dict[str, Any]:
    """Return the JSON object of a response, empty if it has none."""
    try:
        document = response.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _error_of(method: str, url: str, response: requests.Response) -> exception.MigratorException:
    """Return the exception that an error response stands for."""
    status = response.status_code
    errors = _json_of(response).get('errors')
    first = errors[0] if isinstance(errors, list) and errors and isinstance(errors[0], dict) else {}
    reason = ' '.join(str(first.get('detail') or first.get('title') or response.reason or '').split())
    said = f'it answered {status} to {method} {url}: {reason}'
    if status >= 500 or status in _NOT_NOW:
        return exception.PlacementUnreachable(reason=said, status=status)
    if status in _DENIED:
        return exception.PlacementUnauthorized(reason=said, status=status)
    if status == 406:
        reason = f'migrator needs its microversion {MICROVERSION} (Yoga, 2022): {reason}'
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
