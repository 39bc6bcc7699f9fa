# SPDX-License-Identifier: Apache-2.0

"""Requests and replies of each call at each version, compared with the schemas of nova itself.

What differs is in ``doc/source/differences.csv``, which the REST reference shows, with its reason.
"""

import csv
import functools
import json
import pathlib
import re
from fnmatch import fnmatchcase

import jsonschema
import pytest
import webob
from oslo_utils import timeutils

from migrator.api import microversions, routes, schemas
from migrator.api.handlers import server_actions
from migrator.objects import Flavor
from tests.nova_schemas import facts

ROOT = pathlib.Path(__file__).resolve().parents[3]
NOVA = json.loads((ROOT / 'tests/nova_schemas/nova.json').read_text(encoding='utf-8'))
LATEST = microversions.MAXIMUM.minor
ACTIONS = {
    'POST /servers/{}/action': tuple(server_actions.ACTIONS),
    'POST /servers/{}/migrations/{}/action': ('force_complete',),
}
#: A user of the project that owns the guests, and an administrator.
OWNER, ADMIN = 'ada:blue', 'admin:blue'


#: The calls that always get 404.
NEVER_FOUND = ('GET /os-server-groups/{}',)


def served():
    """Return the first and the last minor version of each call."""
    found = {}
    for route in routes.ROUTES:
        call = f'{route.method} {re.sub("{[^}]*}", "{}", route.path)}'
        for name in [f'{call} {action}' for action in ACTIONS.get(call, ())] or [call]:
            found[name] = (route.since, min(route.until, LATEST))
    return found


SERVED = served()


def nova_versions(call):
    known = NOVA['calls'][call]
    return known['first'], min(known['last'] or LATEST, LATEST)


def from_nova(call, kind):
    """Return the documents of a kind by first minor version."""
    return facts.whole(NOVA['calls'][call].get(kind, {}))


def at(table, minor):
    """Return the entry of a minor version in a table by first versions, or None."""
    return table[max(first for first in table if first <= minor)] if any(first <= minor for first in table) else None


# --- the differences that the reference lists ------------------------------------------------------------------------

with (ROOT / 'doc/source/differences.csv').open(encoding='utf-8', newline='') as file:
    LISTED = [(row['call'].strip('`'), row['what'].strip('`'), row['migrator']) for row in csv.DictReader(file)]


def unlisted(found):
    """Return the differences that are not listed, and those that are listed and were not found."""
    used = set()
    left = []
    for call, what, difference in found:
        rows = [
            row for row in LISTED if fnmatchcase(call, row[0]) and fnmatchcase(what, row[1]) and row[2] == difference
        ]
        used.update(rows)
        if not rows:
            left.append(f'{call}, {what}: {difference}')
    kinds = {what.partition(' ')[0] for _, what, _ in found}
    left += [f'not found: {row}' for row in LISTED if row not in used and row[1].partition(' ')[0] in kinds]
    return left


# --- a request of each call ------------------------------------------------------------------------------------------


class Requests:
    """A request of each call that succeeds, in a world with guests and migrations."""

    def __init__(self, world):
        world.conf.set_override('max_limit', 3, group='api')  # so that lists have links
        world.force_down('spare')
        self._world = world
        flavor = Flavor(name='m2', vcpus=2, memory_mb=1024, root_gb=10, extra_specs={'hw:cpu_policy': 'shared'})
        self._guest = world.guest('one', 'blue', host='dest', flavor=flavor)
        world.guest('two', 'blue', flavor=flavor.replace(name='m3', extra_specs={}), vm_state='stopped', power_state=4)
        world.guest('three', 'blue', flavor=flavor.replace(name='m4'), locked_by='admin', locked_reason='mine')
        self._dead = world.guest('dead', 'blue', host='spare')
        world.migration(self._guest, 'completed')
        figures = {f'{what}_{name}': 0 for what in ('memory', 'disk') for name in ('total', 'processed', 'remaining')}
        self._migration = world.migration(self._guest, **figures)
        path = f'/servers/{self._guest.uuid}/os-instance-actions'
        self._action = world.get(path)['instanceActions'][0]['request_id']
        self._hypervisor = world.database.services.list_nodes()[1]
        self._service = world.database.services.get_compute('spare').uuid

    def of(self, call, minor):
        """Return the path and the body of the request at a version."""
        method, path, *action = call.split()
        if path == '/os-services/{}' and method == 'PUT':
            if minor < 53:
                return '/os-services/enable', {'host': 'spare', 'binary': 'nova-compute'}
            return path.format(self._service), {'status': 'enabled'}
        if path.startswith('/os-hypervisors/{}'):
            part = 'dest' if path.endswith(('/search', '/servers')) else None
            with_servers = '?with_servers=true' if minor >= 53 else ''
            return path.format(part or self._id(self._hypervisor, minor)) + with_servers, None
        if action:
            return self._act(path, action[0], minor)
        if path.startswith('/flavors'):
            return path.format('m2', 'hw:cpu_policy'), None
        guest, migration = self._guest, self._migration
        if path == '/os-services/{}':
            self._world.host('left')
            return path.format(self._id(self._world.database.services.get_compute('left'), minor)), None
        if method == 'DELETE':
            guest = self._world.guest(project='blue')
            migration = self._world.migration(guest)
        return path.format(guest.uuid, self._action if 'actions' in path else migration.id), None

    def _id(self, row, minor):
        return row.uuid if minor >= 53 else row.id

    def _act(self, path, action, minor):
        guest = self._world.guest(project='blue', host='spare' if action == 'evacuate' else 'source')
        if action == 'force_complete':
            return path.format(guest.uuid, self._world.migration(guest).id), {action: None}
        if action in ('confirmResize', 'revertResize'):
            self._world.finished(guest)
        arguments = {
            'os-migrateLive': {'host': None, 'block_migration': False, 'disk_over_commit': False},
            'evacuate': {} if minor >= 14 else {'onSharedStorage': False},
            'os-resetState': {'state': 'active'},
            'resize': {'flavorRef': 'm2'},
        }.get(action)
        if action == 'os-migrateLive' and minor >= 25:
            del arguments['disk_over_commit']
        return path.format(guest.uuid), {action: arguments}


def boundaries(call):
    """Return the minor versions of a call at which nova's schemas change, and those just before."""
    first, last = SERVED[call]
    changes = {one for kind in ('query', 'body', 'response') for one in from_nova(call, kind)}
    return sorted(one for one in {first, last, *changes, *(one - 1 for one in changes)} if first <= one <= last)


# --- replies ---------------------------------------------------------------------------------------------------------

_FORMATS = jsonschema.FormatChecker(formats=('uuid', 'ipv4', 'ipv6', 'regex'))
_FORMATS.checks('date-time', raises=ValueError)(lambda value: value is None or timeutils.parse_isotime(value))


def test_each_call_has_the_versions_that_nova_gives_it():
    new = SERVED.keys() - NOVA['calls'].keys()
    assert not new, 'add the call to CALLS in tests/nova_schemas/extract.py, and run that'
    assert {call: nova_versions(call) for call in SERVED} == SERVED


@pytest.mark.parametrize(('path', 'call'), [('/', 'Versions.index'), ('/v2.1', 'VersionsV2.index')])
def test_version_documents_are_as_in_nova(world, path, call):
    (query,), (schema,) = (from_nova(call, kind).values() for kind in ('query', 'response'))
    assert query == {'keys': {}, 'unknown': 'ignored'}
    response = webob.Request.blank(f'{path}?no-such-parameter=1').get_response(world.app)
    assert response.status_int == 200
    assert errors(call, schema, response) == []


@pytest.fixture
def used():
    """The tables of schemas that the requests used: (call, kind) -> minor version -> table."""
    return {}


@pytest.fixture
def watched(world, monkeypatch, used):
    """Return a function that sends a request, and notes the tables of schemas by which it was checked."""
    requests, now = Requests(world), []

    def noted(kind, check):
        def checked(request, table):
            used.setdefault((now[-1], kind), {})[request.version.minor] = table
            return check(request, table)

        return checked

    for kind in ('query', 'body'):
        monkeypatch.setattr(schemas, kind, noted(kind, getattr(schemas, kind)))

    def ask(call, minor, token=ADMIN):
        now.append(call)
        path, body = requests.of(call, minor)
        return world.ask(call.split()[0], path, body, f'2.{minor}', token=token)

    return ask


def test_each_reply_is_as_in_nova_and_each_request_is_taken_as_nova_takes_it(watched, used):
    wrong = []
    for call in SERVED:
        expected = from_nova(call, 'response')
        codes = {int(first): code for first, code in NOVA['calls'][call].get('status', {'1': 200}).items()}
        for minor in boundaries(call):
            for token in (ADMIN, OWNER) if call.startswith('GET /servers') else (ADMIN,):
                response = watched(call, minor, token)
                if response.status_int in (403, 501) or call in NEVER_FOUND:
                    continue
                assert response.status_int == at(codes, minor), f'{call} at 2.{minor}: {response.text}'
                wrong += errors(call, at(expected, minor), response)
    for call, (first, last) in SERVED.items():
        for kind, describe in (('query', of_query), ('body', of_body)):
            theirs, tables = from_nova(call, kind), used.get((call, kind), {1: {}})
            for minor in range(first, last + 1):
                ours = describe(at(at(tables, minor) or at(tables, last), minor))
                wrong += [(call, *one) for one in differences(kind, at(theirs, minor) or describe(None), ours)]
    assert unlisted(dict.fromkeys(wrong)) == []


_INDEX = re.compile(r'\[[0-9]+\]')


def errors(call, schema, response):
    document = response.json if response.body else None
    found = jsonschema.Draft202012Validator(schema, format_checker=_FORMATS).iter_errors(document)
    return [(call, f'response {_INDEX.sub("[]", one.json_path)}', one.message) for one in found]


# --- requests --------------------------------------------------------------------------------------------------------


@functools.cache
def _validator(text):
    return jsonschema.Draft202012Validator(json.loads(text), format_checker=schemas._FORMATS)


def accepts(schema, document):
    return _validator(json.dumps(schema)).is_valid(document)


_described = {}
_ANYTHING = {}


def of_query(schema):
    return _once('query', schema, facts.of_query)


def of_body(schema):
    return _once('body', _ANYTHING if schema is None else schema, facts.of_body)


def _once(kind, schema, describe):
    key = (kind, id(schema))
    if key not in _described:
        _described[key] = (schema, describe(schema, accepts))
    return _described[key][1]


def differences(path, theirs, ours):
    """Yield (place, what migrator does that nova does not) for each difference of two descriptions."""
    for name in ('required', 'unknown', 'twice'):
        if theirs.get(name) != ours.get(name):
            yield path, f'{name}: {ours.get(name)}'
    for name in sorted(theirs.get('keys', {}).keys() | ours.get('keys', {}).keys()):
        if name not in ours['keys'] or name not in theirs['keys']:
            yield f'{path} {name}', 'unknown' if name not in ours['keys'] else 'known'
        else:
            yield from differences(f'{path} {name}', theirs['keys'][name], ours['keys'][name])
    if theirs.get('values') != ours.get('values'):
        every = facts.WORDS if path.startswith('query') else facts.VALUES
        nova, migrator = (facts.names(one['values'], every) for one in (theirs, ours))
        yield (
            path,
            ' '.join(
                [
                    *(f'refuses {name}' for name in nova if name not in migrator),
                    *(f'accepts {name}' for name in migrator if name not in nova),
                ]
            ),
        )
