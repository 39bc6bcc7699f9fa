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
from typing import Any, NamedTuple
from urllib import parse
from uuid import UUID, uuid4

import requests
import webob
from keystoneauth1.exceptions import from_response
from oslo_utils import uuidutils

from migrator.placement_client.client import CONCURRENT_UPDATE, DUPLICATE_NAME, MICROVERSION
from migrator.testing.fake_placement import bodies
from migrator.testing.fake_placement.allocations import Consumers
from migrator.testing.fake_placement.bodies import RefusedError
from migrator.testing.fake_placement.candidates import Provider, Search
from migrator.testing.placement import Request, make_response

_CONFLICT = CONCURRENT_UPDATE
_VERSION = f'placement {MICROVERSION}'
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
#: The internal id of the first resource class that is not a standard one.
_FIRST_CUSTOM = 10000

_Where = tuple[str, int, str]


class _Asked(NamedTuple):
    """A parsed request.

    :ivar name: the second part of the path.
    """

    name: str
    query: list[tuple[str, str]]
    body: Any


class _Answer(NamedTuple):
    status: int
    #: None if the response has no body.
    document: dict[str, Any] | None = None


def stable(text: str) -> int:
    """Return a hash of a text that is the same in every process, unlike the built-in hash."""
    return zlib.crc32(text.encode())


@functools.cache
def _standard_traits() -> frozenset[str]:
    import os_traits  # comes with openstack-placement, which is an optional dependency

    return frozenset(os_traits.get_traits())


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
        self._names: dict[str, Provider] = {}
        self._class_ids = dict(_standard_classes())
        self._consumers = Consumers(self._providers, self._class_ids)
        self._custom_traits: dict[str, None] = {}
        self._routes: dict[_Where, dict[str, Callable[[_Asked], _Answer]]] = {
            ('resource_providers', 1, ''): {'GET': self._list_providers, 'POST': self._create_provider},
            ('resource_providers', 2, ''): {
                'GET': lambda asked: _Answer(200, _shown(self._provider(asked))),
                'PUT': self._update_provider,
                'DELETE': self._delete_provider,
            },
            ('resource_providers', 3, 'inventories'): {'GET': self._get_inventory, 'PUT': self._set_inventory},
            ('resource_providers', 3, 'traits'): {'GET': self._get_traits, 'PUT': self._set_traits},
            ('resource_providers', 3, 'aggregates'): {'GET': self._get_aggregates, 'PUT': self._set_aggregates},
            ('resource_providers', 3, 'usages'): {'GET': self._get_usages},
            ('resource_providers', 3, 'allocations'): {'GET': self._get_holders},
            ('resource_classes', 2, ''): {'PUT': self._put_class},
            ('traits', 1, ''): {'GET': self._list_traits},
            ('traits', 2, ''): {'PUT': self._put_trait},
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
                answer = _Answer(error.status, error.document())
            self.requests.append(Request(method, url, answer.status))
            # Encoded under the lock, since the next request may change the objects in the document.
            content = b'' if answer.document is None else dumps(answer.document).encode()
        return make_response(None, answer.status, _HEADERS, content)

    def _dispatched(self, method: str, url: str, body: Any, version: str | None) -> _Answer:
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
        if version != _VERSION and method != 'DELETE':
            raise NotImplementedError(f'FakePlacement implements only {_VERSION}; {method} {path} has {version}')
        name = words[1] if len(words) > 1 else ''
        return methods[method](_Asked(name, parse.parse_qsl(query, keep_blank_values=True), body))

    # --- resource providers ------------------------------------------------------------------------------------------

    def _provider(self, asked: _Asked) -> Provider:
        if asked.name not in self._providers:
            raise RefusedError(404, f'No resource provider with uuid {asked.name} found')
        return self._providers[asked.name]

    def _to_change(self, asked: _Asked, schema: bodies.Body) -> tuple[Provider, Any]:
        """Return the provider and the body of a request that names the provider's generation."""
        provider, body = self._provider(asked), schema.read(asked.body)
        if body['resource_provider_generation'] != provider.generation:
            raise RefusedError(409, 'resource provider generation conflict', _CONFLICT)
        return provider, body

    def _list_providers(self, asked: _Asked) -> _Answer:
        found = list(self._providers.values())
        for name, value in asked.query:
            if name in ('member_of', 'required', 'resources'):
                raise NotImplementedError(
                    f'FakePlacement does not implement {name} in /resource_providers; use InProcessPlacement'
                )
            if name not in ('name', 'uuid', 'in_tree') or (name != 'name' and not uuidutils.is_uuid_like(value)):
                raise RefusedError(400, f'Invalid query string parameters: {name}={value}')
            if name == 'in_tree':
                root = self._providers[value].root if value in self._providers else None
                found = [one for one in found if one.root is root]
            elif value:
                found = [one for one in found if getattr(one, name) == value]
        return _Answer(200, {'resource_providers': [_shown(one) for one in found]})

    def _create_provider(self, asked: _Asked) -> _Answer:
        body = bodies.NEW_PROVIDER.read(asked.body)
        uuid = str(UUID(body['uuid']) if body.get('uuid') else uuid4())
        parent = body.get('parent_provider_uuid')
        if not body['name']:
            raise RefusedError(400, 'Unable to create resource provider: name is required.')
        if parent is not None and (parent == uuid or parent not in self._providers):
            raise RefusedError(400, 'Unable to create resource provider: it cannot have this parent provider UUID.')
        if uuid in self._providers or body['name'] in self._names:
            raise RefusedError(409, 'Conflicting resource provider already exists.', DUPLICATE_NAME)
        number = max((one.id for one in self._providers.values()), default=0) + 1
        provider = Provider(number, uuid, body['name'], None if parent is None else self._providers[parent])
        self._providers[uuid] = self._names[provider.name] = provider
        return _Answer(200, _shown(provider))

    def _update_provider(self, asked: _Asked) -> _Answer:
        provider, body = self._provider(asked), bodies.PROVIDER.read(asked.body)
        parent = provider.parent
        if 'parent_provider_uuid' in body:
            wanted = body['parent_provider_uuid']
            if wanted is not None and wanted not in self._providers:
                raise RefusedError(400, 'Unable to save resource provider: parent provider UUID does not exist.')
            parent = None if wanted is None else self._providers[wanted]
        above = parent
        while above is not None:
            if above is provider:
                raise RefusedError(400, 'Unable to save resource provider: creating loop in the tree is not allowed.')
            above = above.parent
        if self._names.get(body['name'], provider) is not provider:
            raise RefusedError(409, 'Conflicting resource provider already exists.', DUPLICATE_NAME)
        del self._names[provider.name]
        provider.name, provider.parent = body['name'], parent
        self._names[provider.name] = provider
        return _Answer(200, _shown(provider))

    def _delete_provider(self, asked: _Asked) -> _Answer:
        provider = self._provider(asked)
        code = 'placement.resource_provider.'
        if any(one.parent is provider for one in self._providers.values()):
            raise RefusedError(409, 'It has child resource providers.', code + 'cannot_delete_parent')
        if provider.holders:
            raise RefusedError(409, 'Unable to delete resource provider: it has allocations.', code + 'inuse')
        del self._providers[provider.uuid], self._names[provider.name]
        return _Answer(204)

    def _get_inventory(self, asked: _Asked) -> _Answer:
        provider = self._provider(asked)
        return _Answer(200, {'inventories': provider.inventory, **_generation(provider)})

    def _set_inventory(self, asked: _Asked) -> _Answer:
        provider, body = self._to_change(asked, bodies.INVENTORIES)
        inventory = {name: {**bodies.INVENTORY_DEFAULTS, **one} for name, one in body['inventories'].items()}
        for name, one in inventory.items():
            if int((one['total'] - one['reserved']) * one['allocation_ratio']) < 0:
                raise RefusedError(400, f'Invalid inventory for {name}: the reserved value is greater than total.')
        for name in inventory:
            if name not in self._class_ids:
                raise RefusedError(400, f'Unknown resource class in inventory: No such resource class {name}.')
        for name in provider.used:
            if name not in inventory:
                raise RefusedError(409, f'Inventory for {name} is in use.', 'placement.inventory.inuse')
        provider.inventory = inventory
        provider.generation += 1
        return self._get_inventory(asked)

    def _get_traits(self, asked: _Asked) -> _Answer:
        provider = self._provider(asked)
        return _Answer(200, {'traits': provider.traits, **_generation(provider)})

    def _set_traits(self, asked: _Asked) -> _Answer:
        bodies.TRAITS.read(asked.body)
        provider, body = self._to_change(asked, bodies.TRAITS)
        traits = sorted(set(body['traits']))
        for name in traits:
            if name not in self._custom_traits and name not in _standard_traits():
                raise RefusedError(400, f'No such trait {name}')
        if traits != provider.traits:
            provider.traits = traits
            provider.generation += 1
        return self._get_traits(asked)

    def _get_aggregates(self, asked: _Asked) -> _Answer:
        provider = self._provider(asked)
        return _Answer(200, {'aggregates': provider.aggregates, **_generation(provider)})

    def _set_aggregates(self, asked: _Asked) -> _Answer:
        provider, body = self._to_change(asked, bodies.AGGREGATES)
        provider.aggregates = body['aggregates']
        provider.generation += 1
        return self._get_aggregates(asked)

    def _get_usages(self, asked: _Asked) -> _Answer:
        provider = self._provider(asked)
        used = {name: provider.used.get(name, 0) for name in provider.inventory}
        return _Answer(200, {'usages': used, **_generation(provider)})

    def _get_holders(self, asked: _Asked) -> _Answer:
        provider = self._provider(asked)
        holders = {
            uuid: {'resources': held, 'consumer_generation': consumer.generation}
            for uuid, held in provider.holders.items()
            if (consumer := self._consumers.get(uuid)) is not None
        }
        return _Answer(200, {'allocations': holders, **_generation(provider)})

    # --- names -------------------------------------------------------------------------------------------------------

    def _put_class(self, asked: _Asked) -> _Answer:
        name = bodies.CUSTOM_NAME.read(asked.name)
        if name in self._class_ids:
            return _Answer(204)
        self._class_ids[name] = max(_FIRST_CUSTOM - 1, *self._class_ids.values()) + 1
        return _Answer(201)

    def _put_trait(self, asked: _Asked) -> _Answer:
        name = bodies.CUSTOM_NAME.read(asked.name)
        is_new = name not in self._custom_traits
        self._custom_traits[name] = None
        return _Answer(201 if is_new else 204)

    def _list_traits(self, asked: _Asked) -> _Answer:
        if asked.query:
            raise NotImplementedError('FakePlacement does not implement a query of /traits; use InProcessPlacement')
        return _Answer(200, {'traits': [*sorted(_standard_traits()), *self._custom_traits]})

    # --- allocations -------------------------------------------------------------------------------------------------

    def _get_allocations(self, asked: _Asked) -> _Answer:
        consumer = self._consumers.get(asked.name)
        if consumer is None:
            return _Answer(200, {'allocations': {}})
        held = {
            uuid: {'generation': self._providers[uuid].generation, 'resources': resources}
            for uuid, resources in consumer.held.items()
        }
        return _Answer(
            200,
            {
                'allocations': held,
                'project_id': consumer.project_id,
                'user_id': consumer.user_id,
                'consumer_generation': consumer.generation,
                'consumer_type': consumer.consumer_type,
            },
        )

    def _put_allocations(self, asked: _Asked) -> _Answer:
        if not uuidutils.is_uuid_like(asked.name):
            raise RefusedError(400, f'Malformed consumer_uuid: {asked.name}')
        self._consumers.write({str(UUID(asked.name)): bodies.WRITE.read(asked.body)})
        return _Answer(204)

    def _post_allocations(self, asked: _Asked) -> _Answer:
        self._consumers.write(bodies.WRITES.read(asked.body))
        return _Answer(204)

    def _delete_allocations(self, asked: _Asked) -> _Answer:
        if self._consumers.get(asked.name) is None:
            raise RefusedError(404, f"No allocations for consumer '{asked.name}'")
        self._consumers.delete(asked.name)
        return _Answer(204)

    def _candidates(self, asked: _Asked) -> _Answer:
        return _Answer(200, Search(self._providers, self._class_ids, self._hashed_as).run(asked.query))


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


def _generation(provider: Provider) -> dict[str, int]:
    return {'resource_provider_generation': provider.generation}


def _shown(provider: Provider) -> dict[str, Any]:
    return {
        'uuid': provider.uuid,
        'name': provider.name,
        'generation': provider.generation,
        'parent_provider_uuid': provider.parent and provider.parent.uuid,
        'root_provider_uuid': provider.root.uuid,
    }
