# SPDX-License-Identifier: Apache-2.0

"""The client of Nova's REST API: one method sends every request and converts the errors.

The class of an error says what a caller may assume:

- :class:`~migrator.nova.errors.NovaUnreachable`: the request may or may not have been done. Look before it is repeated.
- :class:`~migrator.nova.errors.NovaRefused`: the request was not done.
"""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol
from urllib import parse

import requests
from keystoneauth1 import exceptions
from oslo_config import cfg

from migrator import exception
from migrator.conf import keystone
from migrator.nova import errors, resources
from migrator.nova.resources import (
    Action,
    ActionEvent,
    Aggregate,
    Hypervisor,
    NovaMigration,
    Server,
    ServerGroup,
    Service,
)
from migrator.objects import COMPUTE_BINARY
from migrator.placement_client.client import DENIED, NOT_NOW, adapter_from_conf, public

#: The oldest microversion that is enough: a queued migration can be aborted. And the newest that this client knows.
LEAST, NEWEST = (2, 65), (2, 103)
#: The newest microversion that shows how many guests a hypervisor runs.
_RUNNING_VMS = (2, 87)
#: The amounts of memory of a live migration, by Nova's names.
AMOUNTS = ('memory_total_bytes', 'memory_processed_bytes', 'memory_remaining_bytes')
#: The newest microversion with which Nova starts an evacuated guest that ran before.
_EVACUATES_AND_STARTS = (2, 94)
#: Seconds without an answer after which Nova counts as unreachable.
TIMEOUT = 60.0
#: The number of items that are asked for at a time. Nova's own maximum may be lower.
_PAGE = 500
#: The greatest number of pages of one list. A list that goes on after them does not end.
_PAGES = 1000
#: The ids that Nova gives requests.
_REQUEST_ID = re.compile(r'req-[0-9a-f-]{36}')
#: The most characters of an answer that is not Nova's.
_SHOWN = 300


class Adapter(Protocol):
    """The part of a keystoneauth1 adapter that the client uses; tests replace it."""

    def request(self, url: str, method: str, **kwargs: Any) -> requests.Response:
        """Send one request to the service."""

    def get_token(self) -> str | None:
        """Return the last token while it is valid, else a new one."""

    def get_user_id(self) -> str | None:
        """Return the id of the user."""

    def get_endpoint(self, *, skip_discovery: bool) -> str | None:
        """Return the endpoint as the catalog has it."""

    def get_endpoint_data(self) -> Any:
        """Return the endpoint with the microversions that it supports."""


class Requests:
    """The requests to Nova's REST API, with the newest microversion that both sides know.

    :param adapter: of the compute service.
    """

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._negotiated: tuple[int, int] | None = None
        self._url: str | None = None

    @property
    def microversion(self) -> tuple[int, int]:
        """The microversion of the requests: the newest that both sides know."""
        if self._negotiated is None:
            self._negotiated = self._negotiate()
        return self._negotiated

    @property
    def user_id(self) -> str:
        """The id of the user, as Nova shows it in the actions on a guest; empty if it is not known."""
        with of_identity():
            return self._adapter.get_user_id() or ''

    def _negotiate(self) -> tuple[int, int]:
        with of_identity():
            self._adapter.get_token()
        with _as_ours('GET /'):
            found = self._adapter.get_endpoint_data()
        if found is None or found.max_microversion is None:
            raise self._why_no_versions()
        least, newest = found.min_microversion, found.max_microversion
        if newest < LEAST or least > NEWEST:
            wanted = _dotted(LEAST) if newest < LEAST else f'at most {_dotted(NEWEST)}'
            raise errors.NovaTooOld(url=public(found.url), least=_dotted(least), newest=_dotted(newest), wanted=wanted)
        # The address of an override may be without a version too, and keystoneauth1 takes it as it is.
        self._url = found.url
        return min(NEWEST, (int(newest[0]), int(newest[1])))

    def _why_no_versions(self) -> exception.MigratorException:
        """Return why no microversions were found: keystoneauth1 does not say that a server has not answered."""
        with _as_ours('the service catalog'):
            url = self._adapter.get_endpoint(skip_discovery=True)
        if url is None:
            return errors.NovaUnreachable(reason='the service catalog has no compute endpoint for this region')
        self._url = url
        try:
            self._send('GET', '/', LEAST)
        except errors.NovaRefused:
            pass
        except exception.MigratorException as error:
            return error
        return errors.NovaUnreachable(
            reason=f'{public(url)} shows no microversions of version 2.1, so it may not be Nova'
        )

    def _pages(
        self,
        path: str,
        name: str,
        query: Mapping[str, str],
        limit: int | None = None,
        version: tuple[int, int] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield the items of a list, page by page, as long as Nova links to a next one.

        If the item at which a page begins was deleted meanwhile, the page begins at the item before, or at the first.
        """
        left, asked, markers, known = limit, dict(query), list[str](), set[str]()
        for _ in range(_PAGES):
            asked['limit'] = str(_PAGE if left is None else min(_PAGE, left))
            try:
                page = self._read(path, asked, version)
            except errors.NovaRefused as error:
                if error.status != 400 or asked.pop('marker', None) is None:
                    raise
                asked |= {'marker': markers.pop()} if markers else {}
                continue
            new = [one for one in page[name] if _key(one) not in known]
            yield from new
            left = None if left is None else left - len(new)
            known |= {_key(one) for one in new}
            link = next((one['href'] for one in page.get(f'{name}_links', []) if one['rel'] == 'next'), None)
            if link is None or not page[name] or (left is not None and left <= 0):
                return
            # Only the marker counts: the address in the link may be one that only Nova can reach.
            asked['marker'] = parse.parse_qs(parse.urlsplit(link).query)['marker'][0]
            markers = [_key(one) for one in page[name][:-1]]
        raise errors.NovaUnreachable(reason=f'GET {path} does not end after {_PAGES} pages')

    def _read(
        self, path: str, query: Mapping[str, str] | None = None, version: tuple[int, int] | None = None
    ) -> dict[str, Any]:
        response = self._send('GET', path, version, params=query)
        try:
            found: dict[str, Any] = response.json()
        except ValueError:
            raise errors.NovaUnreachable(reason=f'the server that answered GET {path} is not Nova') from None
        return found

    def _read_or_none(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any] | None:
        try:
            return self._read(path, query)
        except errors.NovaRefused as error:
            if error.status == 404:
                return None
            raise

    def _send(self, method: str, path: str, version: tuple[int, int] | None = None, **more: Any) -> requests.Response:
        """Send one request; every other method uses this one.

        keystoneauth1 must not retry, because a write may have been done. Only after a 401 it fetches a new token and
        sends the request again.
        """
        wanted = _dotted(version or self.microversion)
        with of_identity():  # a new token, if the old one is about to expire
            self._adapter.get_token()
        with _as_ours(f'{method} {path}'):
            response = self._adapter.request(
                path,
                method,
                endpoint_override=self._url,
                microversion=wanted,
                raise_exc=False,
                connect_retries=0,
                status_code_retries=0,
                timeout=TIMEOUT,
                headers={'Accept': 'application/json'},
                **more,
            )
        if response.status_code >= 400:
            raise _error_of(method, path, response)
        return response


class Nova(Requests):
    """The calls of Nova's REST API that a drain needs. Lists are of all tenants, and read page by page.

    Each method may raise :class:`~migrator.nova.errors.NovaUnreachable`, :class:`~migrator.nova.errors.NovaRefused`
    and :class:`~migrator.nova.errors.NovaTooOld`.
    """

    # --- guests and their migrations ---------------------------------------------------------------------------------

    def servers(
        self, host: str | None = None, *, project_id: str | None = None, requests: int | None = None
    ) -> list[Server]:
        """Return the guests of a host, of a project, or all guests, the oldest first.

        :param requests: about how many requests may be sent, whatever is left out then; None: any number.
        """
        query = {'all_tenants': '1', 'sort_key': 'created_at', 'sort_dir': 'asc'}
        query |= _given(host=host, project_id=project_id)
        limit = None if requests is None else requests * _PAGE
        return [resources.server_of(one) for one in self._pages('/servers/detail', 'servers', query, limit)]

    def server(self, uuid: str) -> Server | None:
        """Return a guest, or None if it is deleted.

        :raises migrator.nova.errors.NovaUnreachable: the database of its cell does not answer.
        """
        found = self._read_or_none(f'/servers/{uuid}')
        if found is None:
            return None
        server = resources.server_of(found['server'])
        if server.status == 'UNKNOWN':
            raise errors.NovaUnreachable(reason=f'the database of the cell of server {uuid} does not answer')
        return server

    def migrations(
        self,
        *,
        instance_uuid: str | None = None,
        host: str | None = None,
        source: str | None = None,
        status: str | None = None,
        changes_since: datetime.datetime | None = None,
        type: str | None = None,
        limit: int | None = None,
    ) -> list[NovaMigration]:
        """Return migrations of guests that exist, the newest first.

        :param host: their source or their destination.
        :param source: their source.
        :param changes_since: Nova leaves out a row that was never updated, such as a new one in ``accepted``.
        :param limit: the greatest number of them; None: all.
        """
        query = _given(
            instance_uuid=instance_uuid,
            host=host,
            source_compute=source,
            status=status,
            migration_type=type,
        )
        if changes_since is not None:
            query['changes-since'] = changes_since.strftime('%Y-%m-%dT%H:%M:%SZ')
        return [resources.migration_of(one) for one in self._pages('/os-migrations', 'migrations', query, limit)]

    def each_migration(self) -> Iterator[NovaMigration]:
        """Yield the migrations of all guests that exist, the newest first. It reads a page when needed."""
        yield from map(resources.migration_of, self._pages('/os-migrations', 'migrations', {}))

    def remembers_migration(self, uuid: str) -> bool:
        """Return whether Nova has a migration, even if no list shows it because its guest was deleted."""
        try:
            # Nova takes a migration of a deleted guest for the marker of a list.
            self._read('/os-migrations', {'marker': uuid, 'limit': '1'})
        except errors.NovaRefused as error:
            if error.status == 400:
                return False
            raise
        return True

    def migrate_live(self, uuid: str, host: str | None = None) -> None:
        """Request a live migration.

        Nova accepts it before it has an id, and may find afterwards that it is impossible.

        :param host: the destination; None: Nova's scheduler chooses it.
        """
        self._send(
            'POST', f'/servers/{uuid}/action', json={'os-migrateLive': {'host': host, 'block_migration': 'auto'}}
        )

    def migrate(self, uuid: str, host: str | None = None) -> str | None:
        """Request a cold migration. Nova answers before it has an id.

        :param host: the destination; None: Nova's scheduler chooses it.
        :returns: the id of the request, by which its action is found; None: the answer has none.
        """
        wanted = {'host': host} if host is not None else None
        answer = self._send('POST', f'/servers/{uuid}/action', json={'migrate': wanted})
        request_id = answer.headers.get('x-openstack-request-id') or ''
        return request_id if _REQUEST_ID.fullmatch(request_id) else None

    def confirm(self, uuid: str) -> None:
        """Request the confirmation of the cold migration, or of the resize, of a guest in VERIFY_RESIZE."""
        self._send('POST', f'/servers/{uuid}/action', json={'confirmResize': None})

    def evacuate(self, uuid: str, host: str | None = None, starts: bool = False) -> None:
        """Request the evacuation of a guest whose host is down. It has a migration once Nova has accepted it.

        :param host: the destination; None: Nova's scheduler chooses it.
        :param starts: whether a guest that ran before is started there; if not, Nova leaves it shut off from 2.95 on.
        """
        version = min(self.microversion, _EVACUATES_AND_STARTS) if starts else None
        self._send('POST', f'/servers/{uuid}/action', version, json={'evacuate': _given(host=host)})

    def abort(self, uuid: str, migration_id: int) -> None:
        """Request the abort of a live migration that is queued, preparing or running."""
        self._send('DELETE', f'/servers/{uuid}/migrations/{migration_id}')

    def progress(self, uuid: str, migration_id: int) -> dict[str, int | None]:
        """Return the amounts of memory of a live migration in bytes, as far as Nova shows them.

        :returns: :data:`AMOUNTS`; {} once it has ended.
        """
        found = (self._read_or_none(f'/servers/{uuid}/migrations', {}) or {}).get('migrations', [])
        mine: dict[str, Any] = next((one for one in found if one.get('id') == migration_id), {})
        return {name: mine[name] for name in AMOUNTS if mine.get(name) is not None}

    def actions(self, uuid: str, limit: int = 10) -> list[Action]:
        """Return the newest actions on a guest, the newest first, also on one that Nova remembers as deleted."""
        path = f'/servers/{uuid}/os-instance-actions'
        found = self._read_or_none(path, {'limit': str(limit)})
        if found is not None and not isinstance(found.get('instanceActions'), list):
            raise errors.NovaUnreachable(reason=f'the server that answered GET {path} is not Nova')
        return [resources.action_of(one) for one in (found or {}).get('instanceActions', [])]

    def events(self, uuid: str, request_id: str) -> list[ActionEvent]:
        """Return the events of one action on a guest, the oldest first."""
        found = self._read_or_none(f'/servers/{uuid}/os-instance-actions/{request_id}') or {}
        newest_first = found.get('instanceAction', {}).get('events') or []
        return [resources.event_of(one) for one in reversed(newest_first)]

    # --- services and hosts ------------------------------------------------------------------------------------------

    def services(self, binary: str | None = COMPUTE_BINARY, host: str | None = None) -> list[Service]:
        """Return services, of one binary or host if these are given."""
        found = self._read('/os-services', _given(binary=binary, host=host))
        return [resources.service_of(one) for one in found['services']]

    def disable(self, service_id: str, reason: str | None) -> None:
        """Disable a service, so that the scheduler chooses its host no more, or enable it.

        :param reason: None: enable it.
        """
        off = {'status': 'disabled', 'disabled_reason': reason}
        self._send('PUT', f'/os-services/{service_id}', json={'status': 'enabled'} if reason is None else off)

    def force_down(self, service_id: str) -> None:
        """Declare that nothing runs at the host of a service."""
        self._send('PUT', f'/os-services/{service_id}', json={'forced_down': True})

    def hypervisors(self) -> list[Hypervisor]:
        """Return all hypervisors."""
        version = min(self.microversion, _RUNNING_VMS)
        return [
            resources.hypervisor_of(one)
            for one in self._pages('/os-hypervisors/detail', 'hypervisors', {}, version=version)
        ]

    def aggregates(self) -> list[Aggregate]:
        """Return all host aggregates."""
        return [resources.aggregate_of(one) for one in self._read('/os-aggregates')['aggregates']]

    def server_groups(self) -> list[ServerGroup]:
        """Return the server groups of all projects."""
        found: list[ServerGroup] = []
        for _ in range(_PAGES):  # this list has an offset and no marker
            page = self._read(
                '/os-server-groups', {'all_projects': 'True', 'limit': str(_PAGE), 'offset': str(len(found))}
            )
            found += [resources.server_group_of(one) for one in page['server_groups']]
            if not page['server_groups']:
                break
        return found


def client_from_conf(conf: cfg.ConfigOpts) -> Nova:
    """Return a client with the settings of section ``[nova]``; see :func:`.adapter_from_conf`.

    :raises migrator.exception.ConfigurationError: an option is missing or has an invalid value.
    """
    return Nova(versioned(adapter_from_conf(conf, keystone.NOVA)))


def versioned(found: Any) -> Any:
    """Let an adapter look for the versioned endpoint of Nova, and return it.

    An entry of a catalog may have no version, or that of the legacy API, which has no microversions.
    """
    found.min_version, found.max_version = '2.1', '2.latest'
    return found


@contextlib.contextmanager
def of_identity() -> Iterator[None]:
    """Convert the errors of keystoneauth1 while it gets a token.

    :raises migrator.nova.errors.NovaUnreachable: of a subclass for the identity service.
    """
    try:
        yield
    except exceptions.SSLError as error:
        raise errors.NovaUntrusted(reason=f'the identity service: {public(error)}'.rstrip('.')) from error
    except (exceptions.HttpError, exceptions.AuthorizationFailure, exceptions.AuthPluginException) as error:
        if isinstance(error, exceptions.HttpError) and (error.http_status >= 500 or error.http_status in NOT_NOW):
            raise errors.IdentityUnreachable(reason=public(error).rstrip('.')) from error
        raise errors.IdentityRefused(reason=public(error).rstrip('.')) from error
    except (exceptions.ClientException, requests.exceptions.RequestException, OSError) as error:
        raise errors.IdentityUnreachable(reason=public(error).rstrip('.')) from error


@contextlib.contextmanager
def _as_ours(what: str) -> Iterator[None]:
    """Convert the errors of keystoneauth1 and of the transport."""
    try:
        yield
    except (
        exceptions.Unauthorized,
        exceptions.Forbidden,
        exceptions.AuthorizationFailure,
        exceptions.AuthPluginException,
    ) as error:
        raise errors.NovaUnauthorized(reason=public(error)) from error
    except exceptions.SSLError as error:
        raise errors.NovaUntrusted(reason=f'{what}: {public(error)}'.rstrip('.')) from error
    except (exceptions.ClientException, requests.exceptions.RequestException, OSError) as error:
        raise errors.NovaUnreachable(reason=f'{what}: {public(error)}'.rstrip('.')) from error


def _error_of(method: str, path: str, response: requests.Response) -> exception.MigratorException:
    status = response.status_code
    reason = _message_of(response)
    observed = f'it answered {status} to {method} {path}: {reason}'.rstrip('.')
    if status >= 500 or status in NOT_NOW:
        return errors.NovaUnreachable(reason=observed)
    if status in DENIED:
        return errors.NovaUnauthorized(reason=observed)
    return errors.NovaRefused(method=method, url=path, status=status, reason=reason)


def _message_of(response: requests.Response) -> str:
    """Return the message of an error, which is in one object with the name of the error."""
    try:
        (error,) = response.json().values()
        return ' '.join(str(error['message']).split())
    except (ValueError, TypeError, KeyError, AttributeError):  # a proxy may have answered
        return ' '.join(response.text.split())[:_SHOWN] or str(response.reason)


def _key(item: Mapping[str, Any]) -> str:
    """Return what names an item of a list as the marker of the next page."""
    return str(item.get('uuid') or item.get('id') or item.get('request_id'))


def _given(**values: str | None) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}


def _dotted(version: tuple[int, int]) -> str:
    return f'{version[0]}.{version[1]}'
