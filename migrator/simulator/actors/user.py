# SPDX-License-Identifier: Apache-2.0

"""A user of a simulated cloud, who repeats requests without a response."""

from __future__ import annotations

import http
from collections.abc import Callable

import webob

from migrator.objects import Instance, Migration, MigrationStatus
from migrator.simulator.actors.supervisor import Supervisor
from migrator.testing.simulation.sim_thread import ProcessKilled
from migrator.testing.simulation.threads import TimedOut

#: Seconds after which a request without a response is repeated.
_AGAIN = 2.0
#: How often a user repeats a request.
_TRIES = 60
#: The first microversion in which a host is forced only if the request says so.
_FORCE = (2, 30)


def _live(host: str | None) -> dict[str, object]:
    return {'os-migrateLive': {'host': host, 'block_migration': 'auto'}}


def _cold(host: str | None) -> dict[str, object]:
    return {'migrate': None if host is None else {'host': host}}


def resize_to(flavor: str) -> dict[str, object]:
    """Return the body of a request to resize a server to a flavor."""
    return {'resize': {'flavorRef': flavor}}


class User:
    """The user of one cloud.

    :param supervisor: knows whether the REST API runs.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self.cloud = supervisor.cloud
        self.simulation = supervisor.simulation
        self._supervisor = supervisor
        self._has_given_up = False

    def give_up(self) -> None:
        """Repeat no more requests, since the run ends."""
        self._has_given_up = True

    # --- requests ----------------------------------------------------------------------------------------------------

    def request(self, method: str, path: str, body: object = None, version: str = '2.80') -> webob.Response | None:
        """Send a request and return its response, or None if the connection was lost before it."""
        if 'api' in self._supervisor.down:
            return None
        try:
            return self.cloud.request(method, path, body, version=version)
        except ProcessKilled:
            return None

    def ask(self, send: Callable[[], webob.Response | None], done: Callable[[], bool]) -> webob.Response | None:
        """Send a request until its status is below 500 or its purpose is reached.

        :param done: returns whether the purpose is reached.
        :returns: the last response.
        """
        answer: webob.Response | None = None
        for _ in range(40):
            if done():
                break
            answer = send()
            if answer is not None and answer.status_int < 500:
                break
            self.wait(_AGAIN)
        return answer

    def migrate(self, instance: Instance, host: str | None = None) -> webob.Response | None:
        """Request a live migration until it is accepted, refused or in progress."""
        before, body = self.newest(instance), _live(host)
        return self.ask(
            lambda: self.request('POST', f'/servers/{instance.uuid}/action', body),
            lambda: self.newest(instance) != before and not self.ended(instance),
        )

    def force_to(self, instance: Instance, host: str, version: str) -> webob.Response | None:
        """Request once a live migration to a host that may be disabled, and return the response.

        :param version: below 2.30, where each host is taken as it is named, or one that has ``force``.
        """
        body: dict[str, object] = {'host': host, 'block_migration': 'auto'}
        if tuple(int(part) for part in version.split('.')) >= _FORCE:
            body['force'] = True
        return self.request('POST', f'/servers/{instance.uuid}/action', {'os-migrateLive': body}, version)

    def migrate_soon(self, instance: Instance, host: str | None = None, cold: bool = False) -> None:
        """Let a user request a migration, live or cold, again and again until it is accepted, or give up."""
        self.act_soon(instance, _cold(host) if cold else _live(host))

    def act_soon(self, instance: Instance, body: dict[str, object]) -> None:
        """Let a user request an action that begins a migration, until it is accepted, or give up."""
        world = self.cloud.world.threads
        before = self.newest(instance)

        def ask() -> None:
            for _ in range(_TRIES):
                if self._has_given_up or (self.newest(instance) != before and not self.ended(instance)):
                    return
                answer = self.request('POST', f'/servers/{instance.uuid}/action', body)
                if answer is not None and answer.status_int == http.HTTPStatus.ACCEPTED:
                    return
                world.sleep(_AGAIN)

        world.start(ask, name='a user')

    def evacuate(self, instance: Instance, host: str | None = None, version: str = '2.80') -> webob.Response | None:
        """Request an evacuation until it is accepted, refused or in progress."""
        before = self.newest(instance)
        return self.ask(
            lambda: self.request_evacuation(instance, host, version=version),
            lambda: self.newest(instance) != before and not self.ended(instance),
        )

    def request_evacuation(
        self, instance: Instance, host: str | None = None, force: bool = False, version: str = '2.80'
    ) -> webob.Response | None:
        """Request an evacuation once and return the response, or None if the connection was lost before it.

        :param force: whether the named host is taken without a check by Placement, as version 2.67 allows.
        """
        body = {'evacuate': {'host': host, 'force': True} if force else {} if host is None else {'host': host}}
        return self.request('POST', f'/servers/{instance.uuid}/action', body, '2.67' if force else version)

    def migrate_cold(self, instance: Instance, host: str | None = None) -> webob.Response | None:
        """Request a cold migration until it is accepted, refused or in progress."""
        before, body = self.newest(instance), _cold(host)
        return self.ask(
            lambda: self.request('POST', f'/servers/{instance.uuid}/action', body),
            lambda: self.newest(instance) != before and not self.ended(instance),
        )

    def resize(self, instance: Instance, flavor: str) -> webob.Response | None:
        """Request a resize until it is accepted, refused or in progress."""
        before, body = self.newest(instance), resize_to(flavor)
        return self.ask(
            lambda: self.request('POST', f'/servers/{instance.uuid}/action', body),
            lambda: self.newest(instance) != before and not self.ended(instance),
        )

    def decide(self, instance: Instance, action: str) -> webob.Response | None:
        """Request to confirm or to revert a migration until it is accepted, refused or recorded.

        :param action: ``confirmResize`` or ``revertResize``.
        """

        def done() -> bool:
            row = self.newest(instance)
            return row is None or row.ended or bool(row.confirm_requested_at or row.revert_requested_at)

        return self.ask(lambda: self.request('POST', f'/servers/{instance.uuid}/action', {action: None}), done)

    def decide_later(self, instance: Instance, action: str, wait: float) -> None:
        """Let a user confirm or revert an instance's cold migration once it is finished, and for a while.

        :param action: ``confirmResize`` or ``revertResize``.
        :param wait: seconds between the end of the move and the first request.
        """
        world = self.cloud.world.threads

        def act() -> None:
            for _ in range(_TRIES):
                row = self.newest(instance)
                if row is not None and row.status == MigrationStatus.FINISHED:
                    break
                world.sleep(_AGAIN)
            world.sleep(wait)
            for _ in range(_TRIES):
                row = self.newest(instance)
                if self._has_given_up or row is None or row.status != MigrationStatus.FINISHED:
                    return
                answer = self.request('POST', f'/servers/{instance.uuid}/action', {action: None})
                if answer is not None and answer.status_int < http.HTTPStatus.MULTIPLE_CHOICES:
                    return
                world.sleep(_AGAIN)

        world.start(act, name='a user')

    def abort(self, instance: Instance) -> webob.Response | None:
        """Request the abort of an instance's newest migration until it is accepted, refused or recorded."""
        migration = self.newest(instance)
        if migration is None:
            return None
        path = f'/servers/{instance.uuid}/migrations/{migration.id}'

        def done() -> bool:
            row = self.newest(instance)
            return row is None or row.ended or row.abort_requested_at is not None

        return self.ask(lambda: self.request('DELETE', path), done)

    def force_complete(self, instance: Instance) -> webob.Response | None:
        """Request to force-complete an instance's newest migration until it is accepted, refused or recorded."""
        migration = self.newest(instance)
        if migration is None:
            return None
        path = f'/servers/{instance.uuid}/migrations/{migration.id}/action'

        def done() -> bool:
            row = self.newest(instance)
            return row is None or row.ended or row.force_complete_requested_at is not None

        return self.ask(lambda: self.request('POST', path, {'force_complete': None}), done)

    # --- what the user sees ------------------------------------------------------------------------------------------

    def newest(self, instance: Instance) -> Migration | None:
        """Return an instance's newest migration, or None."""
        found = self.cloud.migrations(instance)
        return found[-1] if found else None

    def ended(self, instance: Instance) -> bool:
        """Return whether an instance has no migration in progress."""
        row = self.newest(instance)
        return row is None or row.ended

    # --- time --------------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.simulation.advance(seconds)

    def until_time(self, moment: float) -> None:
        """Let time pass until a time on the simulation's clock."""
        if moment > self.simulation.time:
            self.simulation.advance(moment - self.simulation.time)

    def until(self, predicate: Callable[[], object], within: float = 60.0) -> bool:
        """Let time pass until a predicate is true; return whether it became true in time."""
        try:
            self.simulation.run_until(predicate, timeout=within)
        except TimedOut:
            return False
        return True

    def until_status(self, instance: Instance, *statuses: str, within: float = 60.0) -> bool:
        """Let time pass until an instance's newest migration has ended or has one of some statuses.

        :returns: whether it has one of the statuses and has not ended.
        """

        def there() -> bool:
            row = self.newest(instance)
            return row is None or row.status in statuses or row.ended

        return self.until(there, within) and not self.ended(instance)
