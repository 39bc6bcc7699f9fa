# SPDX-License-Identifier: Apache-2.0

"""The run of a service: configuration, logging, threads, start, signals, stop, and the exit status.

- SIGTERM and SIGINT stop it in an orderly way. A second one ends it at once.
- SIGHUP reloads the options that may change while it runs.

An error that waiting cannot solve is printed in one line. The exit status shows its kind: :data:`USAGE` for a wrong
configuration, :data:`UNREACHABLE` for a missing part or service.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from logging import shutdown

from oslo_config import cfg
from oslo_log import log as logging

from migrator import exception, executors
from migrator.runtime import concurrency, logs, process, settings, signals
from migrator.runtime.process import Process

LOG = logging.getLogger(__name__)

RIGHT, WRONG, USAGE, UNREACHABLE = range(4)

#: Seconds that a stop may take, even if something hangs, in addition to :attr:`Kind.patience`.
STOP_TIMEOUT = 60.0
#: Seconds of STOP_TIMEOUT that a stop waits, up to twice, for the end of a start that is under way.
START_TIMEOUT = STOP_TIMEOUT / 8


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of service.

    :ivar name: the name of the command.
    :ivar register: registers the options that it needs besides those of :mod:`migrator.runtime.settings`.
    :ivar begin: creates and starts it, and returns when it serves. It imports the parts itself, because they must not
        be imported before the choice of threads.
    :ivar patience: returns how many seconds its stop waits for work under way, by its configuration.
    """

    name: str
    register: Callable[[cfg.ConfigOpts], None]
    begin: Callable[[Process], None]
    patience: Callable[[cfg.ConfigOpts], float] = lambda conf: 0.0


def main(kind: Kind, argv: Sequence[str] | None = None) -> int:
    """Run a service until it is stopped, and return its exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        conf = settings.read(kind.name, argv)
        concurrency.choose(conf)
        settings.complete(conf, [kind.register])
        logs.setup(conf)
        settings.warn_of_unknown_options(conf)
    except SystemExit as stop:  # argparse has printed the reason
        return int(stop.code or 0)
    except exception.MigratorException as error:
        print(f'{kind.name}: {error}', file=sys.stderr)
        return USAGE
    with signals.Signals() as received:
        status = _Run(kind, argv, conf, received).run()
    shutdown()
    return status


class _Run:
    """One run of a service, from its start to its exit status.

    The main thread waits for signals. A second thread starts the service, and a third one stops it.
    """

    def __init__(self, kind: Kind, argv: Sequence[str], conf: cfg.ConfigOpts, received: signals.Signals) -> None:
        self._kind = kind
        self._argv = argv
        self._conf = conf
        self._signals = received
        self._threads = executors.NativeThreads()
        self._process = Process(kind.name, conf, self._threads)
        self._failed: int | None = None
        self._begun = self._threads.event()

    def run(self) -> int:
        LOG.info('Starting service %s', self._kind.name)
        signals.notify_status('Starting')
        self._threads.start(self._begin, name='begin')
        watchdog = signals.watchdog_interval()
        if watchdog is not None:
            self._threads.start(self._report_alive, watchdog / 3, name='watchdog')
        while True:
            number = self._signals.next()
            if number == signals.Signals.RELOAD:
                self._reload()
            elif number in signals.Signals.STOP or self._failed is not None:
                break
        return self._end(number)

    def _report_alive(self, interval: float) -> None:
        """Report to systemd that the threads of this process run."""
        # Check nothing else. A hanging database must not cause a restart.
        while not self._process.stopping.is_set():
            signals.notify_systemd('WATCHDOG=1')
            self._process.stopping.wait(interval)

    def _begin(self) -> None:
        try:
            self._kind.begin(self._process)
        except process.Stopping:
            LOG.info('Stop before the end of the start of service %s', self._kind.name)
        except (exception.ConfigurationError, exception.NoSchema, exception.OtherSchema) as error:
            self._fail(USAGE, error)
        except exception.MigratorException as error:
            self._fail(UNREACHABLE, error)
        except BaseException as error:  # this thread would end without a report; a driver may raise SystemExit
            LOG.exception('Could not start service %s', self._kind.name)
            self._fail(WRONG, error)
        else:
            self._process.monitor.started = True
            signals.notify_systemd('READY=1', 'STATUS=Running')
            LOG.info('Started service %s', self._kind.name)
        self._begun.set()

    def _fail(self, status: int, error: BaseException) -> None:
        line = logs.redacted(' '.join((str(error) or type(error).__name__).split()))
        if any((self._conf.log_file, self._conf.log_dir, self._conf.use_syslog, self._conf.use_journal)):
            LOG.critical('Service failed: %(service)s: %(error)s', {'service': self._kind.name, 'error': line})
        # If the log goes to stderr, print the error there only once.
        print(f'{self._kind.name}: {line}', file=sys.stderr)
        self._failed = status
        self._signals.wake()

    def _end(self, number: int) -> int:
        if number in signals.Signals.STOP:
            LOG.info('Stopping service %s', self._kind.name)
        ended = self._threads.event()
        within = STOP_TIMEOUT + self._kind.patience(self._conf)

        def stop() -> None:
            # A start under way sees `stopping`. Let it end first, while all of its parts still work.
            if not self._begun.wait(START_TIMEOUT):
                self._process.stop()
                # The start may register further parts, which need a stop too.
                self._begun.wait(START_TIMEOUT)
            self._process.stop()
            ended.set()
            self._signals.wake()

        def give_up() -> None:
            if not ended.wait(within):
                self._signals.wake()

        signals.notify_systemd('STOPPING=1', 'STATUS=Stopping')
        self._process.stopping.set()
        self._threads.start(stop, name='stop')
        self._threads.start(give_up, name='give-up')
        while (number := self._signals.next()) != signals.Signals.WAKE:
            if number in signals.Signals.STOP:
                LOG.warning('Second signal to stop: ending service %s at once', self._kind.name)
                _exit(128 + number)
        if not ended.is_set():
            LOG.error(
                'Stop timed out: ending service %(service)s although not all of it stopped within %(seconds).0f s',
                {'service': self._kind.name, 'seconds': within},
            )
            _exit(WRONG)
        if not self._begun.is_set():
            # The thread of the start is still in the code of a library, which may keep the interpreter from ending.
            _exit(self._failed or RIGHT)
        LOG.info('Stopped service %s', self._kind.name)
        return self._failed or RIGHT

    def _reload(self) -> None:
        """Apply the options that may change. A file with any error changes nothing."""
        if not self._process.monitor.started:  # READY=1 would end the start
            self._read_again()
            return
        signals.notify_reload()
        try:
            self._read_again()
        finally:
            signals.notify_systemd('READY=1')

    def _read_again(self) -> None:
        try:
            settings.complete(settings.read(self._kind.name, self._argv), [self._kind.register])
            fresh = self._conf.mutate_config_files()
        except (exception.MigratorException, cfg.Error, ValueError, SystemExit) as error:
            LOG.error('The configuration was not reloaded: %s', error)
            return
        changes = [
            f'[{group or "DEFAULT"}] {name} = {self._conf[group][name] if group else self._conf[name]}'
            for group, name in sorted(fresh, key=str)
        ]
        LOG.info('The configuration was reloaded: %s', ', '.join(changes) or 'no option that may change has changed')


def _exit(status: int) -> None:
    """End the process at once, after writing the log."""
    with contextlib.suppress(Exception):
        shutdown()
    os._exit(status)
