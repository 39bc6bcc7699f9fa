# SPDX-License-Identifier: Apache-2.0

"""The life of a service: configuration, logging, threads, start, signals, stop, and the exit status.

- SIGTERM and SIGINT stop it in good order; a second one ends it at once.
- SIGHUP reloads the options that may change while it runs.

What cannot be mended by waiting is said in one line, and the exit status tells which kind it is: :data:`USAGE` where
the configuration is wrong, :data:`UNREACHABLE` where something that is needed is not there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging as python_logging
import os
import sys
from collections.abc import Callable, Sequence

from oslo_config import cfg
from oslo_log import log as logging

from migrator import exception, executors
from migrator.runtime import concurrency, logs, process, settings, signals
from migrator.runtime.process import Process

LOG = logging.getLogger(__name__)

RIGHT, WRONG, USAGE, UNREACHABLE = range(4)

#: Seconds that a stop may take, whatever hangs, beside what the service is told to wait for: :attr:`Kind.patience`.
STOP_TIMEOUT = 60.0
#: Seconds of these, twice, for a start that has to end before what it has begun can be stopped.
START_TIMEOUT = STOP_TIMEOUT / 8


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of service.

    :ivar name: the command's.
    :ivar register: registers the options that it needs besides those of :mod:`migrator.runtime.settings`.
    :ivar begin: wires and starts it, and returns when it serves. It imports what it wires, for that is not to be
        imported before it is settled what threads are.
    :ivar patience: returns for how many seconds its stop is told, by its configuration, to wait for what is under way.
    """

    name: str
    register: Callable[[cfg.ConfigOpts], None]
    begin: Callable[[Process], None]
    patience: Callable[[cfg.ConfigOpts], float] = lambda conf: 0.0


def main(kind: Kind, argv: Sequence[str] | None = None) -> int:
    """Run a service until it is told to stop, and return its exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        conf = settings.read(kind.name, argv)
        concurrency.choose(conf)
        settings.complete(conf, [kind.register])
        logs.setup(conf)
    except SystemExit as stop:  # argparse has said what there is to say
        return int(stop.code or 0)
    except exception.MigratorException as error:
        print(f'{kind.name}: {error}', file=sys.stderr)
        return USAGE
    with signals.Signals() as told:
        status = _Life(kind, argv, conf, told).run()
    python_logging.shutdown()
    return status


class _Life:
    """From the start to the exit status. This thread waits for signals; another starts, and another stops."""

    def __init__(self, kind: Kind, argv: Sequence[str], conf: cfg.ConfigOpts, told: signals.Signals) -> None:
        self._kind = kind
        self._argv = argv
        self._conf = conf
        self._told = told
        self._threads = executors.NativeThreads()
        self._process = Process(kind.name, conf, self._threads)
        self._failed: int | None = None
        self._begun = self._threads.event()

    def run(self) -> int:
        LOG.info('%s starts', self._kind.name)
        self._threads.start(self._begin, name='begin')
        while True:
            word = self._told.next()
            if word == signals.RELOAD:
                self._reload()
            elif word in signals.STOP or self._failed is not None:
                break
        return self._end(word)

    def _begin(self) -> None:
        try:
            self._kind.begin(self._process)
        except process.Stopping:
            LOG.info('%s was told to stop before it had started', self._kind.name)
        except (exception.ConfigurationError, exception.SchemaTooOld, exception.SchemaTooNew) as error:
            self._fail(USAGE, error)
        except exception.MigratorException as error:
            self._fail(UNREACHABLE, error)
        except Exception as error:  # nobody else would tell what it was
            LOG.exception('%s could not start', self._kind.name)
            self._fail(WRONG, error)
        else:
            LOG.info('%s serves', self._kind.name)
        self._begun.set()

    def _fail(self, status: int, error: Exception) -> None:
        line = logs.redacted(' '.join((str(error) or type(error).__name__).split()))
        if any((self._conf.log_file, self._conf.log_dir, self._conf.use_syslog, self._conf.use_journal)):
            LOG.critical('%s', line)
        # Where the log goes to stderr, this is the one line there.
        print(f'{self._kind.name}: {line}', file=sys.stderr)
        self._failed = status
        self._told.tell()

    def _end(self, word: int) -> int:
        if word in signals.STOP:
            LOG.info('%s stops', self._kind.name)
        ended = self._threads.event()
        within = STOP_TIMEOUT + self._kind.patience(self._conf)

        def stop() -> None:
            # What is being started is told by now, and comes to its end better with all that it was given still there.
            if not self._begun.wait(START_TIMEOUT):
                self._process.stop()
                # It might otherwise have started something after all has been stopped.
                self._begun.wait(START_TIMEOUT)
            self._process.stop()
            ended.set()
            self._told.tell()

        def give_up() -> None:
            if not ended.wait(within):
                self._told.tell()

        self._process.stopping.set()
        self._threads.start(stop, name='stop')
        self._threads.start(give_up, name='give-up')
        while (word := self._told.next()) != signals.TOLD:
            if word in signals.STOP:
                LOG.warning('%s was told to stop once more, and ends at once', self._kind.name)
                _leave(128 + word)
        if not ended.is_set():
            LOG.error('%s ends although not all of it has stopped within %.0f s', self._kind.name, within)
            _leave(WRONG)
        if not self._begun.is_set():
            # A thread is still in somebody else's code, which may keep the interpreter from ending.
            _leave(self._failed or RIGHT)
        LOG.info('%s has stopped', self._kind.name)
        return self._failed or RIGHT

    def _reload(self) -> None:
        """Apply the options that may change; a file that is not right as a whole changes nothing."""
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
        LOG.info('The configuration was reloaded: %s', ', '.join(changes) or 'nothing that may change has changed')


def _leave(status: int) -> None:
    """End the process at once, with what was logged so far."""
    with contextlib.suppress(Exception):
        python_logging.shutdown()
    os._exit(status)
