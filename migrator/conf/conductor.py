# SPDX-License-Identifier: Apache-2.0

"""The options of the conductor, and those that nova has in [DEFAULT]."""

from __future__ import annotations

from oslo_config import cfg

from migrator.conf import sections

default_opts: list[cfg.Opt] = [
    cfg.IntOpt(
        'migrate_max_retries',
        default=-1,
        min=-1,
        help='How many further destinations the conductor tries when one fails its checks or its preparation. -1 tries '
        'every candidate that Placement returns; 0 tries only one.',
    ),
    cfg.BoolOpt(
        'allow_resize_to_same_host',
        default=False,
        mutable=True,
        help='Whether a resize may leave the guest at its host. That host is the last candidate: it is taken if no '
        'other one can take the guest. Until the resize is confirmed or reverted, Placement needs room there for both '
        'flavors. A change while the service runs (SIGHUP) applies from the next poll on. All conductors must have the '
        'same value.',
    ),
    cfg.IntOpt(
        'resize_confirm_window',
        default=0,
        min=0,
        mutable=True,
        help='Seconds after which a conductor confirms a resize or a cold migration that waits for its user, as in '
        'nova; 0: never. It confirms nothing while the guest is locked or has another task, or while a host of it is '
        'down. The request is recorded as one of the service. A change while the service runs (SIGHUP) applies from '
        'the next sweep on. All conductors must have the same value.',
    ),
    cfg.IntOpt(
        'service_down_time',
        default=60,
        min=1,
        mutable=True,
        help='Seconds without a report after which a compute service counts as down. With a larger value, conductors '
        'wait longer before they decide without the host. A service that stops as planned is no destination from then '
        'on.',
    ),
    cfg.IntOpt(
        'max_concurrent_inbound_live_migrations',
        default=0,
        min=0,
        mutable=True,
        help='How many migrations may be on their way to one host at once; 0: no bound. A live migration counts from '
        'the choice of its destination until it ends, also while it is stuck; so does an evacuation. Further ones wait '
        'in status accepted, unless they may take another host. A lower value interrupts nothing. '
        'A change while the service runs (SIGHUP) applies from the next poll on. All conductors must have the same '
        'value.',
    ),
]
conductor_opts: list[cfg.Opt] = [
    cfg.FloatOpt(
        'lease',
        default=15,
        min=1,
        help="Seconds for which a conductor counts as alive, on the database's clock. A conductor renews its lease "
        'every third of that. After it expires, another conductor takes over its migrations. A smaller value makes '
        'takeovers faster, and tolerates only shorter pauses of a conductor.',
    ),
    cfg.FloatOpt(
        'sweep_interval',
        default=5,
        min=0.1,
        mutable=True,
        help='Seconds between two sweeps. A sweep looks for migrations without a live owner, and for migrations that '
        'wait without a report. The value limits the delay by a lost message. A change while the service runs (SIGHUP) '
        'applies from the next sweep on.',
    ),
    cfg.FloatOpt(
        'poll_interval',
        default=2,
        min=0.1,
        mutable=True,
        help='Seconds without a report of a migration after which the conductor polls its host, and the time-out of a '
        'poll. A smaller value shows finer progress, and sends more messages. A change while the service runs (SIGHUP) '
        'applies from the next poll on.',
    ),
    cfg.IntOpt(
        'poll_concurrency',
        default=16,
        min=1,
        help='How many hosts the conductor polls at a time. A larger value shortens a round over many unreachable '
        'hosts.',
    ),
    cfg.FloatOpt(
        'audit_interval',
        default=0,
        min=0,
        help='Seconds between two audits of the allocations in Placement; 0: no audits. An audit logs each allocation '
        'without a reason once, as a warning, and changes nothing: see migrator-manage placement heal. An audit sends '
        'one request to Placement for each resource provider. One conductor of several is enough.',
    ),
    cfg.FloatOpt(
        'guests_interval',
        default=55,
        min=0,
        help='Seconds between two comparisons of the guests that hosts report with the database; 0: no comparisons. '
        'One conductor of all does it: each host that is up lists its guests once. A guest that was moved, started, '
        'shut off or removed by hand is then logged once, and shown by migrator-manage service list; nothing is '
        'changed: see migrator-manage instance reconcile. All conductors must have the same value.',
    ),
    cfg.IntOpt(
        'post_max_attempts',
        default=10,
        min=1,
        mutable=True,
        help='How often the conductor tries a step after the pivot, or a cleanup. After that it becomes a deferred '
        'cleanup of its host, and the migration goes on without it.',
    ),
    cfg.IntOpt(
        'max_cluster_live_migrations',
        default=0,
        min=0,
        mutable=True,
        help='How many live migrations may have a destination at once, in all; 0: no bound. Further ones wait in '
        'status accepted, the oldest first. A lower value interrupts nothing. A change while the service runs (SIGHUP) '
        'applies from the next poll on. All conductors must have the same value.',
    ),
    cfg.IntOpt(
        'prepare_ahead',
        default=-1,
        min=-1,
        mutable=True,
        help='How many live migrations of one source may have a destination beyond its max_concurrent_live_migrations, '
        'so that they are prepared or queued when a slot of the source becomes free; -1: no bound. With 0 each waits '
        'in status accepted until the source can run it. A smaller value chooses destinations later. A change while '
        'the service runs (SIGHUP) applies from the next poll on. All conductors must have the same value.',
    ),
]

drain_opts: list[cfg.Opt] = [
    cfg.StrOpt(
        'engine',
        default='migrator',
        choices=[
            ('migrator', 'live migrations of this control plane'),
            ('nova', 'those of a stock OpenStack Nova, through its public API'),
        ],
        help='What moves the guests of drains. With nova, a host to empty is a host of that Nova, and the section '
        '[nova] says how a conductor reaches it. No compute service of migrator is needed then. The API and all '
        'conductors must have the same value, and no drain may be in progress while it changes.',
    ),
    cfg.BoolOpt(
        'spread',
        default=False,
        help="With the engine nova: name each guest's destination, so that at most two guests move to one host at a "
        "time. Otherwise Nova's scheduler chooses it.",
    ),
]

register_opts, list_opts = sections.of(DEFAULT=default_opts, conductor=conductor_opts, drain=drain_opts)


def uses_nova(conf: cfg.ConfigOpts) -> bool:
    """Return whether a stock Nova moves the guests of drains."""
    return bool(conf.drain.engine == 'nova')
