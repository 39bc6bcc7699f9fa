# SPDX-License-Identifier: Apache-2.0

"""Chooses what the threads of this process are; the first thing a service does when it has read its configuration.

A library must not choose, so that nothing but a command calls this.
"""

from __future__ import annotations

import contextlib
import importlib.util
import warnings

from oslo_config import cfg

from migrator import exception


def choose(conf: cfg.ConfigOpts) -> str:
    """Make this process what ``[DEFAULT] concurrency_backend`` says, before any module that has threads is imported.

    :returns: ``threading`` or ``eventlet``.
    :raises migrator.exception.ConfigurationError: eventlet is asked for and not installed.
    """
    _say_nothing_of_eventlet()
    if conf.concurrency_backend == 'eventlet':
        _patch()
        _lock_oslo_service('EVENTLET')
        return 'eventlet'
    _lock_oslo_service('THREADING')
    return 'threading'


def native() -> None:
    """Have the libraries use native threads, before any of them is imported; for a command that is no service."""
    _say_nothing_of_eventlet()
    with contextlib.suppress(Exception):  # it was settled before, by whatever this runs in
        _lock_oslo_service('THREADING')


def _say_nothing_of_eventlet() -> None:
    # futurist and oslo.service import eventlet wherever it is installed, and each time it says that it is deprecated.
    warnings.filterwarnings('ignore', message=r'\s*Eventlet is deprecated')


def _patch() -> None:
    if importlib.util.find_spec('eventlet') is None:
        raise exception.ConfigurationError(
            option='[DEFAULT] concurrency_backend',
            value='eventlet',
            detail='eventlet is not installed: install the extra "eventlet", or leave it at auto.',
        )
    import eventlet

    # Everything: psycopg2 too, whose statements would otherwise hold up all threads while the server has them wait.
    eventlet.monkey_patch()


def _lock_oslo_service(backend: str) -> None:
    """Tell oslo.service, which would choose eventlet by itself as soon as oslo.messaging is imported."""
    try:
        from oslo_service import backend as backends

        backends.init_backend(backends.BackendType[backend])
    except (ImportError, AttributeError, ValueError):
        # Without oslo.service there is nothing to tell. An oslo.service whose backend lacks a package is not used by
        # anything that we use, either.
        return
