# SPDX-License-Identifier: Apache-2.0

"""What a service logs, in one place: by oslo.log, each line with the request and the migration that it is about.

A line gets them from what its thread works on (:func:`migrator.context.about`; in the API :func:`serving`), or from
``extra={'migration': uuid, 'instance': uuid}`` of the call. oslo.log's own way is a context that stays in a thread
until another takes its place; the threads of a pool would go on to log under a request that has long been answered.

An outage is one line: without a traceback, and once for as long as it lasts.
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

from oslo_config import cfg
from oslo_log import log as oslo_logging
from oslo_utils import strutils

from migrator import context as migrator_context
from migrator import exception
from migrator.conf import values
from migrator.objects import base

#: A message that has not been heard for so many seconds is said again.
OUTAGE_IS_OVER_AFTER = 60.0
#: Loggers of libraries that say with each attempt, and for each connection, that something is away, or is back.
_REPEATING = ('oslo.messaging', 'oslo_messaging', 'oslo_db.sqlalchemy.engines', 'keystoneauth')
#: Libraries that tell by INFO what interests nobody who runs a service, or by WARN what we tell as an error.
_QUIET = (
    'alembic=WARN',
    'amqp=ERROR',
    'cotyledon=WARN',
    'keystoneauth.identity=ERROR',
    'oslo_db.api=CRITICAL',
    'oslo_service=WARN',
    'stevedore=ERROR',
)
_NUMBER = re.compile(r'[0-9a-f]{8}-[0-9a-f-]{27}|\d+(\.\d+)?')


_environ: contextvars.ContextVar[Mapping[str, Any] | None] = contextvars.ContextVar('migrator_environ', default=None)


@contextlib.contextmanager
def serving(environ: Mapping[str, Any]) -> Iterator[None]:
    """Let what this thread logs within the block say which request it is.

    :param environ: of a WSGI request, where its context will be found when it is known.
    """
    token = _environ.set(environ)
    try:
        yield
    finally:
        _environ.reset(token)


class Annotator(logging.Filter):
    """Adds to each record what it is about."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record; none is dropped."""
        if getattr(record, 'annotated', False):
            return True  # by another handler
        record.annotated = True
        subject, environ = migrator_context.subject(), _environ.get()
        if 'context' not in record.__dict__:
            request: Any = subject.request
            if request is None and environ is not None:
                request = _context_of(environ)
            # None too: without it oslo.log takes what some earlier work has left in this thread.
            record.context = request
        migration = record.__dict__.get('migration') or subject.migration_uuid
        instance = record.__dict__.get('instance') or subject.instance_uuid
        # oslo.log puts the text of this attribute before the message, in each of its formats.
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
    """Take the traceback from an outage: where it was noticed is of no interest."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, exception.ServiceUnreachable):
        record.msg, record.args = f'{record.getMessage()}: {" ".join(str(error).split())}', None
        record.exc_info = record.exc_text = None


class Redactor(logging.Formatter):
    """Formats by another, and takes from the result, tracebacks included, what no log may hold: credentials, and what
    a terminal would obey.

    :param inner: oslo.log's.
    """

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        """Return what is written."""
        lines = redacted(_said_once(self._inner.format(record), record)).split('\n')
        # Line breaks are a traceback's own by now; the message has lost its own, and a user's name may have others.
        return '\n'.join(map(base.printable, lines))


def _said_once(text: str, record: logging.LogRecord) -> str:
    """Put the summary of the error being handled, which oslo.log adds, in one line; if the message has told it, cut it
    off.
    """
    error = record.exc_info[1] if record.exc_info else sys.exc_info()[1]
    if error is None:
        return text
    summary = ': ' + traceback.format_exception_only(error)[0].rstrip()
    if not record.exc_info and base.printable(str(error)) in record.getMessage():
        return text.removesuffix(summary)
    return text.replace(summary, base.printable(summary), 1)


def redacted(text: str) -> str:
    """Return a text without the credentials of URLs, and without what calls itself a password."""
    text = values.without_credentials(text)
    return str(strutils.mask_password(text)) if 'pass' in text.lower() else text


class OncePerOutage(logging.Filter):
    """Drops the repetitions of a line that tells of an outage, until it has not been said for a while.

    :param clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._heard: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is to be written."""
        if record.levelno < logging.INFO or not self._of_an_outage(record):
            return True
        key, now = (record.name, _NUMBER.sub('#', record.getMessage())), self._clock()
        with self._lock:
            before = self._heard.get(key)
            self._heard[key] = now
            if len(self._heard) > 1000:
                self._heard = {key: at for key, at in self._heard.items() if now - at < OUTAGE_IS_OVER_AFTER}
        return before is None or now - before >= OUTAGE_IS_OVER_AFTER

    @staticmethod
    def _of_an_outage(record: logging.LogRecord) -> bool:
        if record.name.startswith(_REPEATING):
            return True
        found = [*(record.args if isinstance(record.args, tuple) else ()), record.exc_info and record.exc_info[1]]
        return any(isinstance(one, exception.ServiceUnreachable) for one in found)


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options of logging, before the configuration is read."""
    levels = oslo_logging.get_default_log_levels()
    oslo_logging.set_defaults(default_log_levels=[*levels, *(quiet for quiet in _QUIET if quiet not in levels)])
    oslo_logging.register_options(conf)


def setup(conf: cfg.ConfigOpts) -> None:
    """Log as configured.

    :raises migrator.exception.ConfigurationError: the log file or its directory cannot be written, or the like.
    """
    try:
        oslo_logging.setup(conf, 'migrator')
    except (OSError, oslo_logging.LogConfigError) as error:
        file = conf.log_config_append or '/'.join(filter(None, (conf.log_dir, conf.log_file)))
        option = '[DEFAULT] ' + ('log_config_append' if conf.log_config_append else 'log_file')
        raise exception.ConfigurationError(option=option, value=file, detail=f'it cannot be used: {error}.') from None
    annotator, once = Annotator(), OncePerOutage()
    for handler in logging.getLogger().handlers:
        handler.addFilter(once)
        handler.addFilter(annotator)
        handler.setFormatter(Redactor(handler.formatter or logging.Formatter()))
        _say_once_what_cannot_be_written(handler)


def _say_once_what_cannot_be_written(handler: logging.Handler) -> None:
    """Have a log that cannot be written (the disk is full) say so once on stderr: the service goes on without it.

    The stock handler writes a traceback there for each line.
    """
    emit, failures, said = handler.emit, 0, False

    def emit_and_look(record: logging.LogRecord) -> None:
        nonlocal said
        before = failures
        emit(record)
        if failures == before:
            said = False  # it can be written again: the next time is another one

    def failed(record: logging.LogRecord) -> None:
        nonlocal failures, said
        failures += 1
        if not said:
            said = True
            where = getattr(handler, 'baseFilename', 'its stream')
            with contextlib.suppress(OSError, ValueError):  # stderr may be what cannot be written
                sys.stderr.write(f'The log cannot be written to {where}, and lines are lost: {sys.exc_info()[1]}\n')
                sys.stderr.flush()

    # Attributes of the one handler: which class it has is a matter of oslo.log's options.
    handler.emit = emit_and_look  # type: ignore[method-assign]
    handler.handleError = failed  # type: ignore[method-assign]


class TracedRPC:
    """An RPC whose handlers log under the context, the migration and the instance that they were called for.

    :param inner: a :class:`migrator.rpc.RPC`.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call; see :meth:`migrator.rpc.RPC.call`."""
        return self._inner.call(*args, **kwargs)

    def cast(self, *args: Any, **kwargs: Any) -> None:
        """Cast; see :meth:`migrator.rpc.RPC.cast`."""
        self._inner.cast(*args, **kwargs)

    def serve(self, target: Any, endpoint: object) -> Any:
        """Listen; see :meth:`migrator.rpc.RPC.serve`."""
        return self._inner.serve(target, _TracedEndpoint(endpoint))


class _TracedEndpoint:
    def __init__(self, endpoint: object) -> None:
        self._endpoint = endpoint

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._endpoint, name)

        def traced(context: Any, **args: Any) -> Any:
            migration, instance = _named_in(args)
            with migrator_context.about(context, migration, instance):
                return method(context, **args)

        # What marks a method as one that may be called has to be on this one too.
        traced.__dict__.update(getattr(method, '__dict__', {}))
        return traced


def _named_in(args: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the migration and the instance that a call is about, by the names that all our calls have for them."""
    subject = args.get('command') or args.get('report')
    migration = args.get('migration_uuid') or getattr(subject, 'migration_uuid', None)
    instance = getattr(args.get('instance'), 'uuid', None) or getattr(subject, 'instance_uuid', None)
    return migration, instance
