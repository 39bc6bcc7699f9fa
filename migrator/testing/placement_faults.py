# SPDX-License-Identifier: Apache-2.0

"""Faults of requests to Placement, for tests: an adapter that loses, refuses, delays and repeats them."""

from __future__ import annotations

import dataclasses
import enum
import re
from json import dumps
from typing import Any

import requests
from keystoneauth1.exceptions import ConnectFailure, ConnectTimeout

from migrator.testing import placement


class Fault(enum.Enum):
    """The fault of one request."""

    #: The client gets no connection. The request is certainly not done.
    UNREACHABLE = enum.auto()
    #: The request is lost. The client gets a time-out.
    TIMEOUT_NOT_DONE = enum.auto()
    #: The request is done and its response is lost. The client gets a time-out.
    TIMEOUT_DONE = enum.auto()
    #: The client gets a time-out. The request is done when :meth:`FaultyAdapter.deliver` is called.
    TIMEOUT_LATE = enum.auto()
    #: The request is done, and done again when :meth:`FaultyAdapter.deliver` is called.
    DUPLICATED = enum.auto()
    #: The response is 409 placement.concurrent_update. The request is not done.
    CONFLICT = enum.auto()
    #: The response is 409 with another code, as without room. The request is not done.
    REFUSED = enum.auto()
    #: The response is 500. The request is not done.
    ERROR_NOT_DONE = enum.auto()
    #: The response is 500, although the request is done.
    ERROR_DONE = enum.auto()
    #: The response is 200 with a JSON object without any expected key, as from another service. It is not done.
    ODD = enum.auto()


@dataclasses.dataclass
class _Plan:
    fault: Fault
    method: str | None
    url: re.Pattern[str]
    skip: int
    times: int


class FaultyAdapter:
    """An adapter that applies planned faults to requests and passes all other requests on.

    :param adapter: the adapter that sends the requests.
    """

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter
        self._plans: list[_Plan] = []
        self._held: list[tuple[str, str, dict[str, Any]]] = []
        #: Whether no request gets a connection.
        self.away = False
        #: Every requested (method, url), with or without a fault.
        self.sent: list[tuple[str, str]] = []

    def inject(self, fault: Fault, *, method: str | None = None, url: str = '', skip: int = 0, times: int = 1) -> None:
        """Plan a fault.

        :param method: hit only requests with this HTTP method.
        :param url: hit only requests whose URL contains a match of this regular expression.
        :param skip: the number of matching requests that pass first.
        :param times: the number of requests to hit.
        """
        self._plans.append(_Plan(fault, method, re.compile(url), skip, times))

    def request(self, url: str, method: str, **kwargs: Any) -> requests.Response:
        """Send one request, or apply the fault that is planned for it."""
        self.sent.append((method, url))
        fault = Fault.UNREACHABLE if self.away else self._planned(method, url)
        if fault in (Fault.TIMEOUT_LATE, Fault.DUPLICATED):
            self._held.append((url, method, kwargs))
        if fault in (None, Fault.DUPLICATED):
            return self._send(url, method, kwargs)
        if fault in (Fault.TIMEOUT_DONE, Fault.ERROR_DONE):
            self._send(url, method, kwargs)
        if fault is Fault.UNREACHABLE:
            raise ConnectFailure(f'Unable to establish connection to {url}: planned by the test')
        if fault in (Fault.ERROR_DONE, Fault.ERROR_NOT_DONE):
            return _answer(500, 'placement.undefined_code')
        if fault is Fault.ODD:
            return _json(200, {'planned': 'by the test'})
        if fault is Fault.CONFLICT:
            return _answer(409, 'placement.concurrent_update')
        if fault is Fault.REFUSED:
            return _answer(409, 'placement.undefined_code')
        raise ConnectTimeout(f'Request to {url} timed out: planned by the test')

    def deliver(self) -> list[requests.Response]:
        """Deliver the held and duplicated requests in order, and return their responses."""
        held, self._held = self._held, []
        return [self._send(url, method, kwargs) for url, method, kwargs in held]

    def _send(self, url: str, method: str, kwargs: dict[str, Any]) -> requests.Response:
        response: requests.Response = self._adapter.request(url, method, **kwargs)
        return response

    def _planned(self, method: str, url: str) -> Fault | None:
        for plan in self._plans:
            if plan.times and plan.method in (None, method) and plan.url.search(url):
                if plan.skip:
                    plan.skip -= 1
                    continue
                plan.times -= 1
                return plan.fault
        return None


#: What the errors say.
DETAIL = 'planned by the test'


def _answer(status: int, code: str) -> requests.Response:
    error = {'status': status, 'title': DETAIL, 'detail': DETAIL, 'code': code}
    return _json(status, {'errors': [error]})


def _json(status: int, document: dict[str, Any]) -> requests.Response:
    return placement.make_response(None, status, [('Content-Type', 'application/json')], dumps(document).encode())
