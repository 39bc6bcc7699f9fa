# SPDX-License-Identifier: Apache-2.0

"""The RPC versions that are sent to services of another release during an upgrade."""

from __future__ import annotations

from collections.abc import Collection

from oslo_config import cfg

from migrator import exception
from migrator.conf import sections

GROUP = 'upgrade_levels'
#: The newest version that this release knows.
AUTO = 'auto'

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        'compute',
        default=AUTO,
        help="""
The newest version of the compute hosts' RPC that conductors send.

auto, or a version such as 1.0; default auto, the newest that this release knows. A version applies to all hosts, also
to newer ones.
""",
    ),
    cfg.StrOpt(
        'conductor',
        default=AUTO,
        help="""
The newest version of the conductors' RPC that the API and compute hosts send.

auto, or a version such as 1.0; default auto, the newest that this release knows.
""",
    ),
]

register_opts, list_opts = sections.of(upgrade_levels=OPTS)


def version(conf: cfg.ConfigOpts, of: str, known: Collection[str]) -> str:
    """Return the newest RPC version to send to a kind of service.

    :param of: ``compute`` or ``conductor``.
    :param known: the versions that this release supports.
    :raises migrator.exception.ConfigurationError: the value is neither auto nor one of them.
    """
    wanted: str = conf[GROUP][of]
    if wanted == AUTO:
        return max(known)
    if wanted not in known:
        raise exception.ConfigurationError(
            option=f'[{GROUP}] {of}', value=wanted, detail=f'give {AUTO}, or {" or ".join(known)}.'
        )
    return wanted
