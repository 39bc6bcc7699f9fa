# SPDX-License-Identifier: Apache-2.0

"""All of migrator's own options, for a service that needs them all and for the sample configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oslo_config import cfg

from migrator.conf import api, compute, conductor, libvirt, placement, upgrade_levels

_MODULES = (api, compute, conductor, libvirt, placement, upgrade_levels)


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register every option on a ConfigOpts."""
    for module in _MODULES:
        module.register_opts(conf)


def list_opts() -> list[tuple[Any, Sequence[cfg.Opt]]]:
    """Return the options by section, for the generator of the sample file."""
    found: dict[str, tuple[Any, list[cfg.Opt]]] = {}
    for module in _MODULES:
        listed: Sequence[tuple[Any, Sequence[cfg.Opt]]] = module.list_opts()
        for group, options in listed:
            found.setdefault(str(getattr(group, 'name', group)), (group, []))[1].extend(options)
    return list(found.values())
