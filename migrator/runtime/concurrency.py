# SPDX-License-Identifier: Apache-2.0

"""The choice of this process's threads, which a service makes once it has its configuration.

Only a command may call this, because a library must not choose.
"""

from __future__ import annotations

import contextlib
import importlib.util
import warnings

from oslo_config import cfg

from migrator import exception


def choose(conf: cfg.ConfigOpts) -> str:
    """Set up the threads of ``[DEFAULT] concurrency_backend``, before modules with threads are imported.

    :returns: ``threading`` or ``eventlet``.
    :raises migrator.exception.ConfigurationError: eventlet is configured and not installed.
    """
    _ignore_eventlet_warning()
    if conf.concurrency_backend == 'eventlet':
        _patch()
        _lock_oslo_service('EVENTLET')
        return 'eventlet'
    _lock_oslo_service('THREADING')
    return 'threading'


def native() -> None:
    """Make the libraries use native threads, before they are imported, in a command."""
    _ignore_eventlet_warning()
    with contextlib.suppress(Exception):  # the surrounding process has chosen already
        _lock_oslo_service('THREADING')


def _ignore_eventlet_warning() -> None:
    # futurist and oslo.service import eventlet if it is installed, and each time it warns that it is deprecated.
    warnings.filterwarnings('ignore', message=r'\s*Eventlet is deprecated')


def _patch() -> None:
    if importlib.util.find_spec('eventlet') is None:
        raise exception.ConfigurationError(
            option='[DEFAULT] concurrency_backend',
            value='eventlet',
            detail='eventlet is not installed: install the extra "eventlet", or leave it at auto.',
        )
    import eventlet

    # Patch everything, also psycopg2: its statements would otherwise block all threads while the server works.
    eventlet.monkey_patch()


def _lock_oslo_service(backend: str) -> None:
    """Set the backend of oslo.service, which otherwise chooses eventlet when oslo.messaging is imported."""
    try:
        from oslo_service.backend import BackendType, init_backend

        init_backend(BackendType[backend])
    except (ImportError, AttributeError, ValueError):
        # Either oslo.service is not installed, or its backend lacks a package. Our libraries do not use such an
        # oslo.service either.
        return
