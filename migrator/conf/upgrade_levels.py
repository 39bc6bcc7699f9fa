# SPDX-License-Identifier: Apache-2.0

"""What is sent to services of another release, while a site is upgraded."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg

from migrator import exception

GROUP = 'upgrade_levels'
#: By what each service itself says that it can do.
AUTO = 'auto'

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        'compute',
        default=AUTO,
        help="""
The newest version of the compute hosts' RPC that conductors send.

auto, or a version such as 1.0; default auto: to each host what the service version can do that it has reported. A
version holds for all hosts, also for those that could do more.
""",
    ),
    cfg.StrOpt(
        'conductor',
        default=AUTO,
        help="""
The newest version of the conductors' RPC that the API and compute hosts send.

auto, or a version such as 1.0; default auto, the newest that this release knows: conductors are upgraded first.
""",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Return the options for the sample configuration."""
    return [(GROUP, OPTS)]


def pin(conf: cfg.ConfigOpts, of: str, known: Sequence[str]) -> str | None:
    """Return the version to which what is sent to a kind of service is pinned, or None: to none.

    :param of: ``compute`` or ``conductor``.
    :param known: the versions that this release can speak.
    :raises migrator.exception.ConfigurationError: it is neither auto nor one of them.
    """
    wanted: str = conf[GROUP][of]
    if wanted == AUTO:
        return None
    if wanted not in known:
        raise exception.ConfigurationError(
            option=f'[{GROUP}] {of}', value=wanted, detail=f'{AUTO}, or {" or ".join(known)}, would do.'
        )
    return wanted
