# SPDX-License-Identifier: Apache-2.0

"""``/migrator/v1/events``: what happens to migrations, drains and maintenances, as server-sent events.

A stream reads the logs once a second, each time with a connection that it gives back at once. It holds a thread of the
server, so only a few run at a time. Each ends after some seconds, or when the server stops, and the client continues
with the id of the last event. So a server of any kind can stop, and a token is checked again now and then.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import webob
from oslo_utils import uuidutils

from migrator import exception
from migrator.api import errors
from migrator.api.policies import base
from migrator.api.request import Request, Services
from migrator.api.schemas import types
from migrator.db import saga_log
from migrator.objects import times
from migrator.objects.protocol import NO_UUID
from migrator.objects.reasons import Reason

LIST = 'migrator:events:index'

RULES = [
    base.rule(
        LIST, base.ADMIN, 'Follow what happens to migrations, drains and maintenances.', 'GET /migrator/v1/events'
    )
]

_ID = {
    'type': 'string',
    'maxLength': 100,
    'description': 'the id of an event',
}
QUERY = {1: types.parameters({'last_event_id': types.many(_ID)}, unknown=False)}

#: Seconds between two reads of the logs.
POLL = 1.0
#: Seconds without an event after which a comment is sent. The third one after a client has gone cannot be sent, and
#: ends its stream.
HEARTBEAT = 3.0
#: Seconds after which a stream ends. gunicorn waits 30 s for the requests under way when it stops.
LONGEST = 25.0
#: The oldest event after which a stream continues.
OLDEST = datetime.timedelta(hours=1)
#: How far an event may be ahead of the database's clock, since the nodes of a cluster have a clock each.
AHEAD = datetime.timedelta(minutes=1)
#: Events that one read returns.
_PAGE = 500

#: The time, the uuid and the seq of an event. A place between events has this uuid.
_Cursor = tuple[datetime.datetime, str, int]


def follow(request: Request) -> webob.Response:
    """Send the events of migrations, drains and maintenances, from now on or after one."""
    given = request.given
    request.authorize(LIST)
    services = request.services
    with services.database.engine.reader() as session:
        newest = saga_log.settled(session)
    last = request.headers.get('Last-Event-ID') or given.get('last_event_id')
    after = (newest, NO_UUID, 0) if last is None else _cursor(last, newest)
    if not services.streams.begin(services.conf.api.max_event_streams):
        return errors.body(
            503,
            f'At most {services.conf.api.max_event_streams} event streams may be open in this process ([api] '
            'max_event_streams), and all are: try again later.',
        )
    is_stopping = request.environ.get('migrator.is_stopping', lambda: False)
    response = webob.Response(content_type='text/event-stream', charset='UTF-8')
    response.app_iter = _Stream(services, after, is_stopping)
    response.headers['Cache-Control'] = 'no-store'
    response.headers['X-Accel-Buffering'] = 'no'  # a proxy would collect the events
    return response


def _id(cursor: _Cursor) -> str:
    at, uuid, seq = cursor
    return f'{at.astimezone(datetime.UTC).replace(tzinfo=None).isoformat(timespec="microseconds")}_{uuid}_{seq}'


def _cursor(text: str, newest: datetime.datetime) -> _Cursor:
    """Return the event of an id.

    :raises migrator.exception.Invalid: it is not one, or the event is too old, or of the future.
    """
    parts = text.split('_')
    try:
        at = datetime.datetime.fromisoformat(parts[0]).replace(tzinfo=datetime.UTC)
        if len(parts) != 3 or not uuidutils.is_uuid_like(parts[1]) or not re.fullmatch('[0-9]{1,9}', parts[2]):
            raise ValueError
    except ValueError:
        raise exception.Invalid(
            f'{text[:100]!r} is not the id of an event: give that of the last event, or none.'
        ) from None
    if at < newest - OLDEST:
        raise exception.Invalid(
            f'The event {text} is more than an hour old: get the migrations and drains, and follow without an id.'
        )
    if at > newest + AHEAD:
        # The database's clock was set back. Nothing would be sent until that time.
        raise exception.Invalid(
            f'The event {text} is later than the time of the database: get the migrations and drains, and follow '
            'without an id.'
        )
    return at, parts[1], int(parts[2])


def view(event: saga_log.Event) -> dict[str, Any]:
    """Return the data of an event as JSON."""
    # The rest of the payload of a migration is what its conductor stores for its own steps.
    is_migration = event.of == 'migration'
    payload = {**event.payload} | (_reason_in(event) if is_migration else {})
    shown = ('status', 'reason', 'stuck_kind', 'stuck_hosts') if is_migration else tuple(payload)
    return {
        'of': event.of,
        'uuid': event.uuid,
        'seq': event.seq,
        'at': times.iso(event.at),
        'kind': event.kind,
        'step': event.step,
        'payload': {name: payload[name] for name in shown if name in payload},
    }


def _reason_in(event: saga_log.Event) -> dict[str, Any]:
    """Return why the entry of a log says that a migration is stuck; nothing for another entry."""
    if 'words' not in event.payload:
        return {}
    found = Reason.of_entry(event.payload)
    return {'reason': found.sentence, 'stuck_kind': found.kind, 'stuck_hosts': [*found.hosts]}


class _Stream:
    """The body of an answer.

    :param after: the event after which it begins.
    :param is_stopping: returns whether the server stops.
    """

    def __init__(self, services: Services, after: _Cursor, is_stopping: Callable[[], bool]) -> None:
        self._services = services
        self._after = after
        self._is_stopping = is_stopping
        self._is_open = True

    def __iter__(self) -> Iterator[bytes]:
        threads, engine = self._services.threads, self._services.database.engine
        began = spoke = threads.clock.monotonic()
        # A client that loses the connection before the first event continues here.
        yield f'retry: 1000\nid: {_id(self._after)}\n\n'.encode()
        while threads.clock.monotonic() < began + LONGEST and not self._is_stopping():
            try:
                with engine.reader() as session:
                    settled = saga_log.settled(session)
                    found = saga_log.events_after(session, *self._after, _PAGE)
            except exception.ServiceUnreachable:
                return  # the client asks again, and gets a 503 while that lasts
            for event in found:
                self._after = event[:3]
                data = json.dumps(view(event))
                yield f'id: {_id(self._after)}\nevent: {event.of}\ndata: {data}\n\n'.encode()
            now = threads.clock.monotonic()
            if found:
                spoke = now
            if len(found) == _PAGE:
                continue
            self._after = max(self._after, (settled, NO_UUID, 0))
            if now - spoke >= HEARTBEAT:
                spoke = now
                yield f': nothing has happened\nid: {_id(self._after)}\n\n'.encode()
            threads.sleep(POLL)

    def close(self) -> None:
        """End the stream. The server calls it in any case."""
        if self._is_open:
            self._is_open = False
            self._services.streams.end()
