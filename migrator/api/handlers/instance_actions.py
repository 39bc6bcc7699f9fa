# SPDX-License-Identifier: Apache-2.0

"""The actions of a server and their events, which come from the log of the migration."""

from __future__ import annotations

from typing import Any

import webob

from migrator import exception
from migrator.api import common, tenants
from migrator.api.handlers import migrations
from migrator.api.policies.nova import ACTIONS_DETAILS, ACTIONS_EVENTS, ACTIONS_LIST, ACTIONS_SHOW
from migrator.api.request import Request, answer
from migrator.db.actions import EVACUATE, LIVE_MIGRATION, LOCK, MIGRATE, RESET_STATE, RESIZE, UNLOCK, Action
from migrator.objects import Instance, Migration, times
from migrator.objects.steps import AT_DESTINATION, AT_SOURCE

#: Action -> nova's name of the event of the whole migration.
_WHOLE = {
    LIVE_MIGRATION: 'conductor_live_migrate_instance',
    EVACUATE: 'rebuild_server',
    MIGRATE: 'conductor_migrate_server',
    RESIZE: 'conductor_migrate_server',
}
#: The same of an action that ends within its request. That of a reset has no event.
_AT_ONCE = {LOCK: 'api_lock', UNLOCK: 'api_unlock'}
_RESULTS = {'done': 'Success', 'failed': 'Error'}


def index(request: Request, server_id: str) -> webob.Response:
    """List a server's actions, the newest first."""
    instance = common.get_instance(request, server_id)
    request.authorize(ACTIONS_LIST, common.target(instance))
    database = request.services.database
    if not request.since(58):
        found = database.actions.list(instance.uuid)
        return answer({'instanceActions': _views(request, instance, found)})
    given, size = request.given, common.page_size(request)
    since, before = migrations.moments(given)
    found = database.actions.list(
        instance.uuid, limit=size, marker=given.get('marker'), changes_since=since, changes_before=before
    )
    further = common.next_link(request, 'links', size, [action.request_id for action in found])
    return answer({'instanceActions': _views(request, instance, found)} | further)


def show(request: Request, server_id: str, request_id: str) -> webob.Response:
    """Show the action of one request, with its events."""
    instance = common.get_instance(request, server_id)
    request.authorize(ACTIONS_SHOW, common.target(instance))
    action = request.services.database.actions.get(instance.uuid, request_id)
    (view,) = _views(request, instance, [action])
    everything = request.can(ACTIONS_EVENTS, common.target(instance))
    if everything or request.since(51):
        events = _events(request, instance, action)
        if events and not request.can(ACTIONS_DETAILS, common.target(instance)):
            # The oldest event is the whole action.
            sentences = [tenants.STEP] * (len(events) - 1) + [view['message']]
            events = [
                event | {'traceback': event['traceback'] and sentence}
                for event, sentence in zip(events, sentences, strict=True)
            ]
        view['events'] = [_event(request, instance, event, everything) for event in events]
    return answer({'instanceAction': view})


def _views(request: Request, instance: Instance, found: list[Action]) -> list[dict[str, Any]]:
    messages = _messages(request, instance, found)
    views = []
    for action, message in zip(found, messages, strict=True):
        view = {
            'action': action.action,
            'instance_uuid': action.instance_uuid,
            'request_id': action.request_id,
            'user_id': action.user_id,
            'project_id': action.project_id,
            'start_time': times.iso(action.start_time),
            'message': message,
        }
        if request.since(58):
            view['updated_at'] = times.iso(action.finish_time or action.start_time)
        views.append(view)
    return views


def _messages(request: Request, instance: Instance, found: list[Action]) -> list[str | None]:
    """Return why each action has failed, as far as the caller may know it."""
    if request.can(ACTIONS_DETAILS, common.target(instance)) or not any(action.message for action in found):
        return [action.message for action in found]
    moves = {one.uuid: one for one in request.services.database.migrations.list({'instance_uuid': instance.uuid})}
    return [
        action.message and tenants.failure(moves.get(action.migration_uuid or ''), action.action) for action in found
    ]


def _events(request: Request, instance: Instance, action: Action) -> list[dict[str, Any]]:
    """Return the events of an action, the newest first, as nova does."""
    if action.action == RESET_STATE:
        return []
    whole = {
        'event': (_WHOLE | _AT_ONCE).get(action.action, f'conductor_{action.action}'),
        'start_time': action.start_time,
        'finish_time': action.finish_time,
        'result': action.result,
        'traceback': action.message,
        'host': instance.host,
    }
    if action.action not in _WHOLE or action.migration_uuid is None:
        # The log describes the migration, so another request, such as an abort, has only this one event.
        return [whole]
    database = request.services.database
    try:
        migration = database.migrations.get(action.migration_uuid)
    except exception.MigrationNotFound:
        return [whole]
    events = [whole | {'host': migration.source_compute}]
    events += [_event_of_step(migration, record) for record in database.migrations.steps(migration.uuid)]
    return events[::-1]


def _event_of_step(migration: Migration, record: Any) -> dict[str, Any]:
    at_host = record.step in AT_SOURCE or record.step in AT_DESTINATION
    name = f'{"compute" if at_host else "conductor"}_{record.step}'
    at_destination = record.step in AT_DESTINATION and record.attempt == migration.attempt
    failed = record.state == 'failed'
    return {
        'event': name if record.direction == 'do' else f'{name}_undo',
        'start_time': record.started_at,
        'finish_time': record.ended_at,
        'result': _RESULTS.get(record.state),
        'traceback': str(record.facts.reason or 'failed') if failed else None,
        'host': (migration.dest_compute if at_destination else None) or migration.source_compute,
    }


def _event(request: Request, instance: Instance, event: dict[str, Any], everything: bool) -> dict[str, Any]:
    view = {
        'event': event['event'],
        'start_time': times.iso(event['start_time']),
        'finish_time': times.iso(event['finish_time']),
        'result': event['result'],
    }
    if everything:
        view['traceback'] = event['traceback']
    if request.since(62):
        view['hostId'] = common.host_id(instance.project_id, event['host'])
        if everything:
            view['host'] = event['host']
    if request.since(84) and request.can(ACTIONS_DETAILS, common.target(instance)):
        view['details'] = event['traceback']
    return view
