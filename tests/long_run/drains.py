# SPDX-License-Identifier: Apache-2.0

"""An operator who drains hosts and restores them, one after the other, over the REST API."""

from __future__ import annotations

import collections
import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.long_run.journal import Journal

#: Seconds between two looks, and until a request without a reply is repeated.
LOOK = 1.0
#: The statuses with which a drain or a restore ends.
ENDS = ('completed', 'incomplete', 'cancelled', 'restored')
#: How often a guest may be tried: what fails here is what the faults broke off.
ATTEMPTS = 20
#: The share of drains that are cancelled with their running migrations, and after how many seconds at most.
CANCELLED, AFTER = 0.15, 40
#: How often a restore that left guests elsewhere is repeated.
RESTORES = 5


class Operator:
    """An operator who empties one of some hosts, brings its guests back, and begins again.

    :param hosts: which no other operator drains.
    :param url: of the REST API.
    :param patience: seconds in which a drain or a restore has to end.
    :ivar accepted: the drains that the API has accepted.
    :ivar ends: how many drains and restores have ended with each status.
    :ivar late: in words, each drain that has not ended in time.
    """

    def __init__(self, hosts: Sequence[str], url: str, seed: int, patience: float, journal: Journal) -> None:
        self._hosts = list(hosts)
        self._url = url
        self._dice = random.Random(seed)  # noqa: S311 -- to be repeated, not secret
        self._patience = patience
        self._journal = journal
        self._goes = threading.Event()
        self._goes.set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f'operator of {self._hosts}', daemon=True)
        self.resting = threading.Event()
        self.accepted: set[str] = set()
        self.ends: collections.Counter[str] = collections.Counter()
        self.late: list[str] = []

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def hold(self) -> None:
        """Begin no further drain; :attr:`resting` is set when the guests are back."""
        self._goes.clear()

    def go_on(self) -> None:
        """Undo :meth:`hold`."""
        self.resting.clear()
        self._goes.set()

    def close(self) -> None:
        """End, whatever its drain does."""
        self._closed.set()
        self._goes.set()
        self._thread.join(60)

    # --- its thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._drain_and_restore()
        except Exception as error:  # noqa: BLE001 -- the piece reports it
            self.late.append(f'the operator of {self._hosts} has failed: {error!r}')
            self.resting.set()

    def _drain_and_restore(self) -> None:
        while not self._closed.is_set():
            if not self._goes.is_set():
                self.resting.set()
                self._goes.wait()
                continue
            host = self._dice.choice(self._hosts)
            uuid = self._begin(host)
            if uuid is not None and self._dice.random() < CANCELLED:
                self._closed.wait(self._dice.uniform(1, AFTER))
                self._until(lambda uuid=uuid: self._act(uuid, {'cancel': {'abort_running': True}}))
            if uuid is None or self._end_of(uuid, host) is None:
                continue
            for _ in range(RESTORES):
                answer = self._until(lambda uuid=uuid: self._act(uuid, {'restore': None}))
                # 409: no guest has to come back, or the request was accepted and the reply was lost
                if answer is None or (answer == 409 and self._until(lambda uuid=uuid: self._look(uuid)) in ENDS):
                    break
                if self._end_of(uuid, host) != 'incomplete':
                    break

    def _begin(self, host: str) -> str | None:
        def ask() -> str | None:
            status, said = self._ask('POST', '/drains', {'host': host, 'max_attempts': ATTEMPTS})
            if status == 202:
                return str(said['drain']['uuid'])
            if status == 409:
                _, listed = self._ask('GET', f'/drains?host={host}&in_progress=true')
                return next((str(one['uuid']) for one in (listed or {}).get('drains', ())), None)
            return None

        uuid = self._until(ask)
        if uuid is not None:
            self.accepted.add(uuid)
        return uuid

    def _act(self, uuid: str, action: Mapping[str, Any]) -> int | None:
        status, _said = self._ask('POST', f'/drains/{uuid}/action', action)
        return status if status in (202, 409) else None

    def _look(self, uuid: str) -> str | None:
        status, answer = self._ask('GET', f'/drains/{uuid}')
        return str(answer['drain']['status']) if status == 200 else None

    def _end_of(self, uuid: str, host: str) -> str | None:
        """Return the status with which a drain ends; None if it does not in time."""
        began = time.monotonic()
        said: dict[str, Any] = {}

        def ended() -> str | None:
            nonlocal said
            status, answer = self._ask('GET', f'/drains/{uuid}')
            said = answer['drain'] if status == 200 else said
            status_of = said.get('status')
            return status_of if status_of in ENDS else None

        status = self._until(ended)
        if status is None and not self._closed.is_set():
            self.late.append(f'drain {uuid} of {host} is {said.get("status")}: {said.get("waits_for")}')
        if status is not None:
            self.ends[status] += 1
            took, message = round(time.monotonic() - began, 1), said.get('message')
            self._journal.write('drain', host=host, uuid=uuid, status=status, took=took, message=message)
        return status

    def _until(self, ask: Callable[[], Any]) -> Any:
        """Ask again and again, and return the first answer; None after the patience."""
        until = time.monotonic() + self._patience
        while time.monotonic() < until and not self._closed.wait(LOOK):
            found = ask()
            if found is not None:
                return found
        return None

    def _ask(self, method: str, path: str, body: Any = None) -> tuple[int | None, Any]:
        """Send one request; the status is None if no reply came."""
        headers = {'X-Auth-Token': 'admin', 'Content-Type': 'application/json'}
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(f'{self._url}/migrator/v1{path}', data, headers, method=method)  # noqa: S310 -- a URL of ours
        try:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(asked, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, None
        except (OSError, ValueError):
            return None, None
