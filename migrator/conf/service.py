# SPDX-License-Identifier: Apache-2.0

"""Options of the processes: what a service needs to run by itself, and what none that embeds migrator's parts does.

They are apart from :mod:`migrator.conf.opts`, so that an importer that registers those gets no option that would do
nothing in its process.
"""

from __future__ import annotations

from oslo_config import cfg

DEFAULT_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        'concurrency_backend',
        default='auto',
        choices=[
            ('auto', 'What this release thinks best: native threads'),
            ('threading', 'Native threads'),
            ('eventlet', 'Green threads: the process is monkey-patched as its first act; needs the extra "eventlet"'),
        ],
        help="""
What the service's threads are.

One word; default auto. eventlet is for hosts whose other libraries still need it; it is deprecated, serves one
processor's worth of work, and a call into a C library (a database driver) stops everything else meanwhile; libvirt
has threads of its own there.
""",
    ),
]

API_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        'listen',
        default='127.0.0.1',
        help="""
The address at which migrator-api listens.

A host name or an IP address, IPv6 without brackets; default 127.0.0.1, which is reached from this machine only. With
0.0.0.0 or :: it is every address. An API that another server runs (migrator.wsgi.api) listens where that server does.
""",
    ),
    cfg.PortOpt(
        'listen_port',
        default=8774,
        help="""
The TCP port at which migrator-api listens.

A whole number from 0 to 65535; default 8774, as nova's. With 0 the system chooses one, and the log says which.
""",
    ),
    cfg.IntOpt(
        'threads',
        default=32,
        min=1,
        help="""
How many requests migrator-api answers at once.

A whole number of threads, 1 or more; default 32. Further requests wait. A request takes a thread when all of it has
arrived. Below microversion 2.34 a request for a live migration holds its thread until the pre-checks are done
(sync_timeout), so that many such clients need many threads.
A thread that waits costs a few hundred KiB and may hold a connection to the database.
""",
    ),
    cfg.IntOpt(
        'shutdown_timeout',
        default=20,
        min=0,
        help="""
How long a stop waits for the requests under way, in seconds.

A whole number of seconds, 0 or more; default 20. Requests that take longer get no answer; what they had committed
stands, and a client that asks again is told so.
""",
    ),
]

COMPUTE_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        'driver',
        default='libvirt',
        choices=[
            ('libvirt', 'QEMU/KVM by libvirt; needs the extra "libvirt"'),
            ('fake', 'Guests that are only reckoned, for tests and tries; see [fake]'),
        ],
        help="""
Which hypervisor migrator-compute drives.

One word; default libvirt. Changed on a host that has guests, they are looked for in vain.
""",
    ),
]

FAKE_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        'world',
        help="""
Where the world of fake hypervisors is, in which this host is one.

The path of the unix socket that migrator-fake-world listens at; default: none, and the service then has a hypervisor
in its own process, which no other host can reach and which ends with it. Used where [compute] driver is fake.
""",
    ),
]

CONDUCTOR_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        'metrics_host',
        default='127.0.0.1',
        help="""
The address at which migrator-conductor tells its metrics, where metrics_port says that it does.

A host name or an IP address, IPv6 without brackets; default 127.0.0.1, which is reached from this machine only. With
0.0.0.0 or :: it is every address. Nobody is asked who they are: whoever reaches it may read the metrics, which are
numbers, and name no guest and no host.
""",
    ),
    cfg.PortOpt(
        'metrics_port',
        help="""
The TCP port at which migrator-conductor tells its metrics, in the format of Prometheus, at /metrics.

A whole number from 0 to 65535; default: none, and they are not served. With 0 the system chooses one, and the log says
which. Conductors on one machine need a port each.
""",
    ),
]

_SECTIONS: tuple[tuple[str, list[cfg.Opt]], ...] = (
    ('DEFAULT', DEFAULT_OPTS),
    ('api', API_OPTS),
    ('compute', COMPUTE_OPTS),
    ('conductor', CONDUCTOR_OPTS),
    ('fake', FAKE_OPTS),
)


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of the processes.

    :param conf: the configuration of a service that runs by itself.
    """
    for group, options in _SECTIONS:
        conf.register_opts(options, group=None if group == 'DEFAULT' else group)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by section, for the generator of the sample file."""
    return list(_SECTIONS)
