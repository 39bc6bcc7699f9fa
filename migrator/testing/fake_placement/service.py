# SPDX-License-Identifier: Apache-2.0

"""A fast fake of Placement for simulations, with the same responses and generations.

It keeps everything in dicts and responds in microseconds. It implements the requests of
:mod:`migrator.placement_client`, at the one microversion that this client uses. A test sends random requests to the
fake and to the real Placement, and compares the responses.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import zlib
from collections.abc import Callable, Hashable, Iterable, Mapping
from json import dumps, loads
from typing import Any
from urllib import parse
from uuid import UUID

import requests
import webob
from keystoneauth1.exceptions import from_response
from oslo_utils import uuidutils

from migrator.placement_client.client import MICROVERSION
from migrator.testing.fake_placement import bodies
from migrator.testing.fake_placement.allocations import Consumers
from migrator.testing.fake_placement.bodies import RefusedError
from migrator.testing.fake_placement.candidates import Provider, Search
from migrator.testing.fake_placement.providers import Answer, Asked, Providers
from migrator.testing.placement import Request, make_response

_VERSION = f'placement {MICROVERSION}'
#: The version with which Nova writes, which knows no types of consumers.
_NOVAS = 'placement 1.36'
_HEADERS = [('Content-Type', 'application/json'), ('OpenStack-API-Version', _VERSION)]
#: Requests that only the real Placement implements: method, first part of the path, number of parts, third part.
_UNSUPPORTED = {
    ('GET', '', 1, ''),
    ('GET', 'resource_classes', 1, ''),
    ('POST', 'resource_classes', 1, ''),
    ('GET', 'resource_classes', 2, ''),
    ('DELETE', 'resource_classes', 2, ''),
    ('POST', 'resource_providers', 3, 'inventories'),
    ('DELETE', 'resource_providers', 3, 'inventories'),
    ('GET', 'resource_providers', 4, 'inventories'),
    ('PUT', 'resource_providers', 4, 'inventories'),
    ('DELETE', 'resource_providers', 4, 'inventories'),
    ('DELETE', 'resource_providers', 3, 'traits'),
    ('GET', 'traits', 2, ''),
    ('DELETE', 'traits', 2, ''),
    ('GET', 'usages', 1, ''),
    ('POST', 'reshaper', 1, ''),
}
_Where = tuple[str, int, str]


def stable(text: str) -> int:
    """Return a hash of a text that is the same in every process, unlike the built-in hash."""
    return zlib.crc32(text.encode())


@functools.cache
def _standard_classes() -> Mapping[str, int]:
    import os_resource_classes  # comes with openstack-placement, which is an optional dependency

    return {name: number for number, name in enumerate(os_resource_classes.STANDARDS)}


class FakePlacement:
    """One Placement in memory, empty at its start.

    It has the interface of :class:`~migrator.testing.placement.InProcessPlacement`.

    :param directory: ignored.
    :param lock: held during each request.
    :param before_request: called with method and URL before the lock is taken. It may wait or raise.
    :param hashed_as: returns the value to hash instead of a text that determines the order of allocation candidates.
        With the default the same requests give the same order in every process. With ``lambda text: text`` the order
        is that of the real Placement in this process.
    :ivar requests: every request that has a response, in order.
    """

    #: A token with all rights. Any other token is refused, as with auth_strategy noauth2.
    ADMIN_TOKEN = 'admin'

    def __init__(
        self,
        directory: object = None,
        *,
        lock: contextlib.AbstractContextManager[Any] | None = None,
        before_request: Callable[[str, str], None] | None = None,
        hashed_as: Callable[[str], Hashable] = stable,
    ) -> None:
        self.before_request = before_request
        self.requests: list[Request] = []
        self._lock = threading.Lock() if lock is None else lock
        self._hashed_as = hashed_as
        self._providers: dict[str, Provider] = {}
        self._class_ids = dict(_standard_classes())
        self._consumers = Consumers(self._providers, self._class_ids)
        providers = Providers(self._providers, self._class_ids, self._consumers)
        self._is_trait = providers.is_trait
        self._routes: dict[_Where, dict[str, Callable[[Asked], Answer]]] = {
            ('resource_providers', 1, ''): {'GET': providers.list, 'POST': providers.create},
            ('resource_providers', 2, ''): {
                'GET': providers.get,
                'PUT': providers.update,
                'DELETE': providers.delete,
            },
            ('resource_providers', 3, 'inventories'): {'GET': providers.get_inventory, 'PUT': providers.set_inventory},
            ('resource_providers', 3, 'traits'): {'GET': providers.get_traits, 'PUT': providers.set_traits},
            ('resource_providers', 3, 'aggregates'): {'GET': providers.get_aggregates, 'PUT': providers.set_aggregates},
            ('resource_providers', 3, 'usages'): {'GET': providers.get_usages},
            ('resource_providers', 3, 'allocations'): {'GET': providers.get_holders},
            ('resource_classes', 2, ''): {'PUT': providers.put_class},
            ('traits', 1, ''): {'GET': providers.list_traits},
            ('traits', 2, ''): {'PUT': providers.put_trait},
            ('allocations', 1, ''): {'POST': self._post_allocations},
            ('allocations', 2, ''): {
                'GET': self._get_allocations,
                'PUT': self._put_allocations,
                'DELETE': self._delete_allocations,
            },
            ('allocation_candidates', 1, ''): {'GET': self._candidates},
        }

    def adapter(self, token: str = ADMIN_TOKEN) -> Adapter:
        """Return an object with the methods of a keystoneauth1 adapter for this Placement.

        :param token: ``admin``, or any token without rights.
        """
        return Adapter(self, token)

    def app(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Handle one request; this is the WSGI application, for any server."""
        asked = webob.Request(environ)
        body = loads(asked.body) if asked.body else None
        token = asked.headers.get('X-Auth-Token', '')
        found = self.answer(asked.method, asked.path_qs, body, asked.headers.get('OpenStack-API-Version'), token)
        headers = [*found.headers.items(), ('Content-Length', str(len(found.content)))]
        start_response(f'{found.status_code} {found.reason}', headers)
        return [found.content]

    def close(self) -> None:
        """Do nothing: no connection is open."""

    def __enter__(self) -> FakePlacement:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.close()

    def answer(self, method: str, url: str, body: Any, version: str | None, token: str) -> requests.Response:
        """Handle one request and return its response.

        :param url: the path and the query.
        :param body: the decoded JSON body; None if the request has no body.
        :param version: the value of the header OpenStack-API-Version; None if the request has no such header.
        :raises NotImplementedError: only the real Placement implements this request.
        """
        if self.before_request is not None:
            self.before_request(method, url)
        # The copy keeps callers from changing stored data later, and finds values that JSON cannot represent.
        body = None if body is None else loads(dumps(body))
        with self._lock:
            try:
                if token.partition(':')[0] != self.ADMIN_TOKEN:
                    raise RefusedError(403, 'Policy does not allow it to be performed.')
                answer = self._dispatched(method, url, body, version)
            except RefusedError as error:
                answer = Answer(error.status, error.document())
            self.requests.append(Request(method, url, answer.status))
            # Encoded under the lock, since the next request may change the objects in the document.
            content = b'' if answer.document is None else dumps(answer.document).encode()
        return make_response(None, answer.status, _HEADERS, content)

    def _dispatched(self, method: str, url: str, body: Any, version: str | None) -> Answer:
        path, _mark, query = url.partition('?')
        words = path.strip('/').split('/')
        where = (words[0], len(words), words[2] if len(words) > 2 else '')
        methods = self._routes.get(where)
        if methods is None or method not in methods:
            if (method, *where) in _UNSUPPORTED:
                raise NotImplementedError(f'FakePlacement does not implement {method} {path}; use InProcessPlacement')
            if methods is None and all(where != known[1:] for known in _UNSUPPORTED):
                raise RefusedError(404, 'The resource could not be found.')
            raise RefusedError(405, 'The method specified is not allowed for this resource.')
        if version == _NOVAS and (method, *where) == ('PUT', 'allocations', 2, ''):
            return self._put_untyped(Asked(words[1], [], body))
        if version != _VERSION and method != 'DELETE':
            raise NotImplementedError(f'FakePlacement implements only {_VERSION}; {method} {path} has {version}')
        name = words[1] if len(words) > 1 else ''
        return methods[method](Asked(name, parse.parse_qsl(query, keep_blank_values=True), body))

    # --- allocations -------------------------------------------------------------------------------------------------

    def _get_allocations(self, asked: Asked) -> Answer:
        consumer = self._consumers.get(asked.name)
        if consumer is None:
            return Answer(200, {'allocations': {}})
        held = {
            uuid: {'generation': self._providers[uuid].generation, 'resources': resources}
            for uuid, resources in consumer.held.items()
        }
        return Answer(
            200,
            {
                'allocations': held,
                'project_id': consumer.project_id,
                'user_id': consumer.user_id,
                'consumer_generation': consumer.generation,
                'consumer_type': consumer.consumer_type,
            },
        )

    def _put_allocations(self, asked: Asked) -> Answer:
        if not uuidutils.is_uuid_like(asked.name):
            raise RefusedError(400, f'Malformed consumer_uuid: {asked.name}')
        self._consumers.write({str(UUID(asked.name)): bodies.WRITE.read(asked.body)})
        return Answer(204)

    def _put_untyped(self, asked: Asked) -> Answer:
        known = self._consumers.get(asked.name)
        consumer_type = 'unknown' if known is None else known.consumer_type
        body = bodies.UNTYPED_WRITE.read(asked.body) | {'consumer_type': consumer_type}
        self._consumers.write({str(UUID(asked.name)): body})
        return Answer(204)

    def _post_allocations(self, asked: Asked) -> Answer:
        self._consumers.write(bodies.WRITES.read(asked.body))
        return Answer(204)

    def _delete_allocations(self, asked: Asked) -> Answer:
        if self._consumers.get(asked.name) is None:
            raise RefusedError(404, f"No allocations for consumer '{asked.name}'")
        self._consumers.delete(asked.name)
        return Answer(204)

    def _candidates(self, asked: Asked) -> Answer:
        search = Search(self._providers, self._class_ids, self._is_trait, self._hashed_as)
        return Answer(200, search.run(asked.query))


class Adapter:
    """A replacement of a keystoneauth1 adapter.

    :param placement: the Placement that handles the requests.
    :param token: see :meth:`FakePlacement.adapter`.
    """

    def __init__(self, placement: FakePlacement, token: str) -> None:
        self._placement = placement
        self._token = token

    def request(
        self,
        url: str,
        method: str,
        *,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        microversion: str | None = None,
        raise_exc: bool = True,
        connect_retries: int = 0,
        status_code_retries: int = 0,
        rate_semaphore: object = None,
    ) -> requests.Response:
        """Send one request; see :meth:`keystoneauth1.adapter.Adapter.request`.

        :raises keystoneauth1.exceptions.HttpError: the status is 400 or more and ``raise_exc`` is set.
        """
        version = None if microversion is None else f'placement {microversion}'
        for name, value in (headers or {}).items():
            if name.lower() == 'openstack-api-version':
                version = value
        response = self._placement.answer(method, url, json, version, self._token)
        if raise_exc and response.status_code >= 400:
            raise from_response(response, method, url)
        return response

    def get(self, url: str, **kwargs: Any) -> requests.Response:
        """Send a GET request; see :meth:`request`."""
        return self.request(url, 'GET', **kwargs)

    def post(self, url: str, **kwargs: Any) -> requests.Response:
        """Send a POST request; see :meth:`request`."""
        return self.request(url, 'POST', **kwargs)

    def put(self, url: str, **kwargs: Any) -> requests.Response:
        """Send a PUT request; see :meth:`request`."""
        return self.request(url, 'PUT', **kwargs)

    def delete(self, url: str, **kwargs: Any) -> requests.Response:
        """Send a DELETE request; see :meth:`request`."""
        return self.request(url, 'DELETE', **kwargs)
