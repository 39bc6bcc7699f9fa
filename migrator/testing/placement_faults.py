# SPDX-License-Identifier: Apache-2.0

"""Faults on the way to Placement, for tests: an adapter that loses, refuses, delays and repeats."""

from __future__ import annotations

import dataclasses
import enum
import json as jsonlib
import re
from typing import Any

import requests
from keystoneauth1 import exceptions as ks_exceptions

from migrator.testing import placement


class Fault(enum.Enum):
    """What happens to a request."""

    #: No connection: surely not done.
    UNREACHABLE = enum.auto()
    #: Lost on its way: a time-out, not done.
    TIMEOUT_NOT_DONE = enum.auto()
    #: Done, and the answer lost: a time-out.
    TIMEOUT_DONE = enum.auto()
    #: A time-out; it is held on its way, and done when :meth:`FaultyAdapter.deliver` is called.
    TIMEOUT_LATE = enum.auto()
    #: Done, and once more when :meth:`FaultyAdapter.deliver` is called.
    DUPLICATED = enum.auto()
    #: 409 placement.concurrent_update, not done.
    CONFLICT = enum.auto()
    #: 409 of another code, as when there is no room; not done.
    REFUSED = enum.auto()
    #: 500, not done; and 500 although it was done.
    ERROR_NOT_DONE = enum.auto()
    ERROR_DONE = enum.auto()
    #: 200 with a JSON object in which nothing is that should be, as of another service; not done.
    ODD = enum.auto()


@dataclasses.dataclass
class _Plan:
    fault: Fault
    method: str | None
    url: re.Pattern[str]
    skip: int
    times: int


class FaultyAdapter:
    """Stands before an adapter and does to its requests what a test has planned; the rest goes through.

    :param adapter: the real one.
    """

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter
        self._plans: list[_Plan] = []
        self._held: list[tuple[str, str, dict[str, Any]]] = []
        #: Every (method, url) that was asked for, whatever became of it.
        self.sent: list[tuple[str, str]] = []

    def inject(self, fault: Fault, *, method: str | None = None, url: str = '', skip: int = 0, times: int = 1) -> None:
        """Plan a fault.

        :param method: only for this HTTP method.
        :param url: only where this regular expression is found in the URL.
        :param skip: let so many matching requests pass first.
        :param times: how many requests it hits.
        """
        self._plans.append(_Plan(fault, method, re.compile(url), skip, times))

    def request(self, url: str, method: str, **kwargs: Any) -> requests.Response:
        """Send one request, or what is planned for it."""
        self.sent.append((method, url))
        fault = self._planned(method, url)
        if fault in (Fault.TIMEOUT_LATE, Fault.DUPLICATED):
            self._held.append((url, method, kwargs))
        if fault in (None, Fault.DUPLICATED):
            return self._send(url, method, kwargs)
        if fault in (Fault.TIMEOUT_DONE, Fault.ERROR_DONE):
            self._send(url, method, kwargs)
        if fault is Fault.UNREACHABLE:
            raise ks_exceptions.ConnectFailure(f'Unable to establish connection to {url}: planned by the test')
        if fault in (Fault.ERROR_DONE, Fault.ERROR_NOT_DONE):
            return _answer(500, 'placement.undefined_code')
        if fault is Fault.ODD:
            return _json(200, {'planned': 'by the test'})
        if fault is Fault.CONFLICT:
            return _answer(409, 'placement.concurrent_update')
        if fault is Fault.REFUSED:
            return _answer(409, 'placement.undefined_code')
        raise ks_exceptions.ConnectTimeout(f'Request to {url} timed out: planned by the test')

    def deliver(self) -> list[requests.Response]:
        """Let what was held or duplicated arrive now, in order, and return the answers that nobody waits for."""
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


def _answer(status: int, code: str) -> requests.Response:
    error = {'status': status, 'title': 'planned by the test', 'detail': 'planned by the test', 'code': code}
    return _json(status, {'errors': [error]})


def _json(status: int, document: dict[str, Any]) -> requests.Response:
    return placement.make_response(
        None, status, [('Content-Type', 'application/json')], jsonlib.dumps(document).encode()
    )
