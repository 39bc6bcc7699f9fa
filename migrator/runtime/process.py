# SPDX-License-Identifier: Apache-2.0

"""What a service is wired from: each part made of the configuration, and waited for where it may be away."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from oslo_config import cfg
from oslo_log import log as logging

from migrator import exception, executors
from migrator.runtime import logs

if TYPE_CHECKING:  # what has threads is imported when it is settled what threads are
    from migrator.db.api import Database
    from migrator.db.engine import Engine
    from migrator.placement_client import client as placement_client

LOG = logging.getLogger(__name__)

T = TypeVar('T')

#: Seconds between two attempts to reach what is away.
AGAIN = 2.0

#: What a broker says that is there and will not let us in: the names of amqp's exceptions.
_BROKER_REFUSES = ('AccessRefused', 'NotAllowed')


class Stopping(Exception):
    """The process was told to stop while it waited for something."""


class Process:
    """One service's process.

    :param name: the command's.
    :param conf: read, and with every option that the service needs registered.
    :ivar stopping: set as soon as it was told to stop.
    """

    def __init__(self, name: str, conf: cfg.ConfigOpts, threads: executors.Threads) -> None:
        self.name = name
        self.conf = conf
        self.threads = threads
        self.stopping = threads.event()
        self._last: list[Callable[[], Any]] = []

    # --- its end -----------------------------------------------------------------------------------------------------

    def on_stop(self, function: Callable[[], Any]) -> None:
        """Have something called when the process stops; what was last is called first."""
        self._last.append(function)

    def stop(self) -> None:
        """Stop everything; one failure does not keep the others from being stopped."""
        self.stopping.set()
        while self._last:
            function = self._last.pop()
            try:
                function()
            except Exception:  # the rest is to be stopped too
                LOG.exception('%s could not be stopped in good order', function)

    # --- what may be away --------------------------------------------------------------------------------------------

    def wait_for(self, what: str, attempt: Callable[[], T]) -> T:
        """Return what ``attempt`` returns, as soon as it does; say once that it does not yet.

        :raises Stopping: the process was told to stop meanwhile.
        """
        began: float | None = None
        while not self.stopping.is_set():
            try:
                result = attempt()
            except exception.ServiceUnreachable as error:
                if began is None:
                    began = self.threads.clock.monotonic()
                    LOG.warning('%s %s waits for it.', str(error).rstrip('.') + '.', self.name)
                self.stopping.wait(AGAIN)
            else:
                if began is not None:
                    LOG.info('%s is there, after %.0f s', what, self.threads.clock.monotonic() - began)
                return result
        raise Stopping(what)

    def watch(self, what: str, attempt: Callable[[], Any]) -> None:
        """As :meth:`wait_for`, in the background: for what the service can begin without."""

        def run() -> None:
            try:
                self.wait_for(what, attempt)
            except Stopping:
                return
            except exception.MigratorException as error:
                LOG.error('%s', error)

        self.threads.start(run, name=f'wait-for-{what}')

    # --- its parts ---------------------------------------------------------------------------------------------------

    # What is made first: it says whether the configuration can be right, and waits for nothing.

    def engine(self) -> Engine:
        """Return the engine of the configured database.

        :raises migrator.exception.ConfigurationError: the URL cannot be.
        """
        from migrator.db import options

        # oslo.db would say with each of its own attempts that there is one less, and give up after the last.
        return options.engine_from_conf(self.conf, self.threads, max_retries=0, lease=self.conf.conductor.lease)

    def placement(self) -> placement_client.PlacementClient:
        """Return the way to Placement.

        :raises migrator.exception.ConfigurationError: ``[placement]`` is not right.
        """
        from migrator.placement_client import client as placement_client

        return placement_client.client_from_conf(self.conf)

    def transport(self) -> Any:
        """Return the transport of the configured broker.

        :raises migrator.exception.ConfigurationError: ``transport_url`` cannot be.
        """
        from migrator import rpc

        made = rpc.get_transport(self.conf)
        rpc.say_outages_once()
        self.on_stop(made.cleanup)
        return made

    @property
    def in_memory(self) -> bool:
        """Whether the broker is one of this process alone, for tests."""
        return str(self.conf.transport_url).startswith('fake:')

    # And these wait for what is made of it.

    def database(self, engine: Engine) -> Database:
        """Return the database, when it is there.

        :raises migrator.exception.ConfigurationError: it will not let us in.
        :raises migrator.exception.SchemaTooOld: or SchemaTooNew.
        """
        from migrator.db import options, sync
        from migrator.db.api import Database

        def check() -> None:
            try:
                sync.check(engine)
            except exception.DatabaseUnreachable as error:
                refused = options.refusal(self.conf, error)
                if refused is not None:
                    raise refused from None
                raise

        self.wait_for('The database', check)
        self.on_stop(engine.dispose)
        return Database('', self.threads, engine=engine)

    def rpc(self, transport: Any, wait: bool = True) -> logs.TracedRPC:
        """Return how this service talks.

        :param wait: for the broker; if not, that it is away is said, and calls will tell.
        :raises migrator.exception.ConfigurationError: the broker refuses ``transport_url``.
        """
        from migrator import rpc

        if not self.in_memory:
            attempt = self._knock_at(transport)
            if wait:
                self.wait_for('The message broker', attempt)
            else:
                self.watch('The message broker', attempt)
        return logs.TracedRPC(rpc.OsloRPC(transport))

    def _bad_transport(self, detail: str) -> exception.ConfigurationError:
        shown = logs.redacted(self.conf.transport_url or '')
        return exception.ConfigurationError(option='[DEFAULT] transport_url', value=shown, detail=detail)

    def _knock_at(self, transport: Any) -> Callable[[], None]:
        """Return an attempt to send; oslo.messaging itself would try for ever, and never say that it was refused."""
        import oslo_messaging

        from migrator import rpc

        # Nobody listens to this topic, so that the broker drops the message.
        client = oslo_messaging.get_rpc_client(transport, oslo_messaging.Target(topic='migrator-knock'))

        def knock() -> None:
            try:
                client.prepare(retry=0).cast({}, 'knock')
            except Exception as error:
                reason = ' '.join(str(error).split()) or type(error).__name__
                names = {kind.__name__ for one in _chain(error) for kind in type(one).__mro__}
                if names.intersection(_BROKER_REFUSES):
                    what_helps = 'look at the user, the password and the virtual host.'
                    raise self._bad_transport(f'the broker refuses it ({reason}): {what_helps}') from None
                if 'ValueError' in names:
                    raise self._bad_transport(f'{reason}; {rpc.TRANSPORT_EXAMPLE} is how it looks.') from None
                reason = f'{logs.redacted(self.conf.transport_url)}: {reason}'
                raise exception.ServiceUnreachable(service='The message broker', reason=reason) from error

        return knock


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
