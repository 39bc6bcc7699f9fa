# SPDX-License-Identifier: Apache-2.0

"""The real Placement in this process, for tests and the demo: no socket, a database file, started in milliseconds.

openstack-placement is imported when one is started, not before.
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
from keystoneauth1 import adapter as ks_adapter
from keystoneauth1 import session as ks_session
from keystoneauth1 import token_endpoint
from oslo_config import cfg

_URL = 'http://placement.in.process'

#: The tables that hold what requests have written, and nothing else.
_WRITTEN = (
    *('allocations', 'consumers', 'consumer_types', 'users', 'projects', 'resource_provider_aggregates'),
    *('placement_aggregates', 'resource_provider_traits', 'inventories', 'resource_providers'),
)

#: Placement keeps its database in a global; each request of each instance puts its own there, under this lock. Nothing
#: inside waits for anything but SQLite.
_placement_global = threading.Lock()


class Request(NamedTuple):
    """One request that was answered."""

    method: str
    #: Path and query.
    url: str
    status: int


class Contents(NamedTuple):
    """What the database of a Placement says of one resource provider."""

    uuid: str
    name: str
    #: The uuid of the root of its tree.
    root: str
    #: Resource class -> total, reserved, min_unit, max_unit, step_size, allocation_ratio.
    inventory: dict[str, dict[str, float]]
    #: Consumer uuid -> resource class -> amount.
    holders: dict[str, dict[str, int]]


class _Template:
    """A migrated and synchronized database file, made by the first start in this process and copied by the others."""

    content: bytes | None = None


class InProcessPlacement:
    """One Placement. Several may live in one process, one after another or at once.

    :param directory: where its database file is; one that is there already is opened, as after a restart.
    :param lock: held during each request, since Placement on SQLite takes one at a time.
    :param before_request: called with method and URL before the lock is taken; it may wait, or raise.
    """

    #: A token with every right: Placement runs with auth_strategy noauth2.
    ADMIN_TOKEN = 'admin'

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        lock: contextlib.AbstractContextManager[Any] | None = None,
        before_request: Callable[[str, str], None] | None = None,
    ) -> None:
        self.before_request = before_request
        #: Everything that was answered, in order.
        self.requests: list[Request] = []
        self._lock = threading.Lock() if lock is None else lock
        self._file = pathlib.Path(directory, 'placement.sqlite')
        self._manager: Any = None
        self._app = self._start()

    def app(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request: the WSGI application, for any server."""
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

    def adapter(self, token: str = ADMIN_TOKEN) -> ks_adapter.Adapter:
        """Return a keystoneauth1 adapter onto it.

        :param token: ``user:project`` or ``admin``, as noauth2 has it.
        """
        transport = requests.Session()
        transport.mount(_URL, _WSGITransport(self.app))
        session = ks_session.Session(auth=token_endpoint.Token(_URL, token), session=transport)
        return ks_adapter.Adapter(session, service_type='placement')

    def contents(self) -> dict[str, Contents]:
        """Return provider uuid -> what the database says of it, read past the API in the time of one request."""
        with self._lock, contextlib.closing(sqlite3.connect(self._file)) as database:
            classes = dict(database.execute('SELECT id, name FROM resource_classes'))
            query = (
                'SELECT one.id, one.uuid, one.name, root.uuid FROM resource_providers one'
                ' JOIN resource_providers root ON root.id = one.root_provider_id'
            )
            found = {number: Contents(uuid, name, root, {}, {}) for number, uuid, name, root in database.execute(query)}
            columns = ('total', 'reserved', 'min_unit', 'max_unit', 'step_size', 'allocation_ratio')
            query = f'SELECT resource_provider_id, resource_class_id, {", ".join(columns)} FROM inventories'  # noqa: S608 -- our words
            for number, kind, *values in database.execute(query):
                found[number].inventory[classes[kind]] = dict(zip(columns, values, strict=True))
            query = 'SELECT resource_provider_id, consumer_id, resource_class_id, used FROM allocations'
            for number, consumer, kind, used in database.execute(query):
                found[number].holders.setdefault(consumer, {})[classes[kind]] = used
        return {one.uuid: one for one in found.values()}

    def empty(self) -> None:
        """Have it be as if new: whoever starts many, one after the other, need not start each."""
        self.before_request = None
        self.requests = []
        with self._lock, contextlib.closing(sqlite3.connect(self._file)) as database:
            for table in _WRITTEN:
                database.execute(f'DELETE FROM {table}')  # noqa: S608 -- our words
            for table in ('resource_classes', 'traits'):
                database.execute(f"DELETE FROM {table} WHERE name LIKE 'CUSTOM!_%' ESCAPE '!'")  # noqa: S608 -- our words
            database.commit()

    def close(self) -> None:
        """Close the database; a request after this opens it again."""
        self._manager.dispose_pool()

    def __enter__(self) -> InProcessPlacement:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.close()

    def _start(self) -> Any:
        # Imported here: whoever only wants the rest of migrator.testing needs no openstack-placement.
        from placement import conf as placement_conf
        from placement import db_api, deploy, util

        if not isinstance(util.jsonschema, _CheckedOnce):
            util.jsonschema = _CheckedOnce(util.jsonschema)
        is_new = not self._file.exists()
        if is_new and _Template.content is not None:
            self._file.write_bytes(_Template.content)
            is_new = False
        # thread_checkin would sleep(0) inside the lock; without synchronous a test does not wait for the disk.
        database = {'connection': f'sqlite:///{self._file}', 'sqlite_synchronous': False}
        conf = cfg.ConfigOpts()
        placement_conf.register_opts(conf)
        conf.set_override('connection', database['connection'], group='placement_database')
        conf.set_override('sync_on_startup', is_new, group='placement_database')
        conf.set_override('auth_strategy', 'noauth2', group='api')
        conf([], project='placement', default_config_files=[], default_config_dirs=[])
        self._manager = db_api.placement_context_manager.make_new_manager()
        self._manager.configure(thread_checkin=False, **database)
        self._manager.append_on_engine_create(_keep_connections)
        with self._lock, self._our_database():
            if is_new:
                self._forget_that_another_was_synchronized()
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
    def _forget_that_another_was_synchronized() -> None:
        from placement.objects import resource_class, trait

        # Placement writes the standard traits and resource classes once in a process, not once in a database.
        trait._TRAITS_SYNCED = False
        resource_class._RESOURCE_CLASSES_SYNCED = False


def _keep_connections(engine: Any) -> None:
    # oslo.db opens a SQLite file anew for each transaction, which takes a third of the time of most requests.
    kept = engine.dialect.get_pool_class(engine.url)
    engine.pool = kept(engine.pool._creator, _dispatch=engine.pool.dispatch, dialect=engine.dialect)


class _CheckedOnce:
    """Stands for the module ``jsonschema`` in Placement, which checks its own schemas anew at each request.

    :ivar _validators: by the schema's id; the schema is kept, so that the id stays its own.
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
    """Lets a requests session call a WSGI application instead of opening a socket."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        super().__init__()
        self._app = app

    def send(self, request: requests.PreparedRequest, *_args: Any, **_kwargs: Any) -> requests.Response:
        """Return the application's answer."""
        asked = webob.Request.blank(request.url, method=request.method, headers=dict(request.headers))
        body = request.body or b''
        asked.body = body.encode() if isinstance(body, str) else body
        answered = asked.get_response(self._app)
        return make_response(request, answered.status_int, answered.headers.items(), answered.body)

    def close(self) -> None:
        """Nothing is open."""


def make_response(
    request: requests.PreparedRequest | None, status: int, headers: Iterable[tuple[str, str]], body: bytes
) -> requests.Response:
    """Return a requests response of these parts.

    :param request: what it answers; None where nothing was sent.
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
