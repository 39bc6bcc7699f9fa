# SPDX-License-Identifier: Apache-2.0

"""The log of a service, by oslo.log: each line has its request and its migration.

They come from the subject of the thread's work (:func:`migrator.context.about`; in the API :func:`serving`), or from
``extra={'migration': uuid, 'instance': uuid}`` of the call. oslo.log itself takes a context that stays in a thread
until another replaces it. With that, the threads of a pool would log under a request that was answered long ago.

An outage is logged once while it lasts, as one line without a traceback. oslo.log's ``rate_limit`` options still work:
they drop any lines above a rate, and an outage is often below it. oslo.utils masks passwords and tokens. It does not
mask the credentials in URLs, so that this is done here.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import oslo_log.log
from oslo_config import cfg
from oslo_utils import strutils

from migrator import exception
from migrator.conf import values
from migrator.context import about, subject
from migrator.objects import base
from migrator.tracing import Around

#: Seconds without a message about an outage after which the same message is logged again.
OUTAGE_IS_OVER_AFTER = 60.0
#: Loggers of libraries that log an outage and its end at each attempt and for each connection.
_REPEATING = ('oslo.messaging', 'oslo_messaging', 'oslo_db.sqlalchemy.engines', 'keystoneauth', 'opentelemetry')
_BROKER = 'oslo.messaging._drivers.impl_rabbit'
_BROKER_IS_AWAY = ('is unreachable', 'Connection failed', 'Unable to connect')
#: Libraries that log at INFO what an operator does not need, or at WARN what we raise as an error.
_QUIET = (
    'alembic=WARN',
    'amqp=ERROR',
    'cotyledon=WARN',
    'keystoneauth.identity=ERROR',
    'oslo_db.api=CRITICAL',
    'oslo_db.sqlalchemy.exc_filters=CRITICAL',
    'oslo_service=WARN',
    'stevedore=ERROR',
)
_NUMBER = re.compile(r'[0-9a-f]{8}-[0-9a-f-]{27}|\d+(\.\d+)?')


_environ: contextvars.ContextVar[Mapping[str, Any] | None] = contextvars.ContextVar('migrator_environ', default=None)


@contextlib.contextmanager
def serving(environ: Mapping[str, Any]) -> Iterator[None]:
    """Add the request to the lines that this thread logs within the block.

    :param environ: the environment of the WSGI request; it gets the context after the authentication.
    """
    token = _environ.set(environ)
    try:
        yield
    finally:
        _environ.reset(token)


class Annotator(logging.Filter):
    """A filter that adds to each record the request, the migration and the instance."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record, and return True."""
        if getattr(record, 'annotated', False):
            return True  # another handler has done it
        record.annotated = True
        work, environ = subject(), _environ.get()
        if 'context' not in record.__dict__:
            request: Any = work.request
            if request is None and environ is not None:
                request = _context_of(environ)
            # Set None too: without the attribute oslo.log takes a context that earlier work left in this thread.
            record.context = request
        migration = record.__dict__.get('migration') or work.migration_uuid
        instance = record.__dict__.get('instance') or work.instance_uuid
        # Each format of oslo.log puts this attribute before the message.
        record.instance = ''.join(
            f'[{name}: {uuid}] ' for name, uuid in (('migration', migration), ('instance', instance)) if uuid
        )
        _in_one_line(record)
        message = record.getMessage()
        if not message.isprintable():
            record.msg, record.args = base.printable(message), None
        return True


def _context_of(environ: Mapping[str, Any]) -> Any:
    context = environ.get('migrator.context')
    if context is None and environ.get('openstack.request_id'):
        return {'request_id': environ['openstack.request_id']}
    return context


def _in_one_line(record: logging.LogRecord) -> None:
    """Remove the traceback of an outage, because it does not matter where the outage was noticed."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, exception.ServiceUnreachable):
        record.msg, record.args = f'{record.getMessage()}: {" ".join(str(error).split())}', None
        record.exc_info = record.exc_text = None


class Redactor(logging.Formatter):
    """A formatter that removes credentials and control characters from the output of another one.

    It does so in tracebacks too.

    :param inner: oslo.log's formatter.
    """

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        """Return the text to write."""
        lines = redacted(_without_repetition(self._inner.format(record), record)).split('\n')
        # The remaining line breaks belong to a traceback. The Annotator has escaped those of the message, and other
        # fields, such as a user's name, may contain other control characters.
        return '\n'.join(map(base.printable, lines))


def _without_repetition(text: str, record: logging.LogRecord) -> str:
    """Return a text without oslo.log's summary of an error that the message already contains.

    Otherwise the summary is put in one line.
    """
    error = record.exc_info[1] if record.exc_info else sys.exc_info()[1]
    if error is None:
        return text
    summary = ': ' + traceback.format_exception_only(error)[0].rstrip()
    if not record.exc_info and base.printable(str(error)) in record.getMessage():
        return text.removesuffix(summary)
    return text.replace(summary, base.printable(summary), 1)


def redacted(text: str) -> str:
    """Return a text without credentials in URLs, and without the values of passwords and tokens."""
    return strutils.mask_password(values.without_credentials(text))


class OncePerOutage(logging.Filter):
    """A filter that drops the repetitions of a message about an outage while the outage lasts.

    :param clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._last: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the line."""
        if record.levelno < logging.INFO or not self._of_an_outage(record):
            return True
        key, now = self._key(record), self._clock()
        with self._lock:
            before = self._last.get(key)
            self._last[key] = now
            if len(self._last) > 1000:
                self._last = {key: at for key, at in self._last.items() if now - at < OUTAGE_IS_OVER_AFTER}
        return before is None or now - before >= OUTAGE_IS_OVER_AFTER

    @staticmethod
    def _key(record: logging.LogRecord) -> tuple[str, str]:
        # oslo.messaging logs an outage of the broker in several wordings, for each attempt of each connection.
        if record.name == _BROKER and any(phrase in str(record.msg) for phrase in _BROKER_IS_AWAY):
            return record.name, ''
        for one in _errors(record):
            if isinstance(one, exception.DatabaseUnreachable):
                # Whatever a service does needs the database, and each of its parts has words of its own.
                return f'{type(one).__name__} {record.levelno}', _NUMBER.sub('#', str(one))
        return record.name, _NUMBER.sub('#', record.getMessage())

    @staticmethod
    def _of_an_outage(record: logging.LogRecord) -> bool:
        return record.name.startswith(_REPEATING) or any(_errors(record))


def _errors(record: logging.LogRecord) -> list[exception.ServiceUnreachable]:
    arguments = record.args.values() if isinstance(record.args, Mapping) else record.args or ()
    found = [*arguments, record.exc_info and record.exc_info[1]]
    return [one for one in found if isinstance(one, exception.ServiceUnreachable)]


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options of logging, before the configuration is read."""
    levels = oslo_log.log.get_default_log_levels()
    oslo_log.log.set_defaults(default_log_levels=[*levels, *(quiet for quiet in _QUIET if quiet not in levels)])
    oslo_log.log.register_options(conf)


def setup(conf: cfg.ConfigOpts) -> None:
    """Set up the log as configured.

    :raises migrator.exception.ConfigurationError: the log cannot be used, for example because its file cannot be
        written.
    """
    try:
        oslo_log.log.setup(conf, 'migrator')
    except (OSError, oslo_log.log.LogConfigError) as error:
        file = conf.log_config_append or '/'.join(filter(None, (conf.log_dir, conf.log_file)))
        option = '[DEFAULT] ' + ('log_config_append' if conf.log_config_append else 'log_file')
        raise exception.ConfigurationError(option=option, value=file, detail=f'it cannot be used: {error}.') from None
    annotator = Annotator()
    for handler in logging.getLogger().handlers:
        handler.addFilter(OncePerOutage())  # each has written its own lines
        handler.addFilter(annotator)
        handler.setFormatter(Redactor(handler.formatter or logging.Formatter()))
        _report_write_errors_once(handler)


def _report_write_errors_once(handler: logging.Handler) -> None:
    """Make a handler report once on stderr that it cannot write, for example because the disk is full.

    The service goes on without its log. By default a handler writes a traceback to stderr for each line.
    """
    emit, failures, reported = handler.emit, 0, False

    def emit_and_check(record: logging.LogRecord) -> None:
        nonlocal reported
        before = failures
        emit(record)
        if failures == before:
            reported = False  # the handler can write again, so report the next failure

    def failed(record: logging.LogRecord) -> None:
        nonlocal failures, reported
        failures += 1
        if not reported:
            reported = True
            where = getattr(handler, 'baseFilename', 'its stream')
            with contextlib.suppress(OSError, ValueError):  # the handler may be the one that writes to stderr
                sys.stderr.write(f'The log cannot be written to {where}, and lines are lost: {sys.exc_info()[1]}\n')
                sys.stderr.flush()

    # Set attributes of the object, because oslo.log's options decide on the class of the handler.
    handler.emit = emit_and_check  # type: ignore[method-assign]
    handler.handleError = failed  # type: ignore[method-assign]


def with_context(rpc: Any) -> Any:
    """Return an RPC whose handlers log with the context, the migration and the instance of the call.

    :param rpc: a :class:`migrator.rpc.RPC`.
    """
    return Around(rpc, serve=lambda serve, target, served: serve(target, Around(served, _in_context)))


def _in_context(method: Callable[..., Any], context: Any, **args: Any) -> Any:
    migration, instance = _named_in(args)
    with about(context, migration, instance):
        return method(context, **args)


def _named_in(args: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the migration and the instance that a call is about, from the names that all our calls use."""
    message = args.get('command') or args.get('report')
    migration = args.get('migration_uuid') or getattr(message, 'migration_uuid', None)
    instance = getattr(args.get('instance'), 'uuid', None) or getattr(message, 'instance_uuid', None)
    return migration, instance
