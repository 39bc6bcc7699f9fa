# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""All options of migrator's own, for a service that wants them all and for the sample configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oslo_config import cfg

from migrator.conf import api, compute, conductor, libvirt, placement, upgrade_levels

_MODULES = (api, compute, conductor, libvirt, placement, upgrade_levels)


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register every option on a ConfigOpts, and on no other."""
    for module in _MODULES:
        module.register_opts(conf)


def list_opts() -> list[tuple[Any, Sequence[cfg.Opt]]]:
    """Return what the sample configuration shows: (group, options)."""
    found: dict[str, tuple[Any, list[cfg.Opt]]] = {}
    for module in _MODULES:
        listed: Sequence[tuple[Any, Sequence[cfg.Opt]]] = module.list_opts()
        for group, options in listed:
            found.setdefault(str(getattr(group, 'name', group)), (group, []))[1].extend(options)
    return list(found.values())
