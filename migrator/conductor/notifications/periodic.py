# SPDX-License-Identifier: Apache-2.0

"""The periodic task that sends the notifications.

It reads the logs, so no step of a migration knows of it. One living conductor does the work. It records what was sent
only after the bus has accepted it. So after a crash some are sent again, with the same ids, and none is missing.
"""

from __future__ import annotations

from collections.abc import Callable

from oslo_log import log as logging

from migrator import exception, executors
from migrator.conductor.migration.context import Tools
from migrator.conductor.notifications.payload import Notification, notification
from migrator.conductor.notifications.phases import phases
from migrator.db.saga_log import Notified, Unsent
from migrator.objects import Instance
from migrator.objects.instance import stand_in

LOG = logging.getLogger(__name__)

#: Seconds between two looks at the logs.
INTERVAL = 1.0
#: The longest such time while the bus is away.
LONGEST = 60.0
#: Seconds after which a notification that could not be sent is dropped.
OLDEST = 24 * 3600.0
#: The most migrations that one look reads.
_AT_ONCE = 100

#: Puts a message on the bus.
Send = Callable[[Notification], None]


class Notifications:
    """The sender of the notifications of all migrations, if this is the conductor that sends them.

    :param send: puts a message on the bus; it raises :class:`migrator.exception.ServiceUnreachable` if the bus has not
        accepted it.
    :param stopping: set when the conductor has to stop.
    """

    def __init__(self, tools: Tools, send: Send, stopping: executors.Event) -> None:
        self._tools = tools
        self._notified = Notified(tools.database.engine)
        self._send = send
        self._stopping = stopping
        self._interval = INTERVAL
        #: Since when the bus accepts nothing, in monotonic seconds; None: it does.
        self._away_since: float | None = None
        #: The migrations whose notifications could not be derived at the last try -> since when.
        self._failed: dict[str, float] = {}

    def interval(self) -> float:
        """Return the seconds until the next look: more after each failure."""
        return self._interval

    def waits_for(self) -> float:
        """Return the seconds for which notifications have waited that could not be sent; 0: none waits."""
        since = [one for one in (self._away_since, *self._failed.copy().values()) if one is not None]
        return self._tools.threads.clock.monotonic() - min(since) if since else 0.0

    def look(self) -> None:
        """Send the notifications that follow from new entries of the logs.

        :raises migrator.exception.DatabaseUnreachable: the database is unreachable.
        """
        tools = self._tools
        if not tools.owner or tools.database.conductors.first() != tools.owner:
            # another conductor sends what waits
            self._interval, self._away_since, self._failed = INTERVAL, None, {}
            return
        while not self._stopping.is_set() and self._notified.look(OLDEST):
            pass
        try:
            while found := self._notified.unsent(_AT_ONCE):
                for unsent in found:
                    if self._stopping.is_set() or not self._try_all(unsent):
                        return
                if len(found) < _AT_ONCE or self._failed:
                    break
            else:
                self._failed.clear()  # one may be deleted
        except exception.DatabaseUnreachable:
            raise
        except exception.ServiceUnreachable as error:
            if self._away_since is None:
                LOG.warning('Could not send a notification; migrations go on, and it is sent later: %s', error)
                self._away_since = tools.threads.clock.monotonic()
            self._interval = min(2 * self._interval, LONGEST)
        else:
            if self._away_since is not None:
                LOG.info('The bus accepts notifications again')
            self._interval, self._away_since = INTERVAL, None

    def _try_all(self, unsent: Unsent) -> bool:
        """Send what follows from the new entries of one log; if it cannot be derived, go on to the next one.

        :returns: whether this conductor still does the work.
        """
        uuid = unsent.migration.uuid
        try:
            found = self._send_all(unsent)
        except exception.ServiceUnreachable:
            raise
        except Exception:  # an error about one migration must not keep back the notifications of all others
            if uuid not in self._failed:
                LOG.exception('Could not derive the notifications of migration %s; trying again later', uuid)
                self._failed[uuid] = self._tools.threads.clock.monotonic()
            return self._notified.put_last(unsent)
        self._failed.pop(uuid, None)
        return found

    def _send_all(self, unsent: Unsent) -> bool:
        database, row = self._tools.database, unsent.migration
        entries = [one for one in database.migrations.read_log(row.uuid) if one.seq <= row.log_seq]
        found = [one for one in phases(row, entries) if one.seq > unsent.seq]
        if found:
            now, instance = database.services.now(), self._instance(unsent)
            is_old = [(now - one.at).total_seconds() >= OLDEST for one in found]
            # All are made before the first is sent. So an error does not repeat those before it each time.
            made = [notification(row, instance, one, self._tools.server) for one in found]
            for one, old in zip(made, is_old, strict=True):
                if self._stopping.is_set():
                    return False
                if not old:
                    self._send(one)
                else:
                    LOG.warning(
                        'Dropped notification %(event)s of migration %(migration)s, which is older than a day',
                        {'event': one.event_type, 'migration': row.uuid},
                    )
        return self._notified.advance(unsent)

    def _instance(self, unsent: Unsent) -> Instance:
        row = unsent.migration
        gone = stand_in(row.instance_uuid, row.source_compute).replace(project_id=row.project_id, user_id=row.user_id)
        return self._tools.database.instances.find(row.instance_uuid) or gone
