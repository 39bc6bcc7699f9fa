# SPDX-License-Identifier: Apache-2.0

"""The real Placement in this process, for tests and the demo.

It has a database file and no socket, and starts in milliseconds. openstack-placement is imported only when a Placement
starts.
"""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import requests
import webob
from keystoneauth1 import token_endpoint
from keystoneauth1.adapter import Adapter
from keystoneauth1.session import Session
from oslo_config import cfg

_URL = 'http://placement.in.process'

#: The tables that hold only rows that requests have written.
_WRITTEN = (
    *('allocations', 'consumers', 'consumer_types', 'users', 'projects', 'resource_provider_aggregates'),
    *('placement_aggregates', 'resource_provider_traits', 'inventories', 'resource_providers'),
)

#: Placement keeps its database in a global. Under this lock each request puts the database of its Placement there.
#: Code that holds the lock waits only for SQLite.
_placement_global = threading.Lock()


class Request(NamedTuple):
    """One request with the status of its response."""

    method: str
    #: The path and the query.
    url: str
    status: int


class Contents(NamedTuple):
    """The content of a Placement's database for one resource provider."""

    uuid: str
    name: str
    #: The uuid of the root of its tree.
    root: str
    #: Resource class -> total, reserved, min_unit, max_unit, step_size, allocation_ratio.
    inventory: dict[str, dict[str, float]]
    #: Consumer uuid -> resource class -> amount.
    holders: dict[str, dict[str, int]]


class _Template:
    """A migrated and synchronized database file.

    The first start in this process makes it, and the later ones copy it.
    """

    content: bytes | None = None


class InProcessPlacement:
    """One Placement; a process may have several, one after another or at the same time.

    :param directory: the directory of its database file. An existing file is opened, as after a restart.
    :param lock: held during each request, since Placement on SQLite handles one at a time.
    :param before_request: called with method and URL before the lock is taken. It may wait or raise.
    """

    #: A token with all rights: Placement runs with auth_strategy noauth2.
    ADMIN_TOKEN = 'admin'

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        lock: contextlib.AbstractContextManager[Any] | None = None,
        before_request: Callable[[str, str], None] | None = None,
    ) -> None:
        self.before_request = before_request
        #: Every request that has a response, in order.
        self.requests: list[Request] = []
        self._lock = threading.Lock() if lock is None else lock
        self._file = pathlib.Path(directory, 'placement.sqlite')
        self._manager: Any = None
        self._app = self._start()

    def app(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Handle one request; this is the WSGI application, for any server."""
        request = webob.Request(environ)
        method, url = request.method, request.path_qs
        if self.before_request is not None:
            self.before_request(method, url)
        with self._lock, self._our_database():
            status, headers, parts = request.call_application(self._app)
            try:
                body = b''.join(parts)
            finally:
                close = getattr(parts, 'close', None)
                if close is not None:
                    close()
            self.requests.append(Request(method, url, int(status.split()[0])))
        start_response(status, headers)
        return [body]

    def adapter(self, token: str = ADMIN_TOKEN) -> Adapter:
        """Return a keystoneauth1 adapter for this Placement.

        :param token: ``user:project`` or ``admin``, as in noauth2.
        """
        transport = requests.Session()
        transport.mount(_URL, _WSGITransport(self.app))
        session = Session(auth=token_endpoint.Token(_URL, token), session=transport)
        return Adapter(session, service_type='placement')

    def contents(self) -> dict[str, Contents]:
        """Return provider uuid -> its content, read from the database in the time of one request."""
        with self._lock, contextlib.closing(sqlite3.connect(self._file)) as database:
            classes = dict(database.execute('SELECT id, name FROM resource_classes'))
            query = (
                'SELECT one.id, one.uuid, one.name, root.uuid FROM resource_providers one'
                ' JOIN resource_providers root ON root.id = one.root_provider_id'
            )
            found = {number: Contents(uuid, name, root, {}, {}) for number, uuid, name, root in database.execute(query)}
            columns = ('total', 'reserved', 'min_unit', 'max_unit', 'step_size', 'allocation_ratio')
            query = f'SELECT resource_provider_id, resource_class_id, {", ".join(columns)} FROM inventories'  # noqa: S608 -- constant names
            for number, kind, *values in database.execute(query):
                found[number].inventory[classes[kind]] = dict(zip(columns, values, strict=True))
            query = 'SELECT resource_provider_id, consumer_id, resource_class_id, used FROM allocations'
            for number, consumer, kind, used in database.execute(query):
                found[number].holders.setdefault(consumer, {})[classes[kind]] = used
        return {one.uuid: one for one in found.values()}

    def empty(self) -> None:
        """Delete everything that requests have written, so that the next user finds a new Placement."""
        self.before_request = None
        self.requests = []
        with self._lock, contextlib.closing(sqlite3.connect(self._file)) as database:
            for table in _WRITTEN:
                database.execute(f'DELETE FROM {table}')  # noqa: S608 -- constant names
            for table in ('resource_classes', 'traits'):
                database.execute(f"DELETE FROM {table} WHERE name LIKE 'CUSTOM!_%' ESCAPE '!'")  # noqa: S608 -- constant names
            database.commit()

    def close(self) -> None:
        """Close the database; a later request opens it again."""
        self._manager.dispose_pool()

    def __enter__(self) -> InProcessPlacement:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.close()

    def _start(self) -> Any:
        # Imported here, since the rest of migrator.testing works without openstack-placement.
        from placement import db_api, deploy, util
        from placement.conf import register_opts

        if not isinstance(util.jsonschema, _CheckedOnce):
            util.jsonschema = _CheckedOnce(util.jsonschema)
        is_new = not self._file.exists()
        if is_new and _Template.content is not None:
            self._file.write_bytes(_Template.content)
            is_new = False
        # thread_checkin calls sleep(0) while the lock is held; without synchronous a test does not wait for the disk.
        database = {'connection': f'sqlite:///{self._file}', 'sqlite_synchronous': False}
        conf = cfg.ConfigOpts()
        register_opts(conf)
        conf.set_override('connection', database['connection'], group='placement_database')
        conf.set_override('sync_on_startup', is_new, group='placement_database')
        conf.set_override('auth_strategy', 'noauth2', group='api')
        conf([], project='placement', default_config_files=[], default_config_dirs=[])
        self._manager = db_api.placement_context_manager.make_new_manager()
        self._manager.configure(thread_checkin=False, **database)
        self._manager.append_on_engine_create(_keep_connections)
        with self._lock, self._our_database():
            if is_new:
                self._reset_synchronized_flags()
            app = deploy.loadapp(conf)
            if is_new:
                self._manager.dispose_pool()
                _Template.content = self._file.read_bytes()
        return app

    @contextlib.contextmanager
    def _our_database(self) -> Iterator[None]:
        from placement import db_api

        with _placement_global:
            restore = db_api.placement_context_manager.patch_factory(self._manager)
            try:
                yield
            finally:
                restore()

    @staticmethod
    def _reset_synchronized_flags() -> None:
        from placement.objects import resource_class, trait

        # Placement writes the standard traits and resource classes once per process, and not once per database.
        trait._TRAITS_SYNCED = False
        resource_class._RESOURCE_CLASSES_SYNCED = False


def _keep_connections(engine: Any) -> None:
    # By default oslo.db opens a SQLite file for each transaction, which takes a third of the time of most requests.
    kept = engine.dialect.get_pool_class(engine.url)
    engine.pool = kept(engine.pool._creator, _dispatch=engine.pool.dispatch, dialect=engine.dialect)


class _CheckedOnce:
    """A replacement of the module ``jsonschema`` in Placement that checks each schema only once.

    Placement itself checks its schemas at each request.

    :ivar _validators: id of a schema -> the schema and its validator. The schema is kept so that its id stays unique.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._validators: dict[int, tuple[Any, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def validate(self, instance: Any, schema: Any, **options: Any) -> None:
        """Check a document as jsonschema does.

        :raises jsonschema.ValidationError: the document does not fit.
        """
        if id(schema) not in self._validators:
            kind = self._module.validators.validator_for(schema)
            kind.check_schema(schema)
            self._validators[id(schema)] = schema, kind(schema, **options)
        error = self._module.exceptions.best_match(self._validators[id(schema)][1].iter_errors(instance))
        if error is not None:
            raise error


class _WSGITransport(requests.adapters.BaseAdapter):
    """A transport of a requests session that calls a WSGI application instead of opening a socket."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        super().__init__()
        self._app = app

    def send(self, request: requests.PreparedRequest, *_args: Any, **_kwargs: Any) -> requests.Response:
        """Return the application's response."""
        asked = webob.Request.blank(request.url, method=request.method, headers=dict(request.headers))
        body = request.body or b''
        asked.body = body.encode() if isinstance(body, str) else body
        answered = asked.get_response(self._app)
        return make_response(request, answered.status_int, answered.headers.items(), answered.body)

    def close(self) -> None:
        """Do nothing: no connection is open."""


def make_response(
    request: requests.PreparedRequest | None, status: int, headers: Iterable[tuple[str, str]], body: bytes
) -> requests.Response:
    """Return a requests response with the given parts.

    :param request: the request of this response; None if no request was sent.
    """
    response = requests.Response()
    response.status_code = status
    response.reason = webob.Response(status=status).status.partition(' ')[2]
    response.headers.update(headers)
    response.raw = io.BytesIO(body)
    response._content = body
    response.encoding = 'utf-8'
    response.url = _URL
    if request is not None:
        response.request = request
        response.url = request.url or _URL
    return response
