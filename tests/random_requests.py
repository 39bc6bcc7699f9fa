# SPDX-License-Identifier: Apache-2.0

"""Random requests to the REST API: odd methods, paths, queries, headers and bodies, by seed.

They go straight to the WSGI application, in the form in which a server hands requests to it. ``run`` returns what was
wrong with the answers. It is run on SQLite (``tests/unit/api/test_random_requests.py``) and on PostgreSQL
(``tests/real/test_random_requests.py``); MIGRATOR_REQUESTS in the environment says how many each database gets.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import json
import logging
import os
import random
import re
import urllib.parse
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from oslo_config import cfg

from migrator import context, exception, executors
from migrator.api import app as api_app
from migrator.api import devidentity, microversions, routes, schemas
from migrator.api.handlers import server_actions
from migrator.api.own.routes import OWN
from migrator.api.route import Route
from migrator.cmd import api
from migrator.conductor.tasks import sagas
from migrator.conf import api as api_conf
from migrator.conf import conductor
from migrator.db import models
from migrator.db.api import Database
from migrator.objects import COMPUTE_BINARY, CURRENT_VERSION, ComputeNode, Migration, ProviderInventory, instance
from tests import conformity

#: After this number of requests the database is filled anew: a locked or migrating guest refuses all that follows.
FILL_EVERY = 250
#: What an answer may be, beside what the request got wrong.
NO_FAULTS = (501, 503)

_LONE = '\ud800'
#: Texts that have broken an API before, this one or another.
TEXTS = (
    '', ' ', '0', '-1', '1', 'true', 'null', 'None', 'a\n', 'a\r\nb', '\x00', 'a\x00b', _LONE, f'a{_LONE}b', '\udfff',
    '\uffff', '\U0001f600', 'é', '\u0663', '\uff11\uff12', '²', '%', '%s', '{0}', '%00', '_', "'", '"; --', '\\', '..',
    '../..', 'a' * 36, 'a' * 255, 'a' * 256, 'é' * 255, 'a' * 5000, '9' * 5000,
    *(str(2**power + more) for power in (31, 32, 63, 64) for more in (-1, 0, 1)), '1e400', '0x10', '1_0', '+1', 'NaN',
    '(', '[', '*', 'a{4294967296}', 'a{4294967295}', 'a{99999999999999999999}', '(' * 200, '(' * 100 + ')' * 100,
    '(a*)*b', 'a?' * 100 + 'b', '(?P<x>', '(?x', '(?#', '\\1', '[[a]', '(?i)a', 'a(?i)', '\\N{x}', '\\8', '(?(1)a|b)',
    '(?<=a*)', '[z-a]', 'a**', 'a{2,1}', '(?P<é>a)', '(?u)a(?a)', '(?-i:a)',
    '2026-01-01T00:00:00Z', '9999-12-31T23:59:59-14:00', '0001-01-01T00:00:00+14:00', '0000-00-00', '2026-02-30',
    '2026-01-01T00:00:00+99:99', '99999-01-01T00:00:00Z', '2026-W01', '20260101', '2026-01-01T24:00:00',
    'asc', 'desc', 'host', 'name', 'uuid', 'ACTIVE', 'MIGRATING', 'nova-compute', 'source', 'dest', 'auto', 'enabled',
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, *(2**power + more for power in (31, 32, 63, 64) for more in (-1, 0, 1)), -(2**31), -(2**63) - 1,
    10**4000, 0.5, -0.0, 1e308, 1e-320,
)  # fmt: skip
#: Bodies that are no document, or hardly one.
BODIES = (
    b'', b' ', b'{', b'}', b'nul', b'\xff\xfe', b'\xef\xbb\xbf{}', '{}'.encode('utf-16'), b'"\\ud800"', b'{"a": NaN}',
    b'{"a": Infinity}', b'1e400', b'{"lock": {"locked_reason": 1e400}}', b'9' * 5000, b'{"a":1,"a":2}', b'\x00',
    b'[' * 970 + b']' * 970, b'[' * 100000, b'{"lock":' * 970 + b'{}' + b'}' * 970, b'[' * 40 + b']' * 40,
    b'{"lock": {"locked_reason": "\xed\xa0\x80"}}', b'{"lock": {"locked_reason": "a\\u0000"}}',
    b'"' + b'a' * 200000 + b'"',
)  # fmt: skip
METHODS = ('GET', 'HEAD', 'POST', 'PUT', 'DELETE', 'PATCH', 'OPTIONS', 'TRACE', 'get', 'FOO', '', 'G T', 'é')
VERSIONS = (
    'latest', 'LATEST', '2.0', '2.81', '2.999', '3.1', '1.1', '', ' ', 'abc', '2', '2.', '.1', '2.1.1', '-2.1', '2.01',
    '2.' + '9' * 5000, '9' * 300 + '.1', '\u0662.\u0661', '2.1\n', '2.1 ', '2.1, compute 2.80', 'NaN', '\xff',
)  # fmt: skip
CONTENT_TYPES = (
    '', 'application/json', 'application/json; charset=utf-8', 'application/json; charset=nonsense', 'text/plain',
    'text/plain; charset=utf-16', 'application/xml', 'application/x-www-form-urlencoded',
    'multipart/form-data', 'multipart/form-data; boundary=a', ';', '/', '\xff', 'application/json; charset="',
    'a' * 5000,
)  # fmt: skip
TOKENS = ('admin', 'admin', 'admin', 'admin:blue', 'ada:blue', 'eve:red')
ODD_TOKENS = ('', ':', 'a:', ':a', 'a' * 300, 'admin:' + 'b' * 300, '\xff:\xfe', 'a\x00:b', 'a b', 'a:b:c', '%s', "a'")
#: Headers of which none should matter.
HEADERS = (
    ('Accept', 'text/html;q='), ('Accept', '*/*;q=999'), ('Accept-Encoding', 'gzip;q=é'),
    ('Accept-Language', 'x' * 3000),
    ('Range', 'bytes=0-'), ('If-Modified-Since', 'never'), ('If-Match', '*'), ('Cookie', 'a=\xff'), ('Host', ''),
    ('Host', 'é'), ('Host', 'a:b'), ('Host', '[::1'), ('X-Forwarded-For', '\xff'), ('X-Forwarded-Proto', 'gopher'),
    ('X-Openstack-Request-Id', 'req-\n'), ('X-OpenStack-Nova-API-Version', 'x'), ('Authorization', '\xff'),
    ('Expect', '100-continue'), ('Transfer-Encoding', 'chunked'), ('Connection', 'close'),
)  # fmt: skip
#: Beside what a route has by itself.
PARAMETERS = ('limit', 'marker', 'sort_key', 'sort_dir', 'name', 'unknown', '', '\x00', 'a[]', 'é')

_IDENTITY = Route('POST', '/v3/auth/tokens', routes.dispatch)
#: Without the stream of events, which is no JSON.
_OWN = tuple(route for route in OWN if route.media == 'application/json')
#: Those that read a body more often, for there is most to get wrong.
_ROUTES = (
    *routes.ROUTES, *6 * [route for route in routes.ROUTES if route.method in ('POST', 'PUT')], _IDENTITY,
    *_OWN, *2 * [route for route in _OWN if route.method == 'POST'],
)  # fmt: skip


class _Clock(executors.NativeThreads):
    """Native threads with the same uuids each time, and without sleep.

    Below 2.34 an answer waits for a conductor, which does not run here.
    """

    def __init__(self) -> None:
        super().__init__(clock=self)  # type: ignore[arg-type]  # it has what a clock has
        self.seconds = 0.0
        self._uuids = random.Random(0)  # noqa: S311 -- a test's dice

    def new_uuid(self) -> str:
        return str(uuid.UUID(int=self._uuids.getrandbits(128), version=4))

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime.datetime:
        return datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=self.seconds)

    def sleep(self, seconds: float) -> None:
        self.seconds += max(seconds, 10)


class _Conductor:
    """The RPC API of a conductor that does not run."""

    def live_migrate(self, *_args: Any) -> None:
        """Take the call."""

    def wake(self, *_args: Any) -> None:
        """Take the call."""

    def wake_drains(self, *_args: Any) -> None:
        """Take the call."""

    def plan_drain(self, *_args: Any) -> None:
        """Do not answer in time."""
        raise exception.ServiceUnreachable(service='conductor', method='plan_drain', timeout=60)

    def wake_maintenances(self, *_args: Any) -> None:
        """Take the call."""

    def plan_maintenance(self, *_args: Any) -> None:
        """Do not answer in time."""
        raise exception.ServiceUnreachable(service='conductor', method='plan_maintenance', timeout=60)

    def begin_turn(self, *_args: Any) -> None:
        """Do not answer in time."""
        raise exception.ServiceUnreachable(service='conductor', method='begin_turn', timeout=60)

    def read_allocations(self, *_args: Any) -> None:
        """Do not answer in time."""
        raise exception.ServiceUnreachable(service='conductor', method='read_allocations', timeout=60)

    def get_diagnostics(self, *_args: Any) -> dict[str, Any]:
        """Reply as a host whose driver has no diagnostics."""
        return {'state': 'running', 'diagnostics': None}

    def get_host_uptime(self, *_args: Any) -> None:
        """Reply as a host whose driver does not know it."""

    def delete_service(self, *_args: Any) -> None:
        """Take the call."""

    def audit(self, *_args: Any) -> list[Any]:
        """Reply that nothing was found."""
        return []


class Site:
    """The application on a database, which has its tables.

    :ivar ids: what the parts of a path may be, by their names in :mod:`migrator.api.routes`.
    """

    def __init__(self, url: str) -> None:
        threads = self._threads = _Clock()
        self.database = Database(url, threads)
        conf = cfg.ConfigOpts()
        api_conf.register_opts(conf)
        conductor.register_opts(conf)
        conf([], project='migrator', default_config_files=[], default_config_dirs=[])
        conf.set_override('auth_strategy', 'noauth2', group='api')
        # Nothing reports here: how fast the machine is must not decide whether a host is up.
        conf.set_override('service_down_time', 1_000_000)
        made = api_app.make_app(conf, self.database, _Conductor(), threads, sagas())  # type: ignore[arg-type]  # a stand-in
        self.app = api.logged(made)
        self.identity = devidentity.make_app({'compute': 'http://api.test/v2.1'})
        self.ids: dict[str, list[str]] = {}

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    def fill(self) -> None:
        """Write the same few rows, instead of those that are there."""
        with self.database.engine.writer() as session:
            for table in reversed(models.Base.metadata.sorted_tables):
                session.execute(sa.delete(table))
        for host in ('source', 'dest'):
            self._host(host, self._threads.new_uuid())
        guests = [self._guest(number, self._threads.new_uuid()) for number in range(8)]
        moving = [self._migration(number, guest, self._threads.new_uuid()) for number, guest in enumerate(guests[:4])]
        found = self.database.services
        self.ids = {
            'server_id': [guest.uuid for guest in guests],
            'migration_id': [str(one.id) for one in moving],
            'request_id': [f'req-{number}' for number in range(4)],
            'service_id': [one.uuid for one in found.list()]
            + ['enable', 'disable', 'disable-log-reason', 'force-down'],
            'hypervisor_id': [part for node in found.list_nodes() for part in (node.uuid, str(node.id), node.node)],
            'flavor_id': ['m1'],
            'key': ['hw:cpu_policy'],
            'server_group_id': [guests[0].uuid],
            'uuid': [one.uuid for one in moving],
            'name': ['source', 'dest'],
            'marker': ['m1', guests[-1].uuid, moving[0].uuid, 'req-0', found.list_nodes()[0].uuid],
        }

    def begin_migrations(self) -> None:
        """Let the migrations that are accepted run, as a conductor does."""
        table = models.MIGRATIONS
        with self.database.engine.writer() as session:
            session.execute(sa.update(table).where(table.c.status == 'accepted').values(status='running'))

    def _host(self, name: str, id_: str) -> None:
        root = ProviderInventory(uuid=id_, name=name, inventory={'VCPU': {'total': 8}})
        node = ComputeNode(uuid=id_, host=name, node=f'{name}.example.org', providers=[root])
        services = self.database.services
        with self.database.engine.writer() as session:
            services.write_report(session, name, COMPUTE_BINARY, CURRENT_VERSION, id_)
            services.write_node(session, node)

    def _guest(self, number: int, id_: str) -> instance.Instance:
        project = ('blue', 'red', 'admin')[number % 3]
        return self.database.instances.create(
            instance.Instance(
                uuid=id_, name='a' * 60 + str(number), project_id=project, user_id='ada', host='source',
                node='source.example.org',
                flavor=instance.Flavor(name='m1', extra_specs={'hw:cpu_policy': 'dedicated'}),
            )
        )  # fmt: skip

    def _migration(self, number: int, guest: instance.Instance, id_: str) -> Migration:
        one = Migration(
            uuid=id_, instance_uuid=guest.uuid, project_id=guest.project_id, user_id='ada', source_compute='source',
            source_node='source.example.org', dest_compute='dest',
        )  # fmt: skip
        asked = context.RequestContext(user_id='ada', project_id='blue', request_id=f'req-{number}', overwrite=False)
        self.database.migrations.accept(asked, one, 'live-migration')
        if number % 2:
            table = models.MIGRATIONS
            with self.database.engine.writer() as session:
                session.execute(sa.update(table).where(table.c.uuid == id_).values(status='running'))
        return self.database.migrations.get(id_)


@dataclasses.dataclass
class Request:
    """A request as a WSGI server hands it over: texts are latin-1, each byte a character."""

    method: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    body: bytes

    def environ(self) -> dict[str, Any]:
        """Return the WSGI environment."""
        found = {
            'REQUEST_METHOD': self.method, 'SCRIPT_NAME': '', 'PATH_INFO': self.path, 'QUERY_STRING': self.query,
            'SERVER_NAME': 'api.test', 'SERVER_PORT': '80', 'SERVER_PROTOCOL': 'HTTP/1.1', 'REMOTE_ADDR': '127.0.0.1',
            'CONTENT_LENGTH': str(len(self.body)), 'wsgi.version': (1, 0), 'wsgi.url_scheme': 'http',
            'wsgi.input': io.BytesIO(self.body), 'wsgi.errors': io.StringIO(), 'wsgi.multithread': True,
            'wsgi.multiprocess': False, 'wsgi.run_once': False,
        }  # fmt: skip
        for name, value in self.headers:
            name = name.upper().replace('-', '_')
            found[name if name in ('CONTENT_TYPE', 'CONTENT_LENGTH') else f'HTTP_{name}'] = value
        return found

    def __str__(self) -> str:
        headers = [(name, value[:100]) for name, value in self.headers]
        return f'{self.method!a} {self.path[:300]!a}?{self.query[:300]!a} {headers!a} {self.body[:300]!a}'


class Random:
    """A source of random requests.

    :param site: to whose rows most of them refer.
    """

    def __init__(self, site: Site, seed: int) -> None:
        self._site = site
        self._random = random.Random(seed)  # noqa: S311 -- a test's dice

    def request(self) -> Request:
        """Return the next one."""
        pick = self._random
        route = pick.choice(_ROUTES)
        method = route.method if self._mostly() else pick.choice(METHODS)
        path = self._path('/migrator/v1' if route in _OWN else '/v2.1', route.path)
        headers = self._headers(route)
        if method in ('POST', 'PUT', 'PATCH') or self._seldom():
            body = self._body(route)
        else:
            body = b''
        return Request(method, path, self._query(route), headers, body)

    def _mostly(self) -> bool:
        return self._random.random() < 0.95

    def _seldom(self) -> bool:
        return not self._mostly()

    def _text(self) -> str:
        pick = self._random
        if self._mostly():
            return pick.choice(TEXTS)
        return ''.join(chr(pick.randrange(0x110000)) for _ in range(pick.randrange(20)))

    def _path(self, prefix: str, template: str) -> str:
        pick = self._random
        if self._seldom():
            parts = [self._text() for _ in range(pick.randrange(6))]
            return _latin_1('/' + '/'.join([prefix[1:], *parts] if pick.random() < 0.8 else parts))

        def part(found: re.Match[str]) -> str:
            known = self._site.ids.get(found[1])
            return pick.choice(known) if known and pick.random() < 0.85 else self._text()

        return _latin_1(prefix + re.sub(r'\{(\w+)\}', part, template))

    def _headers(self, route: Route) -> list[tuple[str, str]]:
        pick = self._random
        latest = microversions.MAXIMUM.minor
        # mostly one in which the route is there
        first, last = (route.since, min(route.until, latest)) if self._mostly() else (1, latest)
        minor = last if pick.random() < 0.3 else pick.randint(first, last)
        version = f'2.{minor}' if self._mostly() else pick.choice(VERSIONS)
        name = pick.choice((microversions.STANDARD_HEADER, microversions.LEGACY_HEADER))
        headers = [(name, f'compute {version}' if name == microversions.STANDARD_HEADER else version)]
        headers.append(('X-Auth-Token', pick.choice(TOKENS) if self._mostly() else pick.choice(ODD_TOKENS)))
        if self._seldom():
            headers.append(('Content-Type', pick.choice(CONTENT_TYPES)))
        if self._seldom():
            headers.append(('Content-Length', pick.choice(('', '-1', 'x', '0', '5', str(2**64), '9' * 5000))))
        if self._seldom():
            headers.append(pick.choice(HEADERS))
        return headers

    def _query(self, route: Route) -> str:
        pick = self._random
        if self._seldom():
            return ''.join(pick.choice('%&=;+ca0\xff\xed\xa0\x80') for _ in range(pick.randrange(30)))
        table = route.query or {1: {'properties': {}}}
        names = [*{name for schema in table.values() for name in schema['properties']}]
        names.sort()
        pairs = []
        for _ in range(pick.choice((0, 0, 1, 1, 1, 2, 3))):
            name = pick.choice(names) if names and self._mostly() else pick.choice(PARAMETERS)
            known = self._site.ids['marker'] if name == 'marker' else self._likely(table, name)
            value = pick.choice(known) if known and pick.random() < 0.5 else self._text()
            pairs.append(f'{_quoted(name)}={_quoted(value)}')
        return '&'.join(pairs)

    @staticmethod
    def _likely(table: schemas.Table, name: str) -> list[str]:
        """Return what would do for a parameter, where its schema lists that."""
        for schema in table.values():
            values = schema['properties'].get(name, {}).get('items', {}).get('enum')
            if values:
                return [str(value) for value in values]
        return ['2', '100'] if name == 'limit' else []

    def _body(self, route: Route) -> bytes:
        pick = self._random
        if self._seldom():
            return pick.choice(BODIES)
        document = self._document(route)
        for _ in range(pick.choice((0, 1, 1, 1, 2))):
            document = self._spoilt(document)
        return json.dumps(document).encode()

    def _document(self, route: Route) -> Any:
        pick = self._random
        if route.path == '/os-services/{service_id}':
            wanted = {
                'host': 'source', 'binary': 'nova-compute', 'disabled_reason': 'why', 'forced_down': True,
                'status': pick.choice(('enabled', 'disabled')),
            }  # fmt: skip
            return {name: wanted[name] for name in wanted if pick.random() < 0.6}
        if route in _OWN:
            return self._fitting(route.bodies[0][1]) if route.bodies else {}
        if route is _IDENTITY:
            user, scope = {'name': 'ada', 'password': 'any'}, {'project': {'name': 'blue'}}
            return {'auth': {'identity': {'methods': ['password'], 'password': {'user': user}}, 'scope': scope}}
        if route.path.endswith('/migrations/{migration_id}/action'):
            return {'force_complete': None}
        arguments = {'host': pick.choice((None, 'dest')), 'block_migration': pick.choice(('auto', False))}
        if pick.random() < 0.3:
            arguments |= pick.choice(({'disk_over_commit': False}, {'force': True}))
        bodies = {
            'os-migrateLive': arguments,
            'evacuate': pick.choice(({}, {'host': 'dest'}, {'onSharedStorage': False, 'adminPass': 'a'})),
            'os-resetState': {'state': pick.choice(('active', 'error'))},
            'lock': {'locked_reason': 'why'},
        }
        name = pick.choice([*server_actions.ACTIONS, 'reboot'])
        return {name: bodies.get(name)}

    def _fitting(self, schema: Mapping[str, Any]) -> Any:
        """Return a document that a schema of migrator's own API allows."""
        pick = self._random
        if 'enum' in schema:
            return pick.choice(schema['enum'])
        kind = schema['type'] if isinstance(schema['type'], str) else schema['type'][0]
        if kind == 'object':
            properties = schema.get('properties', {})
            names = [name for name in properties if name in schema.get('required', ()) or pick.random() < 0.3]
            if schema.get('maxProperties') == 1:
                names = [pick.choice([*properties])]
            return {name: self._fitting(properties[name]) for name in names}
        if kind == 'array':
            return [self._fitting(schema['items'])]
        if kind == 'string':
            return (
                '2026-12-24T18:00:00Z' if schema.get('format') == 'date-time' else pick.choice(self._site.ids['name'])
            )
        return {'integer': pick.choice((1, 2, 1000)), 'number': pick.choice((1, 2.5)), 'boolean': pick.random() < 0.5}[
            kind
        ]

    def _spoilt(self, document: Any) -> Any:
        """Return a document with one part of it replaced, added, or renamed."""
        pick = self._random
        if isinstance(document, dict) and document and self._mostly():
            name = pick.choice([*document])
            what = pick.random()
            if what < 0.8:
                return document | {name: self._spoilt(document[name])}
            if what < 0.9:
                return document | {self._text(): document[name]}
            return {self._text() if key == name else key: value for key, value in document.items()}
        return self._value()

    def _value(self) -> Any:
        pick = self._random
        makers: tuple[Callable[[], Any], ...] = (
            self._text, self._text, self._text, lambda: pick.choice(NUMBERS), lambda: pick.choice((True, False, None)),
            lambda: [self._text()], lambda: {self._text(): self._text()}, lambda: [[]] * 1000,
            lambda: _nested(pick.choice((5, 40, 200, 400))),
        )  # fmt: skip
        return pick.choice(makers)()


def _nested(depth: int) -> Any:
    document: Any = []
    for level in range(depth):
        document = {'a': document} if level % 2 else [document]
    return document


def _latin_1(text: str) -> str:
    return text.encode('utf-8', 'surrogatepass').decode('latin-1')


def _quoted(text: str) -> str:
    return urllib.parse.quote(text.encode('utf-8', 'surrogatepass'), safe='')


class _Errors(logging.Handler):
    """A handler that keeps the last error that was logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.last = ''

    def emit(self, record: logging.LogRecord) -> None:
        self.last = logging.Formatter().format(record)


def count(share: float = 1.0, default: int = 1600) -> int:
    """Return how many requests a test sends.

    :param share: its share of MIGRATOR_REQUESTS, or of the default.
    """
    return round(share * int(os.environ.get('MIGRATOR_REQUESTS', default)))


def run(site: Site, seed: int, requests: int) -> Iterator[tuple[Request, int, str]]:
    """Send requests, and return of each its status and what is wrong with the answer, if anything."""
    maker, errors = Random(site, seed), _Errors()
    logging.getLogger().addHandler(errors)
    try:
        for number in range(requests):
            if number % FILL_EVERY == 0:
                site.fill()
            request, errors.last = maker.request(), ''
            status, wrong = _send(site, request)
            yield request, status, f'{wrong} ... {errors.last[-2000:]}' if wrong else ''
    finally:
        logging.getLogger().removeHandler(errors)


def _send(site: Site, request: Request) -> tuple[int, str]:
    started: list[tuple[str, list[tuple[str, str]]]] = []
    is_identity = request.path.startswith('/v2.1/v3')
    app = site.identity if is_identity else site.app
    environ = request.environ()
    if is_identity:
        environ['PATH_INFO'] = environ['PATH_INFO'].removeprefix('/v2.1')
    try:
        body = b''.join(app(environ, lambda status, headers, *_: started.append((status, headers))))
    except Exception as error:  # noqa: BLE001 -- that there is one is the finding
        return 0, f'{type(error).__name__} instead of an answer: {error!a}'
    status, headers = int(started[-1][0][:3]), dict(started[-1][1])
    return status, wrong(request, status, headers, body)


def wrong(request: Request, status: int, headers: dict[str, str], body: bytes) -> str:
    """Return what is wrong with an answer, or nothing."""
    if status >= 500 and status not in NO_FAULTS:
        return f'{status}: {body[:300]!a}'
    if any(ord(one) > 255 or one in '\r\n\0' for name, value in headers.items() for one in name + value):
        return f'{status}: a header that cannot be sent: {headers}'
    if body and request.method != 'HEAD':
        try:
            json.loads(body)
        except ValueError as error:
            return f'{status}: it is no JSON ({error}): {body[:300]!a}'
    newest = f'{microversions.SERVICE_TYPE} {microversions.MAXIMUM}'
    if request.path.startswith('/migrator/v1/') or headers.get(microversions.STANDARD_HEADER) == newest:
        return conformity.fault(request.method, request.path, status, body)
    return ''
