# SPDX-License-Identifier: Apache-2.0

"""The parts of a service: created from the configuration, and waited for if they are unreachable."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from oslo_config import cfg
from oslo_log import log as logging

from migrator import exception, executors, tracing
from migrator.runtime import logs, monitor, signals

if TYPE_CHECKING:  # modules with threads are imported after the choice of threads
    from migrator.db.api import Database
    from migrator.db.sql.engine import Engine
    from migrator.placement_client.client import PlacementClient

LOG = logging.getLogger(__name__)

T = TypeVar('T')

#: Seconds for which a stop waits until the collector has the last spans.
LAST_SPANS = 2.0

#: Seconds between two attempts to reach a service.
AGAIN = 2.0

#: The names of amqp's exceptions with which a broker refuses our credentials.
_BROKER_REFUSES = ('AccessRefused', 'NotAllowed')


class Stopping(Exception):
    """The process has to stop while it waits for something."""


class Process:
    """The process of one service.

    :param name: the name of the command.
    :param conf: the configuration, with every option that the service needs.
    :ivar stopping: set as soon as the process has to stop.
    :ivar monitor: what the service shows of its health, and its metrics.
    """

    def __init__(self, name: str, conf: cfg.ConfigOpts, threads: executors.Threads) -> None:
        self.name = name
        self.conf = conf
        self.threads = threads
        self.stopping = threads.event()
        self.monitor = monitor.Monitor(name, threads, self.stopping)
        self._on_stop: list[Callable[[], Any]] = []

    # --- stop --------------------------------------------------------------------------------------------------------

    def on_stop(self, function: Callable[[], Any]) -> None:
        """Register a function to call when the process stops. The last one is called first."""
        self._on_stop.append(function)

    def stop(self) -> None:
        """Stop everything. An error in one part does not prevent the stop of the others."""
        self.stopping.set()
        while self._on_stop:
            function = self._on_stop.pop()
            try:
                function()
            except BaseException as error:  # the other parts have to stop too
                if self.threads.is_final(error):
                    raise
                LOG.exception('Error while stopping %s', function)

    # --- waiting for other services ----------------------------------------------------------------------------------

    def wait_for(self, what: str, attempt: Callable[[], T]) -> T:
        """Repeat an attempt until it succeeds, and return its result. Log once that it waits.

        :raises Stopping: the process has to stop meanwhile.
        """
        began: float | None = None
        while not self.stopping.is_set():
            try:
                result = attempt()
            except exception.ServiceUnreachable as error:
                if began is None:
                    began = self.threads.clock.monotonic()
                    LOG.warning(
                        'Service waits: %(service)s: %(error)s', {'service': self.name, 'error': str(error).rstrip('.')}
                    )
                    signals.notify_status(f'Waits: {what} is not reachable')
                self.stopping.wait(AGAIN)
            else:
                if began is not None:
                    LOG.info(
                        'Waiting has ended: %(what)s is reachable after %(seconds).0f s',
                        {'what': what, 'seconds': self.threads.clock.monotonic() - began},
                    )
                    signals.notify_status('Running' if self.monitor.started else 'Starting')
                return result
        raise Stopping(what)

    def watch(self, what: str, attempt: Callable[[], Any]) -> None:
        """Wait in the background, as :meth:`wait_for` does, for what the service does not need for its start."""

        def run() -> None:
            try:
                self.wait_for(what, attempt)
            except Stopping:
                return
            except exception.MigratorException as error:
                LOG.error('Cannot use %(what)s: %(error)s', {'what': what, 'error': error})

        self.threads.start(run, name=f'wait-for-{what}')

    # --- parts -------------------------------------------------------------------------------------------------------

    # These are created first. They check the configuration, and wait for nothing.

    def engine(self) -> Engine:
        """Return the engine of the configured database.

        :raises migrator.exception.ConfigurationError: the URL is not valid.
        """
        from migrator.db.sql.engine import engine_from_conf

        # oslo.db would log each of its own attempts, and give up after the last. wait_for() replaces them.
        made = engine_from_conf(self.conf, self.threads, max_retries=0, lease=self.conf.conductor.lease)
        self.on_stop(made.dispose)
        if self.monitor.measures:
            made.on_statement = self.monitor.time_statements()
        self.monitor.watch('database', made.check)
        return made

    def placement(self) -> PlacementClient:
        """Return the client of Placement.

        :raises migrator.exception.ConfigurationError: ``[placement]`` is not valid.
        """
        from migrator.placement_client.client import client_from_conf

        made = client_from_conf(self.conf)
        if self.monitor.measures:
            made.adapter = self.monitor.timed_adapter(made.adapter)
        return made

    def transport(self) -> Any:
        """Return the transport of the configured broker.

        :raises migrator.exception.ConfigurationError: ``transport_url`` is not valid.
        """
        from migrator import rpc

        rpc.close_lost_connections()
        made = rpc.get_transport(self.conf)
        self.on_stop(made.cleanup)
        return made

    def tracer(self) -> tracing.Tracer | None:
        """Return what records the spans of this service, or None if ``trace_migrations`` is off.

        :raises migrator.exception.ConfigurationError: the extra is not installed, or OpenTelemetry refuses its
            environment variables.
        """
        if not self.conf.trace_migrations:
            return None
        try:
            from migrator.runtime.tracing import to_collector

            made, shut_down = to_collector(self.name, self.conf.host, self.threads.clock)
        except ImportError as error:
            detail = f'the module {error.name} cannot be imported: install the extra "tracing", or set it to false.'
            raise exception.ConfigurationError(option='[DEFAULT] trace_migrations', value=True, detail=detail) from None
        except ValueError as error:
            reason = str(error).rstrip('.')
            detail = f'OpenTelemetry refuses an environment variable OTEL_...: {reason}. correct it.'
            raise exception.ConfigurationError(option='[DEFAULT] trace_migrations', value=True, detail=detail) from None
        end = self._last_spans(shut_down)
        self.on_stop(end)
        # a WSGI server ends its workers without stop()
        atexit.register(end)
        return made

    def _last_spans(self, shut_down: Callable[[], None]) -> Callable[[], None]:
        """Return a function that lets the export end, and waits :data:`LAST_SPANS` for it."""
        ending, ended = self.threads.event(), self.threads.event()

        def wait() -> None:
            ending.wait()
            try:
                shut_down()
            finally:
                ended.set()

        def end() -> None:
            ending.set()
            ended.wait(LAST_SPANS)

        # Python may start no thread any more when the process exits.
        self.threads.start(wait, name='last-spans')
        return end

    @property
    def in_memory(self) -> bool:
        """Whether the broker is in the memory of this process, for tests."""
        return str(self.conf.transport_url).startswith('fake:')

    # These wait until a service is reachable.

    def database(self, engine: Engine) -> Database:
        """Return the database as soon as it is reachable.

        :raises migrator.exception.ConfigurationError: the database refuses our credentials.
        :raises migrator.exception.NoSchema: the database is empty.
        :raises migrator.exception.OtherSchema: another commit or another program has written it.
        """
        from migrator.db.api import Database
        from migrator.db.schema import sync
        from migrator.db.sql.options import refusal

        def check() -> None:
            try:
                sync.check(engine)
            except exception.DatabaseUnreachable as error:
                refused = refusal(self.conf, error)
                if refused is not None:
                    raise refused from None
                raise

        self.wait_for('The database', check)
        return Database('', self.threads, engine=engine)

    def rpc(self, transport: Any, wait: bool = True) -> Any:
        """Return the RPC of this service.

        :param wait: whether to wait for the broker; if not, an unreachable broker is logged, and calls fail.
        :raises migrator.exception.ConfigurationError: the broker refuses ``transport_url``.
        """
        from migrator import rpc

        if not self.in_memory:
            attempt = self._broker_check(transport)
            self.monitor.watch('message broker', attempt, needed=wait)
            if wait:
                self.wait_for('The message broker', attempt)
            else:
                self.watch('The message broker', attempt)
        made = rpc.OsloRPC(transport)
        return logs.with_context(self.monitor.timed_rpc(made) if self.monitor.measures else made)

    def _bad_transport(self, detail: str) -> exception.ConfigurationError:
        shown = logs.redacted(self.conf.transport_url or '')
        return exception.ConfigurationError(option='[DEFAULT] transport_url', value=shown, detail=detail)

    def _broker_check(self, transport: Any) -> Callable[[], None]:
        """Return a function that sends a message once.

        oslo.messaging itself tries without an end, and does not report that the broker refused it.
        """
        import oslo_messaging

        from migrator import rpc

        # No service listens to this topic, so the broker drops the message.
        client = oslo_messaging.get_rpc_client(transport, oslo_messaging.Target(topic='migrator-knock'))

        def check() -> None:
            try:
                client.prepare(retry=0).cast({}, 'knock')
            except Exception as error:
                reason = ' '.join(str(error).split()) or type(error).__name__
                names = {kind.__name__ for one in _chain(error) for kind in type(one).__mro__}
                if names.intersection(_BROKER_REFUSES):
                    remedy = 'look at the user, the password and the virtual host.'
                    raise self._bad_transport(f'the broker refuses it ({reason}): {remedy}') from None
                if 'ValueError' in names:
                    raise self._bad_transport(f'{reason}; write it as {rpc.TRANSPORT_EXAMPLE}.') from None
                reason = f'{logs.redacted(self.conf.transport_url)}: {reason}'
                raise exception.ServiceUnreachable(service='The message broker', reason=reason) from error

        return check


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
