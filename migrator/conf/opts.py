# SPDX-License-Identifier: Apache-2.0

"""All of migrator's own options, for a service that needs them all and for the sample configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oslo_config import cfg

from migrator.conf import api, compute, conductor, keystone, libvirt, notifications, upgrade_levels

_SECTIONS = (api, compute, conductor, libvirt, keystone.PLACEMENT, keystone.NOVA, notifications, upgrade_levels)


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register every option on a ConfigOpts."""
    for section in _SECTIONS:
        section.register_opts(conf)


def list_opts() -> list[tuple[Any, Sequence[cfg.Opt]]]:
    """Return the options by section, for the generator of the sample file."""
    found: dict[str, tuple[Any, list[cfg.Opt]]] = {}
    for section in _SECTIONS:
        listed: Sequence[tuple[Any, Sequence[cfg.Opt]]] = section.list_opts()
        for group, options in listed:
            found.setdefault(str(getattr(group, 'name', group)), (group, []))[1].extend(options)
    return list(found.values())
