# SPDX-License-Identifier: Apache-2.0

"""The servers: list, find by name, show; nova's filters of a list are database columns and predicates."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import webob
from oslo_utils import strutils

from migrator import exception
from migrator.api import common, schemas
from migrator.api.handlers import server_views
from migrator.api.policies.nova import (
    SERVERS_DETAIL,
    SERVERS_DETAIL_ALL,
    SERVERS_INDEX,
    SERVERS_INDEX_ALL,
    SERVERS_SHOW,
)
from migrator.api.request import Request, answer
from migrator.api.schemas.servers import IGNORED_SORT_KEYS, REFUSED, SHOWS_HOSTS, SORT_KEYS, WITHOUT_NOTION
from migrator.objects import MIGRATABLE_VM_STATES, Instance

Predicate = Callable[[Instance], bool]

#: The parameters for users other than administrators -> the minor version from which they apply. Other parameters are
#: ignored, as in nova.
FOR_EVERYBODY = {
    'name': 1, 'status': 1, 'image': 1, 'flavor': 1, 'ip': 1, 'reservation_id': 1, 'changes-since': 1,
    'all_tenants': 1, 'limit': 1, 'marker': 1, 'sort_key': 1, 'sort_dir': 1,
    'ip6': 5, 'tags': 26, 'tags-any': 26, 'not-tags': 26, 'not-tags-any': 26, 'changes-before': 66, 'locked': 73,
    'availability_zone': 83, 'config_drive': 83, 'created_at': 83, 'key_name': 83, 'launched_at': 83,
    'power_state': 83, 'progress': 83, 'task_state': 83, 'terminated_at': 83, 'user_id': 83, 'vm_state': 83,
    'hostname': 90,
}  # fmt: skip

_COLUMNS = ('host', 'user_id', 'vm_state', 'task_state', 'uuid')
#: Parameter -> what its regular expression is compared with. Nothing matches None.
_PATTERNS: dict[str, Callable[[Instance], Any]] = {
    'name': lambda instance: instance.name,
    'display_name': lambda instance: instance.name,
    'node': lambda instance: instance.node,
    'locked_by': lambda instance: instance.locked_by,
    'power_state': lambda instance: instance.power_state,
    'hostname': lambda instance: instance.hostname,
    'availability_zone': lambda instance: server_views.ZONE,
    'created_at': lambda instance: _in_words(instance.created_at),
    'launched_at': lambda instance: _in_words(instance.launched_at),
}
#: migrator knows no address, description or tag of a guest, so these match no server.
_NEVER = ('ip', 'ip6', 'description', 'display_description', 'tags', 'tags-any')

#: The limit for the ways in which a pattern may try to match at one place of a name, because Python matches by
#: backtracking. A repetition counts as many ways as a name has characters, an optional part two, a choice its
#: alternatives. The ways of consecutive parts multiply.
MAX_WAYS = 256**2
#: An escape, a class of characters, flags or a comment, a back reference or condition, the head of a group, a lazy
#: repetition, or one character.
_PART = re.compile(
    r'\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?(?:#|[aiLmsux-]+[:)]|P=|\()|\((?:\?(?:P<\w+>|<?[=!]|[:>]))?|[*+]\?|.',
    re.DOTALL,
)
_REPEATING = ('*', '+', '*?', '+?', '{')


@dataclasses.dataclass
class Wanted:
    """The filters of a list.

    :ivar columns: the filters for the database; a list means any of its members.
    :ivar predicates: the filters that are applied to what the database returns.
    :ivar nothing: whether no server can match.
    """

    columns: dict[str, Any] = dataclasses.field(default_factory=dict)
    predicates: list[Predicate] = dataclasses.field(default_factory=list)
    changes_since: datetime.datetime | None = None
    sort: list[tuple[str, bool]] = dataclasses.field(default_factory=list)
    nothing: bool = False


def index(request: Request) -> webob.Response:
    """List servers by name."""
    found, body = _list(request, SERVERS_INDEX, SERVERS_INDEX_ALL)
    return answer({'servers': [server_views.basic(request, instance) for instance in found], **body})


def detail(request: Request) -> webob.Response:
    """List servers with details."""
    found, body = _list(request, SERVERS_DETAIL, SERVERS_DETAIL_ALL)
    details = server_views.Details.of(request, found)
    return answer({'servers': [details.view(instance) for instance in found], **body})


def show(request: Request, server_id: str) -> webob.Response:
    """Show one server."""
    instance = common.get_instance(request, server_id)
    request.authorize(SERVERS_SHOW, common.target(instance))
    details = server_views.Details.of(request, [instance], alone=True)
    return answer({'server': details.view(instance)})


def _list(request: Request, rule: str, all_rule: str) -> tuple[list[Instance], dict[str, Any]]:
    given = request.given
    request.authorize(rule)
    wanted = _filters(request, given, all_rule)
    size = common.page_size(request)
    marker = given.get('marker')
    if wanted.nothing:
        found = []
    elif wanted.predicates or wanted.sort:
        found = _filtered(request, wanted, size, marker)
    else:
        found = request.services.database.instances.list(
            wanted.columns,
            limit=size,
            marker=marker,
            marker_project=None if request.context.is_admin else request.context.project_id or '',
            changes_since=wanted.changes_since,
        )
    return found, common.next_link(request, 'servers_links', size, [instance.uuid for instance in found])


def _filtered(request: Request, wanted: Wanted, size: int, marker: str | None) -> list[Instance]:
    everything = request.services.database.instances.list(wanted.columns, changes_since=wanted.changes_since)
    found = [instance for instance in everything if all(fits(instance) for fits in wanted.predicates)]
    for attribute, descending in reversed(wanted.sort):
        found.sort(key=_none_first(attribute), reverse=descending)
    return common.after(marker, found, 'uuid')[:size]


def _none_first(attribute: str) -> Callable[[Instance], tuple[bool, Any]]:
    def key(instance: Instance) -> tuple[bool, Any]:
        value = getattr(instance, attribute)
        return (value is not None, value)

    return key


def _filters(request: Request, given: dict[str, str], all_projects_rule: str) -> Wanted:
    """Return the filters that a request's parameters define.

    :param given: the parameters that the schema knows.
    :param all_projects_rule: the policy for lists that include other projects.
    :raises migrator.exception.Invalid: the value of a parameter is not valid.
    :raises migrator.exception.Forbidden: the policy does not allow the list.
    """
    if not request.context.is_admin:
        given = {name: value for name, value in given.items() if request.since(FOR_EVERYBODY.get(name, 1000))}
    for name in REFUSED:
        if name in given:
            raise exception.Invalid(f'Invalid filter field: {name}.')
    wanted = Wanted(sort=_sort(request))
    _projects(request, given, wanted, all_projects_rule)
    for column in _COLUMNS:
        if column in given:
            wanted.columns[column] = given[column]
    if 'status' in given:
        _status(request, wanted)
    for name, of in _PATTERNS.items():
        if name in given:
            wanted.predicates.append(_matches(safe_pattern(name, given[name]), of))
    if 'flavor' in given:
        wanted.predicates.append(lambda instance: instance.flavor.name == given['flavor'])
    if 'locked' in given:
        wanted.columns['locked_by'] = ['owner', 'admin'] if _truth('locked', given['locked']) else None
    _times(given, wanted)
    wanted.nothing |= any(name in given for name in _NEVER)
    wanted.nothing |= any(given.get(name) for name in WITHOUT_NOTION)
    # migrator does not keep deleted servers. As in nova, a value that is neither true nor false means false.
    wanted.nothing |= strutils.bool_from_string(given.get('deleted', ''))
    return wanted


def _projects(request: Request, given: dict[str, str], wanted: Wanted, rule: str) -> None:
    if 'all_tenants' not in given or not _truth('all_tenants', given['all_tenants'] or '1'):
        # As in nova, project_id is ignored without all_tenants.
        wanted.columns['project_id'] = request.context.project_id
        return
    request.authorize(rule)
    project = given.get('project_id', given.get('tenant_id'))
    if project is not None:
        wanted.columns['project_id'] = project


def _status(request: Request, wanted: Wanted) -> None:
    names = {name.upper() for name in request.GET.getall('status')}
    vm_states = [state for state, name in server_views.STATUSES.items() if name in names]
    if vm_states:
        # As in nova, ACTIVE finds those that are being migrated too.
        wanted.columns['vm_state'] = vm_states
    elif 'MIGRATING' in names:
        wanted.columns |= {'vm_state': list(MIGRATABLE_VM_STATES), 'task_state': 'migrating'}
    elif 'REBUILD' in names:
        wanted.columns['task_state'] = list(server_views.REBUILDING)
    elif 'RESIZE' in names:
        wanted.columns['task_state'] = list(server_views.RESIZING)
    elif 'REVERT_RESIZE' in names:
        wanted.columns['task_state'] = 'resize_reverting'
    elif request.since(38) and not names & server_views.OTHER_STATUSES:
        raise exception.Invalid(f'Invalid status value: {", ".join(sorted(names))[:200]}')
    else:
        wanted.nothing = True


def _times(given: dict[str, str], wanted: Wanted) -> None:
    since = schemas.moment(given['changes-since']) if 'changes-since' in given else None
    wanted.changes_since = since
    if 'changes-before' not in given:
        return
    before = schemas.moment(given['changes-before'])
    if since and since > before:
        raise exception.Invalid('The value of changes-since must be less than or equal to changes-before.')

    def is_before(instance: Instance) -> bool:
        changed = instance.updated_at or instance.created_at
        return changed is not None and changed <= before

    wanted.predicates.append(is_before)


def _sort(request: Request) -> list[tuple[str, bool]]:
    """Return the attributes to sort by, each with whether it is descending; none: the usual order."""
    keys, directions = request.GET.getall('sort_key'), request.GET.getall('sort_dir')
    for way in directions:
        if way not in ('asc', 'desc'):
            raise exception.ValidationError(path='sort_dir', value=way, detail='Use asc or desc.')
    if not keys and not directions:
        return []
    if len(directions) > max(len(keys), 1):
        raise exception.Invalid('There are more sort_dir than sort_key: give one for each key at most.')
    ignored = IGNORED_SORT_KEYS if request.since(73) else (*IGNORED_SORT_KEYS, 'locked')
    pairs = [*itertools.zip_longest(keys or ['created_at'], directions or ['desc'])]
    pairs = [(key, way) for key, way in pairs if key not in ignored]
    # As in nova, the first direction is also that of what has none.
    first = pairs[0][1] if pairs else 'desc'
    if not request.context.is_admin:
        for key, _way in pairs:
            if key in SHOWS_HOSTS:
                raise exception.Forbidden(f'Only administrators can sort servers by {key}.')
    named = [(SORT_KEYS[key], (way or first) == 'desc') for key, way in [*pairs, ('created_at', None)]]
    return [(attribute, descending) for attribute, descending in [*named, ('id', first == 'desc')] if attribute]


def safe_pattern(name: str, text: str) -> re.Pattern[str]:
    """Return the regular expression in a filter.

    :raises migrator.exception.ValidationError: it is not valid, or may take too long.
    """
    pattern = schemas.pattern(text)
    if _ways(text) > MAX_WAYS:
        raise exception.ValidationError(
            path=name,
            value=text,
            detail='Use a regular expression without back references, comments and nested repetitions, and with at '
            'most two repetitions, or a few optional parts and choices instead.',
        )
    return pattern


def _ways(text: str) -> float:
    """Return the ways in which a regular expression may try to match at one place; infinity: unknown."""
    parts = _PART.findall(text)
    # For each open group, outermost first: the ways of its earlier alternatives, and of its present one.
    groups = [(0.0, 1.0)]
    for part, follower in itertools.pairwise([*parts, '']):
        before, ways = groups.pop()
        if part in ('(?P=', '(?(', '(?#') or re.fullmatch(r'\\[1-9]|\(\?[a-zA-Z-]*x.*', part):
            # A comment, or the flag x, can separate a repetition from the part that it repeats.
            return math.inf
        if part.startswith('(') and not part.endswith(')'):
            groups += [(before, ways), (0.0, 1.0)]
        elif part == ')':
            inside = before + ways
            if inside > 1 and follower in _REPEATING:
                return math.inf
            before, ways = groups.pop()
            groups.append((before, ways * inside))
        elif part == '|':
            groups.append((before + ways, 1.0))
        else:
            groups.append((before, ways * (256 if part in _REPEATING else 2 if part == '?' else 1)))
    before, ways = groups.pop()
    return before + ways


def _truth(name: str, text: str) -> bool:
    try:
        return schemas.boolean(text)
    except ValueError:
        raise exception.ValidationError(path=name, value=text, detail='Use true or false.') from None


def _matches(pattern: re.Pattern[str], of: Callable[[Instance], Any]) -> Predicate:
    def fits(instance: Instance) -> bool:
        value = of(instance)
        return value is not None and bool(pattern.search(str(value)))

    return fits


def _in_words(moment: datetime.datetime | None) -> str | None:
    return None if moment is None else f'{moment.astimezone(datetime.UTC):%Y-%m-%d %H:%M:%S}'
