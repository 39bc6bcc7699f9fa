# SPDX-License-Identifier: Apache-2.0

"""The stream of events."""

import datetime
import json
import uuid

import jsonschema
import pytest

from migrator import exception
from migrator.api.own import answers, events
from migrator.db import saga_log
from migrator.objects.drain import Drain
from migrator.objects.reasons import Reason, StuckKind

PATH = '/migrator/v1/events'


def follow(world, last=None):
    """Return the response, and the iterator over its parts after the first one."""
    headers = {} if last is None else {'Last_Event_ID': last}
    response = world.ask('GET', PATH, **headers)
    assert response.status_int == 200, response.text
    parts = iter(response.app_iter)
    assert next(parts).startswith(b'retry: 1000\nid: ')
    return response, parts


def fields(part):
    """Return the id and the data of an event."""
    lines = dict(line.split(': ', 1) for line in part.decode().strip().split('\n'))
    data = json.loads(lines['data'])
    assert lines['event'] == data['of']
    jsonschema.Draft202012Validator(answers.EVENT).validate(data)
    return lines['id'], data


def test_a_stream_has_what_happens_from_then_on_in_the_order_of_time(world):
    world.migration(world.guest())
    world.threads.seconds += 10
    response, parts = follow(world)
    assert (response.content_type, response.headers['Cache-Control']) == ('text/event-stream', 'no-store')
    drain = Drain(uuid=str(uuid.uuid4()), host='source')
    world.database.drains.accept(drain)
    world.threads.seconds += 0.5
    migration = world.migration(world.guest())
    found = [fields(next(parts))[1] for _ in range(2)]
    assert [(one['of'], one['uuid'], one['seq']) for one in found] == [
        ('drain', drain.uuid, 1),
        ('migration', migration.uuid, 1),
    ]
    assert (found[1]['kind'], found[1]['payload']) == ('status', {'status': 'accepted'})
    response.app_iter.close()


def test_an_event_of_a_stuck_migration_has_the_sentence_and_the_kind():
    reason = Reason.of(StuckKind.GUEST_NOT_THERE, 'host1', step='resize')
    payload = {**reason.document(), 'boots': {'host1': 'private'}}
    at = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    event = saga_log.Event(
        of='migration', uuid=str(uuid.uuid4()), seq=7, at=at, kind='stuck', step=None, payload=payload
    )
    shown = events.view(event)
    jsonschema.Draft202012Validator(answers.EVENT).validate(shown)
    assert shown['payload'] == {
        'reason': reason.sentence,
        'stuck_kind': 'guest-not-there',
        'stuck_hosts': ['host1'],
    }


def test_a_stream_continues_after_the_last_event_even_if_others_are_of_the_same_moment(world, monkeypatch):
    monkeypatch.setattr(events, '_PAGE', 1)
    three = sorted(world.migration(world.guest()).uuid for _ in range(3))
    world.threads.seconds += 10
    late = world.migration(world.guest()).uuid
    world.threads.seconds += 10
    start = f'2026-01-01T00:00:00.000000_{three[0]}_0'
    response, parts = follow(world, start)
    first, second, third, fourth = (fields(next(parts)) for _ in range(4))
    response.app_iter.close()
    assert [one[1]['uuid'] for one in (first, second, third, fourth)] == [*three, late]
    response, parts = follow(world, second[0])
    assert [fields(next(parts)) for _ in range(2)] == [third, fourth]
    response.app_iter.close()


def test_an_idle_stream_sends_comments_holds_no_connection_and_ends(world):
    held, sleep = set(), world.threads.sleep

    def watched(seconds):
        held.add(world.database.engine.connections_in_use)
        sleep(seconds)

    world.threads.sleep = watched
    _, parts = follow(world)
    comments = list(parts)
    assert [part.partition(b'\n')[0] for part in comments] == [b': nothing has happened'] * 8
    assert b'id: 2026-01-01T00:00:22.000000_' in comments[-1]
    assert world.threads.seconds == events.LONGEST
    assert held == {0}


def test_a_client_without_an_event_continues_where_its_stream_has_ended(world):
    response, parts = follow(world)
    *_, last = parts
    response.app_iter.close()
    migration = world.migration(world.guest())
    world.threads.seconds += 30  # and a new stream would begin after this event
    response, parts = follow(world, last.decode().partition('id: ')[2].strip())
    assert fields(next(parts))[1]['uuid'] == migration.uuid
    response.app_iter.close()


def test_one_stream_more_than_allowed_is_a_503_until_another_one_ends(world):
    world.conf.set_override('max_event_streams', 2, group='api')
    streams = [follow(world)[0] for _ in range(2)]
    refused = world.ask('GET', PATH)
    world.refuses(refused, 503, 'serviceUnavailable', 'At most 2 event streams', 'max_event_streams', 'try again later')
    assert refused.headers['Retry-After'] == '5'
    for _ in range(2):  # a server may close twice, or without a first read
        streams[0].app_iter.close()
    follow(world)
    world.refuses(world.ask('GET', PATH), 503, 'serviceUnavailable')


def test_a_stream_ends_while_the_database_is_away(world, monkeypatch):
    _, parts = follow(world)

    def away(*args):
        raise exception.DatabaseUnreachable(reason='away')

    monkeypatch.setattr(saga_log, 'events_after', away)
    assert list(parts) == []


@pytest.mark.parametrize(
    ('last', 'words'),
    [
        ('nonsense', 'is not the id of an event: give that of the last event, or none'),
        ('2026-01-01T00:00:00.000000_x_1', 'is not the id of an event'),
        ('2025-12-31T22:00:00.000000_5c3fd0c4-4a0f-4d5e-9b0a-6f1f6d0f7c11_1', 'more than an hour old'),
        ('2026-01-01T00:10:00.000000_5c3fd0c4-4a0f-4d5e-9b0a-6f1f6d0f7c11_1', 'later than'),
    ],
)
def test_an_id_that_is_none_or_too_old_or_of_the_future_is_refused(world, last, words):
    world.refuses(world.ask('GET', PATH, Last_Event_ID=last), 400, 'badRequest', words)
    world.refuses(world.ask('GET', f'{PATH}?last_event_id={last}'), 400, 'badRequest', words)


def test_only_an_administrator_follows(roles):
    roles.refuses(roles.ask('GET', PATH, token='manager:eve:admin'), 403, 'forbidden', 'migrator:events:index')
