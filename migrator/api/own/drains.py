# SPDX-License-Identifier: Apache-2.0

"""``/migrator/v1/drains``: request a drain of a host, show its progress, and change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import webob
from oslo_log import log as logging

from migrator import exception
from migrator.api import common, schemas
from migrator.api.policies import base
from migrator.api.request import Request, answer
from migrator.api.schemas import fields, types
from migrator.conf.conductor import uses_nova
from migrator.context import RequestContext
from migrator.db.api import purge_ended
from migrator.db.drains import Known
from migrator.db.slots import Bounds
from migrator.drain.request import FIELDS, again, moved
from migrator.objects import times
from migrator.objects.drain import Drain, Locked, Member, MemberStatus
from migrator.views import drains, migrations, names, reports

LOG = logging.getLogger(__name__)

_ROOT = 'migrator:drains:'
LIST, SHOW, CREATE = f'{_ROOT}index', f'{_ROOT}show', f'{_ROOT}create'
REPORT = f'{_ROOT}report'
ACTIONS = ('pause', 'resume', 'cancel', 'restore', 'retry')

RULES = [
    base.rule(
        LIST,
        base.ADMIN,
        'List the drains, and how accurate their expected ends were.',
        'GET /migrator/v1/drains',
        'GET /migrator/v1/drains/calibration',
    ),
    base.rule(
        SHOW,
        base.ADMIN,
        'Show a drain, its guests and its events.',
        'GET /migrator/v1/drains/{uuid}',
        'GET /migrator/v1/drains/{uuid}/members',
        'GET /migrator/v1/drains/{uuid}/events',
    ),
    base.rule(REPORT, base.ADMIN, 'Show the report of a drain.', 'GET /migrator/v1/drains/{uuid}/report'),
    base.rule(CREATE, base.ADMIN, 'Request a drain of a host, or show its plan.', 'POST /migrator/v1/drains'),
    *(
        base.rule(f'{_ROOT}{name}', base.ADMIN, f'Request to {name} a drain.', 'POST /migrator/v1/drains/{uuid}/action')
        for name in ACTIONS
    ),
    base.rule(f'{_ROOT}purge', base.ADMIN, 'Delete drains that have ended.', 'POST /migrator/v1/drains/action'),
]


CREATE_BODY = {1: fields.body(FIELDS, 'host')}
INDEX_QUERY = {
    1: types.parameters({**types.PAGE, 'host': types.ANY, 'in_progress': types.many(types.BOOLEAN)}, unknown=False)
}
_STATUSES = [status.value for status in MemberStatus]
MEMBERS_QUERY = {
    1: types.parameters(
        {
            **types.PAGE,
            'status': types.many({'enum': _STATUSES, 'description': f'one of {", ".join(_STATUSES)}'}),
            'ended': types.many(types.BOOLEAN),
        },
        unknown=False,
    )
}
EVENTS_QUERY = {1: types.parameters({'after': types.NUMBER}, unknown=False)}
ACTION_BODY = {
    1: types.one_action(
        {
            **dict.fromkeys(('pause', 'resume', 'restore', 'retry'), types.NOTHING),
            'cancel': types.options({'abort_running': {'type': 'boolean', 'description': 'true or false'}}),
        }
    )
}
CALIBRATION_QUERY = {1: types.parameters({'drains': types.NUMBER}, unknown=False)}
PURGE_BODY = {1: types.one_action({'purge': types.PURGE})}


def index(request: Request) -> webob.Response:
    """List drains, the newest first."""
    given = request.given
    request.authorize(LIST)
    database, size = request.services.database, common.page_size(request)
    found = database.drains.list(given.get('host'), schemas.flag(given, 'in_progress'), size, common.marker(request))
    if not found and 'host' in given and not uses_nova(request.services.conf):  # the hosts of Nova have no rows here
        names.check_host(database, given['host'])
    links = common.next_link(request, 'drains_links', size, [drain.uuid for drain in found])
    return answer({'drains': drains.summaries(database, found)} | links)


def create(request: Request) -> webob.Response:
    """Request a drain of a host. With ``dry_run``, return only its plan."""
    wanted = schemas.body(request, CREATE_BODY)
    request.authorize(CREATE)
    drain = new(request.services.threads.new_uuid, wanted)
    of_nova = uses_nova(request.services.conf)
    # Only a conductor reaches Nova. A drain of an unknown host ends when it begins.
    request.services.database.drains.check(drain, Known.named_by(drain) if of_nova else None)
    if wanted.get('dry_run'):
        return answer({'plan': request.services.conductor.plan_drain(request.context, drain)})
    return _accept(request, drain)


def new(new_uuid: Callable[[], str], wanted: Mapping[str, Any]) -> Drain:
    """Return the drain that a request describes.

    :param wanted: a body of the schema; an absent value has its default.
    """
    given = {name: value for name, value in wanted.items() if name != 'dry_run'}
    if given.get('deadline') is not None:
        given['deadline'] = schemas.moment(given['deadline'])
    if given.get('priorities') is not None:
        given['priorities'] = {common.usual_uuid(guest): number for guest, number in given['priorities'].items()}
    return Drain(uuid=new_uuid(), **given)


def show(request: Request, uuid: str) -> webob.Response:
    """Show a drain with its guests."""
    request.authorize(SHOW)
    return _shown(request, _find(request, uuid))


def members(request: Request, uuid: str) -> webob.Response:
    """List the guests of a drain in the order in which they leave, each with the migrations of the drain."""
    given = request.given
    request.authorize(SHOW)
    database, size = request.services.database, common.page_size(request)
    drain = _find(request, uuid)
    whole = drains.in_order(drain, database.drains.read_members(drain.uuid))
    expected, shown = drains.members(database, Bounds.of(request.services.conf), drain, whole)
    documents = {one['instance_uuid']: one for one in shown}
    found = common.after(common.marker(request), whole, 'instance_uuid')
    if 'status' in given:
        found = [member for member in found if member.status == given['status']]
    ended = schemas.flag(given, 'ended')
    if ended is not None:
        found = [member for member in found if member.ended == ended]
    guests = [member.instance_uuid for member in found[:size]]
    of_guests = database.migrations.list({'drain': drain.uuid, 'instance_uuid': guests}) if guests else []
    by_guest: dict[str, list[dict[str, Any]]] = {guest: [] for guest in guests}
    for one in reversed(migrations.documents(database, of_guests)):
        by_guest[one['instance_uuid']].append(one)
    page = {
        'expected': expected,
        'members': [documents[guest] | {'migrations': by_guest[guest]} for guest in guests],
    }
    return answer(page | common.next_link(request, 'members_links', size, guests))


def report(request: Request, uuid: str) -> webob.Response:
    """Show who has drained a host and when, what became of each guest, and the checks."""
    request.authorize(REPORT)
    return answer({'report': reports.document(request.services.database, _find(request, uuid))})


def events(request: Request, uuid: str) -> webob.Response:
    """Show the events of a drain, the oldest first: its new statuses, those of its guests, and requests."""
    given = request.given
    request.authorize(SHOW)
    drain = _find(request, uuid)
    found = request.services.database.drains.read_log(
        drain.uuid, int(given.get('after', 0)), request.services.conf.api.max_limit
    )
    return answer(
        {'events': [{'seq': one.seq, 'at': times.iso(one.at), 'kind': one.kind, **one.payload} for one in found]}
    )


def act(request: Request, uuid: str) -> webob.Response:
    """Pause, resume, cancel, restore or retry a drain. The request is committed before the answer."""
    wanted: Mapping[str, Any] = schemas.body(request, ACTION_BODY)
    ((action, arguments),) = wanted.items()
    request.authorize(f'{_ROOT}{action}')
    if action == 'retry':
        return _retry(request, uuid)
    abort_running = bool((arguments or {}).get('abort_running'))
    request.services.database.drains.request(uuid, action, request.context.user_id, abort_running)
    _wake(request)
    return _shown(request, request.services.database.drains.get(uuid), 202)


def _retry(request: Request, uuid: str) -> webob.Response:
    """Request a new drain for the guests that one has left."""
    rows = request.services.database.drains
    members = rows.read_members(uuid)
    same = again(rows.get(uuid), members, rows.now())
    return _accept(request, Drain(uuid=request.services.threads.new_uuid(), **same), moved(members))


def _accept(request: Request, drain: Drain, has_moved: Sequence[Member] = ()) -> webob.Response:
    rows, context = request.services.database.drains, request.context
    if drain.locked == Locked.MOVE and not context.is_admin:
        raise locked_refused()
    drain = drain.replace(requested_by=context.user_id, project_id=context.project_id, request_id=request.request_id)
    rows.accept(drain, has_service=not uses_nova(request.services.conf), moved=has_moved)
    _wake(request)
    return _shown(request, rows.get(drain.uuid), 202)


def locked_refused() -> exception.Forbidden:
    """Return the error about a user who may not have guests moved that are locked."""
    return exception.Forbidden(
        'Only an administrator may have guests moved that are locked. Leave locked out, or ask an administrator.'
    )


def show_calibration(request: Request) -> webob.Response:
    """Show how accurate the expected ends of the newest drains were."""
    given = request.given
    request.authorize(LIST)
    newest = min(int(given.get('drains', 50)), request.services.conf.api.max_limit)
    return answer({'calibration': drains.calibration(request.services.database, newest)})


def act_on_all(request: Request) -> webob.Response:
    """Delete drains that ended before a time. With ``dry_run``, only count them."""
    given = schemas.body(request, PURGE_BODY)['purge']
    request.authorize(f'{_ROOT}purge')
    database, before = request.services.database, schemas.moment(given['before'])
    most, is_dry = given.get('max_rows', types.MOST_PURGED), given.get('dry_run', False)
    found = purge_ended(database.drains, before, database.drains.count_ended(before), is_dry, most)
    return answer({'purge': found})


def _wake(request: Request) -> None:
    wake(request, request.services.conductor.wake_drains)


def wake(request: Request, call: Callable[[RequestContext], None]) -> None:
    """Have a conductor look for a change before its next sweep.

    :param call: the RPC to any conductor.
    """
    try:
        call(request.context)
    except exception.MigratorException as error:
        # The row is committed, so the sweep of any conductor finds it.
        LOG.warning('Could not wake a conductor; the next sweep of a conductor finds it: %s', error)


def _find(request: Request, text: str) -> Drain:
    """Return a drain by any of its names; a caller who may not list them has to give its uuid."""
    return names.drain(request.services.database, text, whole=not request.may(LIST))


def _shown(request: Request, drain: Drain, status: int = 200) -> webob.Response:
    found = drains.document(request.services.database, Bounds.of(request.services.conf), drain)
    return answer({'drain': found}, status)
