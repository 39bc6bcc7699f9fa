# SPDX-License-Identifier: Apache-2.0

"""``/migrator/v1/maintenances``: hosts are emptied, worked on and used again, some at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import webob
import webob.exc
from oslo_log import log as logging

from migrator import exception
from migrator.api import common, schemas
from migrator.api.own import drains
from migrator.api.policies import base
from migrator.api.request import Request, answer
from migrator.api.schemas import fields, types
from migrator.conf.conductor import uses_nova
from migrator.db.api import purge_ended
from migrator.drain.maintenance import actions, document
from migrator.drain.maintenance.request import FIELDS, new
from migrator.drain.maintenance.turns import Maintenance, ReturnedBy, Turn
from migrator.objects import COMPUTE_BINARY, STOPPED, times
from migrator.objects.base import count, no_host, printable
from migrator.objects.drain import Drain, Locked, check_priorities
from migrator.views import names

LOG = logging.getLogger(__name__)

_ROOT = 'migrator:maintenances:'
LIST, SHOW, CREATE = f'{_ROOT}index', f'{_ROOT}show', f'{_ROOT}create'
#: The greatest number of guests or hosts that an error names.
_NAMED = 10

_OF_HOST: types.Schema = {'host': types.HOST}
_CLAIM: types.Schema = {'type': 'string', 'format': 'uuid', 'description': 'the claim that begin has returned'}
_NEW_CLAIM: types.Schema = {**_CLAIM, 'description': 'the claim that it gets; with one the request may be repeated'}
_ACTIONS: dict[str, tuple[str, types.Schema]] = {
    'pause': ('Begin no further host of a maintenance', types.NOTHING),
    'resume': ('Let a paused maintenance go on, and accept its failures', types.NOTHING),
    'cancel': ('End a maintenance, once the work that runs has ended', types.NOTHING),
    'begin': (
        'Claim a host that is ready, before the work at it',
        types.closed({**_OF_HOST, 'claim': _NEW_CLAIM}, ['host']),
    ),
    'done': ('Report that the work at a host is done', types.closed({**_OF_HOST, 'claim': _CLAIM}, ['host', 'claim'])),
    'fail': (
        'Report that the work at a host has failed',
        types.closed({**_OF_HOST, 'claim': _CLAIM, 'reason': types.REASON}, ['host', 'claim']),
    ),
    'retry': ('Put a host that has failed back among those that wait', types.closed(_OF_HOST, ['host'])),
    'skip': (
        'Leave out a host that waits, is ready, is worked on or has failed',
        types.closed({**_OF_HOST, 'claim': _CLAIM, 'stays_disabled': types.DRY_RUN}, ['host']),
    ),
}

RULES = [
    base.rule(LIST, base.ADMIN, 'List the maintenances.', 'GET /migrator/v1/maintenances'),
    base.rule(
        SHOW,
        base.ADMIN,
        'Show a maintenance, its hosts and its events.',
        'GET /migrator/v1/maintenances/{uuid}',
        'GET /migrator/v1/maintenances/{uuid}/events',
    ),
    base.rule(CREATE, base.ADMIN, 'Request a maintenance, or show its plan.', 'POST /migrator/v1/maintenances'),
    *(
        base.rule(f'{_ROOT}{name}', base.ADMIN, f'{what}.', 'POST /migrator/v1/maintenances/{uuid}/action')
        for name, (what, _schema) in _ACTIONS.items()
    ),
    base.rule(
        f'{_ROOT}purge', base.ADMIN, 'Delete maintenances that have ended.', 'POST /migrator/v1/maintenances/action'
    ),
]

CREATE_BODY = {1: fields.body(FIELDS, 'hosts')}
INDEX_QUERY = {
    1: types.parameters({**types.PAGE, 'host': types.ANY, 'in_progress': types.many(types.BOOLEAN)}, unknown=False)
}
EVENTS_QUERY = {1: types.parameters({'after': types.NUMBER}, unknown=False)}
ACTION_BODY = {1: types.one_action({name: schema for name, (_what, schema) in _ACTIONS.items()})}
PURGE_BODY = {1: types.one_action({'purge': types.PURGE})}


def index(request: Request) -> webob.Response:
    """List maintenances, the newest first."""
    given = request.given
    request.authorize(LIST)
    rows, size = request.services.database.maintenances, common.page_size(request)
    found = rows.list(given.get('host'), schemas.flag(given, 'in_progress'), size, common.marker(request))
    if not found and 'host' in given:
        names.check_host(request.services.database, given['host'])
    counts = rows.counts([one.uuid for one in found])
    links = common.next_link(request, 'maintenances_links', size, [one.uuid for one in found])
    return answer({'maintenances': [document.summary(one, counts[one.uuid]) for one in found]} | links)


def create(request: Request) -> webob.Response:
    """Request a maintenance of hosts. With ``dry_run``, return only its plan."""
    wanted = schemas.body(request, CREATE_BODY)
    request.authorize(CREATE)
    if uses_nova(request.services.conf):
        raise exception.Invalid('Maintenances of the hosts of a stock Nova are not served. Drain each host instead.')
    maintenance, turns = _new(request, wanted)
    _check(request, maintenance, turns)
    request.services.database.maintenances.check_free([turn.host for turn in turns])
    if wanted.get('dry_run'):
        return answer({'plan': request.services.conductor.plan_maintenance(request.context, maintenance, turns)})
    request.services.database.maintenances.accept(maintenance, turns)
    drains.wake(request, request.services.conductor.wake_maintenances)
    return _shown(request, maintenance.uuid, 202)


def _new(request: Request, wanted: Mapping[str, Any]) -> tuple[Maintenance, list[Turn]]:
    given = dict(wanted)
    if given.get('deadline') is not None:
        given['deadline'] = schemas.moment(given['deadline'])
    of_drain = dict(given.get('drain') or {})
    if of_drain.get('priorities') is not None:
        of_drain['priorities'] = {common.usual_uuid(guest): number for guest, number in of_drain['priorities'].items()}
    given['drain'] = {name: value for name, value in of_drain.items() if value is not None}
    maintenance, turns = new(request.services.threads.new_uuid(), given)
    context = request.context
    return maintenance.replace(requested_by=context.user_id, project_id=context.project_id), turns


def _check(request: Request, maintenance: Maintenance, turns: Sequence[Turn]) -> None:
    """Raise unless the hosts and the fields of a new maintenance go together.

    :raises migrator.exception.Invalid: they do not.
    :raises migrator.exception.Forbidden: it moves guests that are locked, and its user is no administrator.
    """
    database, hosts = request.services.database, [turn.host for turn in turns]
    if maintenance.of_drains.get('locked') == Locked.MOVE and not request.context.is_admin:
        raise drains.locked_refused()
    services = {one.host: one for one in database.services.list(COMPUTE_BINARY)}
    for host in (*hosts, *maintenance.groups, *maintenance.of_drains.get('destinations', ())):
        if host not in services:
            raise exception.Invalid(no_host(host, services).message)
    _check_drains(maintenance, hosts, {one.uuid for one in database.instances.list({'host': hosts})})
    if maintenance.deadline is not None and maintenance.deadline <= database.maintenances.now():
        shown = maintenance.deadline.isoformat()
        raise exception.Invalid(f'Invalid input for deadline: {shown} has passed. Give a later time.')
    if maintenance.returned_by == ReturnedBy.REBOOT:
        without = [host for host in hosts if services[host].kernel is None]
        if without:
            raise exception.Invalid(
                f'Invalid input for returned_by: reboot cannot be seen at {_named(without)}, where the start of the '
                'kernel is not reported. Give restart or report, or start a newer compute service there.'
            )
    classes = {name for node in database.services.list_nodes() for one in node.providers for name in one.inventory}
    unknown = sorted(maintenance.reserve.keys() - classes)
    if unknown:
        known = ', '.join(sorted(classes))
        raise exception.Invalid(f'Invalid input for reserve: no host has {unknown[0]}. Known: {known}.')
    if maintenance.stopped is None:
        off = database.instances.list({'host': hosts, 'vm_state': STOPPED})
        if off:
            shown = _named([f'{printable(one.name)} ({one.uuid}) on {one.host}' for one in off])
            raise exception.Invalid(
                f'Invalid input for stopped: it is missing, and {count(len(off), "guest is", "guests are")} shut off: '
                f'{shown}. Give move, or stay.'
            )


def _check_drains(maintenance: Maintenance, hosts: Sequence[str], guests: Collection[str]) -> None:
    given, destinations = maintenance.of_drains, maintenance.of_drains.get('destinations') or []
    named = {name: given[name] for name in ('order', 'priorities') if name in given}
    check_priorities(Drain(uuid='', host='these hosts', **named), guests)
    for host in hosts:
        if destinations == [host]:
            raise exception.Invalid(f'Invalid input for destinations: {host} is the only one, and is emptied itself.')


def _named(found: Sequence[str]) -> str:
    return ', '.join(found[:_NAMED]) + (f' and {len(found) - _NAMED} more' if len(found) > _NAMED else '')


def show(request: Request, uuid: str) -> webob.Response:
    """Show a maintenance with its hosts."""
    request.authorize(SHOW)
    return _shown(request, _find(request, uuid).uuid)


def events(request: Request, uuid: str) -> webob.Response:
    """Show the events of a maintenance, the oldest first: new statuses, and requests."""
    given = request.given
    request.authorize(SHOW)
    found = request.services.database.maintenances.read_log(
        _find(request, uuid).uuid, int(given.get('after', 0)), request.services.conf.api.max_limit
    )
    return answer(
        {'events': [{'seq': one.seq, 'at': times.iso(one.at), 'kind': one.kind, **one.payload} for one in found]}
    )


def act(request: Request, uuid: str) -> webob.Response:
    """Change a maintenance, or begin or end the work at a host."""
    wanted: Mapping[str, Any] = schemas.body(request, ACTION_BODY)
    ((action, arguments),) = wanted.items()
    request.authorize(f'{_ROOT}{action}')
    maintenance = _find(request, uuid).uuid
    if action in ('pause', 'resume', 'cancel'):
        actions.change(request.services.database.maintenances, maintenance, action, request.context.user_id)
        drains.wake(request, request.services.conductor.wake_maintenances)
        return _shown(request, maintenance, 202)
    turn = _act_on_host(request, maintenance, action, arguments)
    drains.wake(request, request.services.conductor.wake_maintenances)
    rows = request.services.database.maintenances
    return answer({'host': document.of_turn(rows.get(maintenance), turn, rows.now())})


def _act_on_host(request: Request, uuid: str, action: str, given: Mapping[str, Any]) -> Turn:
    more = dict(given)
    if 'claim' in more:
        more['claim'] = common.usual_uuid(more['claim'])
    if action == 'begin':
        # Only a conductor can ask whether the host is empty.
        try:
            return request.services.conductor.begin_turn(request.context, uuid, **more)
        except exception.ServiceUnreachable as error:
            LOG.warning('Could not begin the work at %(host)s: %(error)s', {'host': given['host'], 'error': error})
            again = 'repeat the request' if 'claim' in more else 'look first, then try again'
            raise webob.exc.HTTPServiceUnavailable(
                f'No conductor has replied in time. {given["host"]} may be claimed: {again}.'
            ) from None
    made: Callable[..., Turn] = getattr(actions, action)
    return made(request.services.database.maintenances, uuid, by=request.context.user_id, **more)


def act_on_all(request: Request) -> webob.Response:
    """Delete maintenances that ended before a time. With ``dry_run``, only count them."""
    given = schemas.body(request, PURGE_BODY)['purge']
    request.authorize(f'{_ROOT}purge')
    rows, before = request.services.database.maintenances, schemas.moment(given['before'])
    most, is_dry = given.get('max_rows', types.MOST_PURGED), given.get('dry_run', False)
    return answer({'purge': purge_ended(rows, before, rows.count_ended(before), is_dry, most)})


def _find(request: Request, text: str) -> Maintenance:
    """Return a maintenance by any of its names; a caller who may not list them has to give its uuid."""
    return names.maintenance(request.services.database, text, whole=not request.may(LIST))


def _shown(request: Request, uuid: str, status: int = 200) -> webob.Response:
    rows = request.services.database.maintenances
    found = document.whole(rows.get(uuid), rows.read_turns(uuid), rows.now())
    return answer({'maintenance': found}, status)
