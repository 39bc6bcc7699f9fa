# SPDX-License-Identifier: Apache-2.0

"""Options of a compute host."""

from __future__ import annotations

import dataclasses
import socket

from oslo_config import cfg

from migrator import exception
from migrator.conf import sections, values

_LIMIT = cfg.IntOpt(
    'max_concurrent_live_migrations',
    default=1,
    min=1,
    mutable=True,
    help="""
How many live migrations may go out from this host at once.

A whole number of 1 or more; default 1. Further migrations wait in status queued, in the order of their requests, and
can be aborted there. Migrations that run at once share the link between the hosts, so each takes longer and the
guests' memory changes more meanwhile. A change while the service runs (SIGHUP) raises or lowers the limit. It does
not interrupt running migrations, and waiting ones keep their order.
""",
)
DEFAULT_OPTS = [
    _LIMIT,
    # As in nova: unlike a host name of the internet, it may have an underscore.
    cfg.HostDomainOpt(
        'host',
        sample_default='<current hostname>',
        default=socket.gethostname(),
        help="""
The name of this compute host. Its service, its message queue and its root resource provider have this name.

A host name or address; default the machine's own. It must be unique. A new name makes the service another host, which
does not have the guests of the old name.
""",
    ),
    cfg.IntOpt(
        'report_interval',
        default=10,
        min=1,
        help="""
How often this service sends a heartbeat, in seconds.

A whole number of 1 or more; default 10. It has to be well below service_down_time of the conductors. Otherwise a
healthy host sometimes counts as down.
""",
    ),
]

COMPUTE_OPTS = [
    cfg.StrOpt(
        'stop_queued',
        default='cancel',
        choices=[
            ('cancel', 'Waiting live migrations are cancelled and undone'),
            ('keep', 'Waiting live migrations are queued again in their order at the next start of the service'),
        ],
        help="""
What a stop of the service does with the live migrations that wait in this host's queue.

One word; default cancel.
""",
    ),
    cfg.StrOpt(
        'stop_running',
        default='leave',
        choices=[
            (
                'leave',
                'The hypervisor goes on alone, and the service monitors the migration from its next start',
            ),
            ('wait', 'The stop waits for their end, at most stop_timeout'),
        ],
        help="""
What a stop of the service does about running live migrations. Neither choice interrupts them.

One word; default leave.
""",
    ),
    cfg.IntOpt(
        'stop_timeout',
        default=60,
        min=0,
        help="""
How long a stop waits for running live migrations, in seconds, where stop_running is wait.

A whole number of 0 or more; default 60. After that the hypervisor continues alone.
""",
    ),
    cfg.IntOpt(
        'service_version_cap',
        min=1,
        help="""
The service version that this service reports, so that others treat it as an older one.

A whole number from 1 to this release's own, without a unit; default: this release's own. It is for rehearsing an
upgrade. The operator's guide describes the versions.
""",
    ),
    cfg.BoolOpt(
        'adopt_guests',
        default=False,
        help="""
Whether the service adopts at its start the guests that the hypervisor has and the database does not know.

True or false; default false: such guests are reported and never touched. An adopted guest gets a database row, a flavor
and an allocation of the resources that it has. Its owner is the one that its definition names (as nova's do), or else
adopt_project_id and adopt_user_id. The guest itself is not changed. A guest that does not fit into the inventory in
Placement is reported, and the next start tries again.
""",
    ),
    cfg.StrOpt(
        'adopt_project_id',
        default='migrator',
        help="""
The project of adopted guests whose definition does not name one.

The id of a project, at most 255 characters; default migrator.
""",
    ),
    cfg.StrOpt(
        'adopt_user_id',
        default='migrator',
        help="""
The user of adopted guests whose definition does not name one.

The id of a user, at most 255 characters; default migrator.
""",
    ),
]

#: These have nova's names and section for every hypervisor, so that an operator's nova.conf keeps its meaning.
LIBVIRT_OPTS = [
    cfg.IntOpt(
        'live_migration_completion_timeout',
        default=800,
        min=0,
        mutable=True,
        help="""
How long a live migration may take, in seconds per GiB to transfer; then live_migration_timeout_action is done.

A whole number of 0 or more; default 800; 0 is no time-out. As in nova, the data to transfer is the guest's memory and,
if its disks are copied too, each of its disks. Each of these counts as at least 2 GiB. The time begins when the source
calls its hypervisor, so waiting in the queue does not count. A restart of the service does not reset it.
""",
    ),
    cfg.StrOpt(
        'live_migration_timeout_action',
        default='abort',
        mutable=True,
        choices=[
            ('abort', 'The migration is aborted and undone'),
            (
                'force_complete',
                'The migration is forced to complete: by post-copy if the hypervisor supports and permits it, else by '
                'pausing the guest',
            ),
        ],
        help="""
What happens to a live migration that takes longer than live_migration_completion_timeout allows.

One word; default abort. The action is the same as after a request of an operator. Its record names the time-out as the
requester.
""",
    ),
]


@dataclasses.dataclass(frozen=True)
class Timeout:
    """The time-out of a live migration, and the action after it.

    :ivar per_gib: seconds per GiB; 0: no time-out.
    :ivar action: ``abort`` or ``force_complete``.
    """

    per_gib: int
    action: str


register_opts, list_opts = sections.of(DEFAULT=DEFAULT_OPTS, compute=COMPUTE_OPTS, libvirt=LIBVIRT_OPTS)


def check(conf: cfg.ConfigOpts) -> None:
    """Check the value of each option of a compute host.

    :raises migrator.exception.ConfigurationError: a value is not valid.
    """
    values.check(conf, list_opts())


def max_concurrent_live_migrations(conf: cfg.ConfigOpts) -> int:
    """Return how many live migrations may leave the host at once.

    :raises migrator.exception.ConfigurationError: the value is not a whole number of 1 or more.
    """
    limit: int = values.read(conf, _LIMIT)
    return limit


def live_migration_timeout(conf: cfg.ConfigOpts) -> Timeout:
    """Return the time-out of a live migration, and the action after it.

    :raises migrator.exception.ConfigurationError: a value is not valid.
    """
    per_gib, action = (values.read(conf, opt, 'libvirt') for opt in LIBVIRT_OPTS)
    return Timeout(per_gib, action)


def service_version(conf: cfg.ConfigOpts, newest: int) -> int:
    """Return the service version that a compute host reports.

    :param newest: the service version of this release.
    :raises migrator.exception.ConfigurationError: the value is not a whole number from 1 to that.
    """
    detail = f'give a whole number from 1 to {newest}, the service version of this release.'
    try:
        cap: int | None = conf.compute.service_version_cap
    except ValueError as error:
        raise exception.ConfigurationError(
            f'Option [compute] service_version_cap is not valid: {error}; {detail}'
        ) from error
    if cap is not None and cap > newest:
        raise exception.ConfigurationError(option='[compute] service_version_cap', value=cap, detail=detail)
    return cap or newest
