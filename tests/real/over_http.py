# SPDX-License-Identifier: Apache-2.0

"""Give tests with a Placement in their process the one over HTTP, on PostgreSQL::

    pytest -p tests.real.over_http tests/unit/placement_client tests/functional/test_audit.py

The very same files. Where a test starts its Placement, the one that is shared is emptied; what passes through the
test's hands (requests counted, faults planted, pauses) does so as before, on its way there.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import requests
import webob

from migrator.placement_client import providers
from migrator.placement_client.client import PlacementClient
from migrator.testing import placement
from tests.real.servers.placement import Placement

pytest_plugins = ['tests.real.plugin']

#: What a proxy does not pass on.
_HOP = frozenset({'connection', 'content-length', 'date', 'server', 'transfer-encoding', 'keep-alive'})


class _There(placement.InProcessPlacement):
    """The Placement at :attr:`url`, with the interface of one in process; emptied when it is made."""

    url: str
    #: There is no file to be read past the API.
    contents = None

    def __init__(self, *args: Any, **options: Any) -> None:
        # PostgreSQL takes writers side by side.
        super().__init__(*args, **{'lock': contextlib.nullcontext(), **options})
        before = self.before_request
        self.empty()
        self.before_request = before

    def empty(self) -> None:
        """Remove every allocation and every provider."""
        self.before_request = None
        _empty(PlacementClient(self.adapter()))
        self.requests = []

    def close(self) -> None:
        """Close the connections."""
        for session in self._sessions:
            session.close()

    def _start(self) -> Any:
        self._sessions: list[requests.Session] = []
        self._local = threading.local()
        return self._pass_on

    @contextlib.contextmanager
    def _our_database(self) -> Iterator[None]:
        yield

    def _pass_on(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        asked = webob.Request(environ)
        headers = {name: value for name, value in asked.headers.items() if name.lower() not in ('host', *_HOP)}
        found = self._session().request(asked.method, self.url + asked.path_qs, headers=headers, data=asked.body)
        kept = [(name, value) for name, value in found.headers.items() if name.lower() not in _HOP]
        start_response(f'{found.status_code} {found.reason}', kept)
        return [found.content]

    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._local, 'session', None)
        if session is None:
            session = self._local.session = requests.Session()
            # What the environment says of proxies, and of credentials, is not for here.
            session.trust_env = False
            self._sessions.append(session)
        return session


def _empty(client: PlacementClient) -> None:
    """Remove every allocation and every provider."""
    found = providers.list_providers(client)
    consumers = {consumer for one in found for consumer in providers.allocations_on(client, one.uuid)}
    for consumer in sorted(consumers):
        client.delete(f'/allocations/{consumer}')
    for one in reversed(found):
        client.delete(f'/resource_providers/{one.uuid}')


@pytest.fixture(scope='session', autouse=True)
def _placement_over_http(placement_http: Placement) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, 'InProcessPlacement', type('There', (_There,), {'url': placement_http.url}))
        yield
