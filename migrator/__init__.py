# SPDX-License-Identifier: Apache-2.0

"""A control plane for the live migration of virtual machines, in the style of Nova and Placement.

A service that embeds migrator needs only the names in ``__all__``. They are imported at their first use, so that
``import migrator`` loads no other module::

    from migrator import Host, SimpleDriver

The other modules are for the services of migrator itself. ``ARCHITECTURE.rst`` lists their packages.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from migrator import exception
    from migrator.compute.manager import ComputeManager
    from migrator.objects import Flavor, Instance, LiveMigrateData
    from migrator.runtime.embed import Host, host_name
    from migrator.runtime.signals import Signals
    from migrator.virt.driver import ComputeDriver
    from migrator.virt.simple import SimpleDriver

    __version__: str

__all__ = [
    'ComputeDriver',
    'ComputeManager',
    'Flavor',
    'Host',
    'Instance',
    'LiveMigrateData',
    'Signals',
    'SimpleDriver',
    '__version__',
    'exception',
    'host_name',
]

#: Public name -> the module that defines it.
_MODULES = {
    'ComputeDriver': 'migrator.virt.driver',
    'ComputeManager': 'migrator.compute.manager',
    'Flavor': 'migrator.objects',
    'Host': 'migrator.runtime.embed',
    'Instance': 'migrator.objects',
    'LiveMigrateData': 'migrator.objects',
    'Signals': 'migrator.runtime.signals',
    'SimpleDriver': 'migrator.virt.simple',
    'host_name': 'migrator.runtime.embed',
}


def __getattr__(name: str) -> Any:
    """Return a public name, imported at its first use."""
    if name in _MODULES:
        value = getattr(importlib.import_module(_MODULES[name]), name)
    elif name == 'exception':
        value = importlib.import_module('migrator.exception')
    elif name == '__version__':
        value = _version()
    else:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the names of the module, with the public ones that are not imported yet."""
    return sorted({*globals(), *__all__})


def _version() -> str:
    """Return the version of the installed distribution.

    :raises AttributeError: migrator is imported from a source tree and is not installed.
    """
    metadata = importlib.import_module('importlib.metadata')
    try:
        found: str = metadata.version('openstack-migrator')
    except metadata.PackageNotFoundError:
        raise AttributeError('migrator has no __version__ because it is not installed: run pip install') from None
    return found
