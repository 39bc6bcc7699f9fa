# SPDX-License-Identifier: Apache-2.0

"""The conductor's options, and those of the whole service."""

from __future__ import annotations

from oslo_config import cfg

default_opts: list[cfg.Opt] = [
    cfg.IntOpt(
        'migrate_max_retries',
        default=-1,
        min=-1,
        help='How many further destinations are tried when one fails its checks or its preparation. -1 tries every '
        'candidate that Placement names; 0 tries one only.',
    ),
    cfg.IntOpt(
        'service_down_time',
        default=60,
        min=1,
        mutable=True,
        help='Seconds of silence after which a compute service counts as down. A larger value waits longer before '
        'anything is decided without the host. One that is stopped in good order is no destination from then on.',
    ),
]
conductor_opts: list[cfg.Opt] = [
    cfg.FloatOpt(
        'lease',
        default=15,
        min=1,
        help="Seconds for which a conductor may be taken for alive, on the database's clock. It is renewed every "
        'third of that. After it another conductor adopts its migrations; a smaller value adopts sooner, and '
        'bears shorter pauses of a conductor.',
    ),
    cfg.FloatOpt(
        'sweep_interval',
        default=5,
        min=0.1,
        mutable=True,
        help='Seconds between two looks for migrations that no living conductor owns, or that wait without being '
        'heard of. It bounds what a lost message can cost. Changed while the service runs (SIGHUP), it holds from the '
        'next look on.',
    ),
    cfg.FloatOpt(
        'poll_interval',
        default=2,
        min=0.1,
        mutable=True,
        help='Seconds for which a migration must have been silent before its host is asked, and the time-out of '
        'asking. A smaller value shows finer progress, for more messages. Changed while the service runs (SIGHUP), it '
        'holds from the next look on.',
    ),
    cfg.IntOpt(
        'poll_concurrency',
        default=16,
        min=1,
        help='How many hosts are asked at a time. More shortens a round over many silent hosts.',
    ),
    cfg.FloatOpt(
        'audit_interval',
        default=0,
        min=0,
        help='Seconds between two audits of the allocations in Placement; 0: none. What has no living reason is logged '
        'as a warning, once, and nothing is changed: see migrator-manage placement heal. An audit asks Placement once '
        'for each resource provider; one conductor of several is enough.',
    ),
    cfg.IntOpt(
        'post_max_attempts',
        default=10,
        min=1,
        mutable=True,
        help='How often a step after the move, or a cleanup, is tried before it becomes a debt of its host and the '
        'migration goes on without it.',
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register these options on a ConfigOpts."""
    conf.register_opts(default_opts)
    conf.register_opts(conductor_opts, group='conductor')


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return what the sample configuration shows."""
    return [('DEFAULT', default_opts), ('conductor', conductor_opts)]
