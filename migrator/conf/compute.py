# SPDX-License-Identifier: Apache-2.0

"""Options of a compute host."""

from __future__ import annotations

import dataclasses
import socket

from oslo_config import cfg

from migrator import exception
from migrator.conf import values

_LIMIT = cfg.IntOpt(
    'max_concurrent_live_migrations',
    default=1,
    min=1,
    mutable=True,
    help="""
How many live migrations may go out from this host at once.

A whole number of 1 or more; default 1. The others wait, first in, first out, in status queued, and can be aborted
there. More at once share the link between the hosts, so that each takes longer and the guests' memory changes more
meanwhile. Changed while the service runs (SIGHUP), it grows or shrinks what may run at once; nothing that runs is
interrupted, and nothing that waits is lost or loses its place.
""",
)
DEFAULT_OPTS = [
    _LIMIT,
    cfg.HostAddressOpt(
        'host',
        sample_default='<current hostname>',
        default=socket.gethostname(),
        help="""
The name of this compute host: that of its service, of its message queue, and of its root resource provider.

A host name or address; default the machine's own. Two hosts must never have the same. Changed, it makes the service
another host, and the guests that the old name had are looked for in vain.
""",
    ),
    cfg.IntOpt(
        'report_interval',
        default=10,
        min=1,
        help="""
How often this service says that it is alive, in seconds.

A whole number of 1 or more; default 10. It has to be well below service_down_time of the conductors, or a healthy
host counts as down now and then.
""",
    ),
]

COMPUTE_OPTS = [
    cfg.StrOpt(
        'stop_queued',
        default='cancel',
        choices=[
            ('cancel', 'Live migrations that wait are cancelled, and unwound'),
            ('keep', 'Live migrations that wait are queued again, in their order, when the service starts next'),
        ],
        help="""
What becomes of the live migrations that wait in this host's queue when the service is stopped.

One word; default cancel.
""",
    ),
    cfg.StrOpt(
        'stop_running',
        default='leave',
        choices=[
            ('leave', 'The hypervisor goes on alone, and the service takes the move up again when it starts next'),
            ('wait', 'The stop waits for their end, at most stop_timeout'),
        ],
        help="""
What becomes of the live migrations that run when the service is stopped. Neither choice interrupts them.

One word; default leave.
""",
    ),
    cfg.IntOpt(
        'stop_timeout',
        default=60,
        min=0,
        help="""
How long a stop waits for running live migrations, in seconds, where stop_running is wait.

A whole number of 0 or more; default 60. Those that still run are left to the hypervisor then.
""",
    ),
    cfg.IntOpt(
        'service_version_cap',
        min=1,
        help="""
Starts this service as an older one: it reports this service version, and others treat it so.

A whole number from 1 to this release's own, without a unit; default: this release's own. For rehearsing an upgrade;
what a version can do is in the operator's guide.
""",
    ),
    cfg.BoolOpt(
        'adopt_guests',
        default=False,
        help="""
Whether guests that the hypervisor has and the database does not know are taken into the books when the service starts.

True or false; default false: such guests are reported and never touched. They are taken in as they are, with a flavor
of what they have, an allocation of that, and the owner that their definition names (as nova's do), or else
adopt_project_id and adopt_user_id; nothing about a guest is changed. A guest that Placement has no room for is
reported, and tried again at the next start.
""",
    ),
    cfg.StrOpt(
        'adopt_project_id',
        default='migrator',
        help="""
Whose project adopted guests are that name none.

The id of a project, at most 255 characters; default migrator.
""",
    ),
    cfg.StrOpt(
        'adopt_user_id',
        default='migrator',
        help="""
Whose adopted guests are that name no user.

The id of a user, at most 255 characters; default migrator.
""",
    ),
]

#: By nova's names and in nova's section, whatever the hypervisor is: an operator's file goes on to mean the same.
LIBVIRT_OPTS = [
    cfg.IntOpt(
        'live_migration_completion_timeout',
        default=800,
        min=0,
        mutable=True,
        help="""
How long a live migration may take, in seconds per GiB that it has to transfer; then live_migration_timeout_action.

A whole number of 0 or more; default 800; 0 is no time-out. As in nova, what has to be transferred is the guest's
memory and, where its disks are copied too, each of its disks, and each of these counts as 2 GiB at least. The source
counts from the moment at which it asks its hypervisor, and waiting in the queue does not count; a restart of the
service does not begin anew.
""",
    ),
    cfg.StrOpt(
        'live_migration_timeout_action',
        default='abort',
        mutable=True,
        choices=[
            ('abort', 'It is aborted, and unwound'),
            (
                'force_complete',
                'It is made to complete: in post-copy where the hypervisor can and may, else by a pause',
            ),
        ],
        help="""
What becomes of a live migration that has taken longer than live_migration_completion_timeout allows.

One word; default abort. Either is done as if an operator had asked for it, and recorded with the time-out as who did.
""",
    ),
]


@dataclasses.dataclass(frozen=True)
class Timeout:
    """How long a live migration may take, and what then.

    :ivar per_gib: seconds per GiB; 0: for ever.
    :ivar action: ``abort`` or ``force_complete``.
    """

    per_gib: int
    action: str


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of a compute host.

    :param conf: the configuration that a :class:`migrator.compute.manager.ComputeManager` will be given.
    """
    conf.register_opts(DEFAULT_OPTS)
    conf.register_opts(COMPUTE_OPTS, group='compute')
    conf.register_opts(LIBVIRT_OPTS, group='libvirt')


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by section, for the generator of the sample file."""
    return [('DEFAULT', DEFAULT_OPTS), ('compute', COMPUTE_OPTS), ('libvirt', LIBVIRT_OPTS)]


def check(conf: cfg.ConfigOpts) -> None:
    """Look at each option of a compute host.

    :raises migrator.exception.ConfigurationError: one is not right.
    """
    values.check(conf, list_opts())


def max_concurrent_live_migrations(conf: cfg.ConfigOpts) -> int:
    """Return how many live migrations may go out at once.

    :raises migrator.exception.ConfigurationError: what the file says is no whole number of 1 or more.
    """
    limit: int = values.read(conf, _LIMIT)
    return limit


def live_migration_timeout(conf: cfg.ConfigOpts) -> Timeout:
    """Return how long a live migration may take, and what then.

    :raises migrator.exception.ConfigurationError: what the file says is not right.
    """
    per_gib, action = (values.read(conf, opt, 'libvirt') for opt in LIBVIRT_OPTS)
    return Timeout(per_gib, action)


def service_version(conf: cfg.ConfigOpts, newest: int) -> int:
    """Return which service version a compute host is to report.

    :param newest: this release's own.
    :raises migrator.exception.ConfigurationError: what the file says is no whole number from 1 to that.
    """
    would_do = f'a whole number from 1 to {newest}, the service version of this release, would do.'
    try:
        cap: int | None = conf.compute.service_version_cap
    except ValueError as error:
        raise exception.ConfigurationError(
            f'Option [compute] service_version_cap is not right: {error}; {would_do}'
        ) from error
    if cap is not None and cap > newest:
        raise exception.ConfigurationError(option='[compute] service_version_cap', value=cap, detail=would_do)
    return cap or newest
