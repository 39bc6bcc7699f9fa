# SPDX-License-Identifier: Apache-2.0

"""The options of a service that runs in a process of its own. An embedder does not need them.

They are not in :mod:`migrator.conf.opts`, so that an embedder that registers those gets no option without an effect.
"""

from __future__ import annotations

from oslo_config import cfg

from migrator.conf import sections

DEFAULT_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        'concurrency_backend',
        default='auto',
        choices=[
            ('auto', 'The best choice for this release: native threads'),
            ('threading', 'Native threads'),
            ('eventlet', 'Green threads: the process is monkey-patched at its start; needs the extra "eventlet"'),
        ],
        help="""
The kind of threads of the service.

One word; default auto. eventlet is for hosts whose other libraries still need it. It is deprecated and uses only one
processor. A call into a C library (such as a database driver) blocks the whole service. Only calls to libvirt run in
native threads.
""",
    ),
    cfg.BoolOpt(
        'trace_migrations',
        default=False,
        help="""
Whether the service sends its part of the trace of each migration to an OpenTelemetry collector.

True or false; default false. It needs the extra "tracing". OpenTelemetry's environment variables name the collector,
such as OTEL_EXPORTER_OTLP_ENDPOINT; without them it is http://localhost:4318. A trace has the names of hosts, the uuids
of guests, and the reasons why steps have failed.
""",
    ),
]


def _monitor_opts(service: str, rest: str) -> list[cfg.Opt]:
    return [
        cfg.StrOpt(
            'metrics_host',
            default='127.0.0.1',
            help=f"""
The address at which {service} serves its metrics and its health, if metrics_port is set.

A host name or an IP address, IPv6 without brackets; default 127.0.0.1, which can be reached only from this machine.
0.0.0.0 or :: means every address. There is no authentication: every client that reaches the address may read the
metrics. They are numbers, and name no guest. Those of a conductor name the hosts that have migrations in progress.
""",
        ),
        cfg.PortOpt(
            'metrics_port',
            help=f"""
The TCP port at which {service} serves its metrics, in the format of Prometheus, at /metrics, and its health at
/healthcheck.

A whole number from 0 to 65535; default: none, and they are not served. With 0 the system chooses a port, and the log
shows it. {rest}
""",
        ),
    ]


API_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        'listen',
        default='127.0.0.1',
        help="""
The address at which migrator-api listens.

A host name or an IP address, IPv6 without brackets; default 127.0.0.1, which can be reached only from this machine.
0.0.0.0 or :: means every address. An API in another server (migrator.wsgi.api) listens where that server does.
""",
    ),
    cfg.PortOpt(
        'listen_port',
        default=8774,
        help="""
The TCP port at which migrator-api listens.

A whole number from 0 to 65535; default 8774, as nova's. With 0 the system chooses a port, and the log shows it.
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
(sync_timeout), so each such client needs a thread meanwhile.
A thread that waits needs a few hundred KiB, and may hold a connection to the database.
""",
    ),
    cfg.IntOpt(
        'shutdown_timeout',
        default=20,
        min=0,
        help="""
How long a stop waits for the requests under way, in seconds.

A whole number of seconds, 0 or more; default 20. Requests that take longer get no answer. Their commits stay, and a
client that sends the request again gets an answer that shows that.
""",
    ),
    *_monitor_opts('migrator-api', 'Under another WSGI server they are not served.'),
]

COMPUTE_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        'driver',
        default='libvirt',
        help="""
The hypervisor driver of migrator-compute.

The name of an installed driver, which is an entry point of migrator.compute.drivers; default libvirt. libvirt is for
QEMU/KVM and needs the extra "libvirt". fake simulates guests, for tests and trials; see [fake]. After a change on a
host with guests, the service does not find them.
""",
    ),
    *_monitor_opts('migrator-compute', 'Each compute service on one machine needs a port of its own.'),
]

FAKE_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        'world',
        help="""
The process of fake hypervisors that this host's hypervisor belongs to.

The path of the unix socket at which migrator-fake-world listens; default: none, and the service then has a hypervisor
in its own process. No other host can reach that one, and it ends with the service. Used if [compute] driver is fake.
""",
    ),
]

register_opts, list_opts = sections.of(
    DEFAULT=DEFAULT_OPTS,
    api=API_OPTS,
    compute=COMPUTE_OPTS,
    conductor=_monitor_opts('migrator-conductor', 'Each conductor on one machine needs a port of its own.'),
    fake=FAKE_OPTS,
)
