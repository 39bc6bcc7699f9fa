# SPDX-License-Identifier: Apache-2.0

"""Options of a compute host whose hypervisor libvirt drives: by nova's names and with nova's meanings."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg, types


class _Ratio(types.Float):
    """An allocation ratio, for which nova has 0.0 where it is not set."""

    def __init__(self, unset: float) -> None:
        super().__init__(min=0.0)
        self._unset = unset

    def __call__(self, value: Any) -> float | int:
        return super().__call__(value) or self._unset


DEFAULT_OPTS = [
    cfg.StrOpt(
        'state_path',
        default='/var/lib/migrator',
        help="""
Where this host keeps what it has begun, so that it survives a restart of the service.

The path of a directory of this host alone, made if it is missing; default /var/lib/migrator. What is below it in
libvirt/HOST is small, and is not to be removed while migrations are in progress.
""",
    ),
    cfg.StrOpt(
        'instances_path',
        default='$state_path/instances',
        help="""
Where guests have their disks.

The path of a directory; default $state_path/instances. Two hosts that see one directory by this path have shared
storage, which the checks find out by a file that one makes and the other looks for. Of a disk elsewhere it is told by
its file system: on NFS, Ceph and the like it is shared, on others it is not. The size of its file system is the host's
DISK_GB.
""",
    ),
    cfg.Opt(
        'cpu_allocation_ratio',
        type=_Ratio(4.0),
        default=4.0,
        help="""
How many vCPUs guests may have for each processor of the host.

A number above 0; default 4.0, also for 0.0, which is nova's word for unset.
""",
    ),
    cfg.Opt(
        'ram_allocation_ratio',
        type=_Ratio(1.0),
        default=1.0,
        help="""
How much memory guests may have for each MiB of the host's.

A number above 0; default 1.0, also for 0.0, which is nova's word for unset.
""",
    ),
    cfg.Opt(
        'disk_allocation_ratio',
        type=_Ratio(1.0),
        default=1.0,
        help="""
How much disk guests may have for each GiB that instances_path has.

A number above 0; default 1.0, also for 0.0, which is nova's word for unset.
""",
    ),
    cfg.IntOpt(
        'reserved_host_cpus',
        default=0,
        min=0,
        help="""
How many processors are the host's own.

A whole number of 0 or more; default 0.
""",
    ),
    cfg.IntOpt(
        'reserved_host_memory_mb',
        default=512,
        min=0,
        help="""
How much memory is the host's own, in MiB.

A whole number of 0 or more; default 512.
""",
    ),
    cfg.IntOpt(
        'reserved_host_disk_mb',
        default=0,
        min=0,
        help="""
How much of the disk is the host's own, in MiB.

A whole number of 0 or more; default 0.
""",
    ),
]

LIBVIRT_OPTS = [
    cfg.StrOpt(
        'connection_uri',
        default='qemu:///system',
        help="""
Libvirt's daemon of this host.

A URI of libvirt's; default qemu:///system.
""",
    ),
    cfg.StrOpt(
        'live_migration_uri',
        help="""
How this host's daemon reaches another's.

A URI of libvirt's, in which %s stands for the other host: its live_migration_inbound_addr, or else its name; default:
qemu+SCHEME://%s/system with live_migration_scheme for SCHEME. The daemons talk to each other by it, so it is for them
to be let in: qemu+tls:// and qemu+ssh:// are safer than tcp, which wants a network of their own.
""",
    ),
    cfg.StrOpt(
        'live_migration_scheme',
        help="""
By what this host's daemon reaches another's, where live_migration_uri says nothing.

A transport of libvirt's, such as tcp, tls or ssh; default tcp. Guests' memory goes from QEMU to QEMU over TCP whatever
it is; live_migration_with_native_tls encrypts that.
""",
    ),
    cfg.HostAddressOpt(
        'live_migration_inbound_addr',
        help="""
Where others reach this host to send it a guest.

A host name or address; default: none, and then it is the host's name. Name one of a network for migrations if there is
such.
""",
    ),
    cfg.IntOpt(
        'live_migration_bandwidth',
        default=0,
        min=0,
        mutable=True,
        help="""
How fast one guest's memory may be sent, in MiB/s.

A whole number of 0 or more; default 0, which is as fast as can be. It is read when a move begins.
""",
    ),
    cfg.IntOpt(
        'live_migration_downtime',
        default=500,
        min=100,
        mutable=True,
        help="""
How long a guest may stand still at most when it is handed over, in milliseconds.

A whole number of 100 or more; default 500. QEMU ends the copy when what is left fits into that.
""",
    ),
    cfg.IntOpt(
        'live_migration_downtime_steps',
        default=10,
        min=3,
        mutable=True,
        help="""
In how many steps a move comes to live_migration_downtime.

A whole number of 3 or more; default 10. It begins with the smallest, so that most guests stand still for less.
""",
    ),
    cfg.IntOpt(
        'live_migration_downtime_delay',
        default=75,
        min=3,
        mutable=True,
        help="""
How long a move waits between two of these steps, in seconds for each GiB to copy.

A whole number of 3 or more; default 75.
""",
    ),
    cfg.BoolOpt(
        'live_migration_permit_post_copy',
        default=False,
        mutable=True,
        help="""
Whether a move that is to complete by force may go on in post-copy.

True or false; default false. In post-copy the guest runs at the destination while its memory still follows, and a
network that fails then loses the guest. Without it, to complete by force pauses the guest. Both hosts have to permit
it, and their kernels and QEMUs to be able to.
""",
    ),
    cfg.BoolOpt(
        'live_migration_permit_auto_converge',
        default=False,
        mutable=True,
        help="""
Whether QEMU may slow a guest down that writes to its memory faster than it can be copied.

True or false; default false. Where post-copy is permitted, that is used instead.
""",
    ),
    cfg.BoolOpt(
        'live_migration_with_native_tls',
        default=False,
        help="""
Whether guests' memory and disks are encrypted on their way, by QEMU's own TLS.

True or false; default false. Both hosts need QEMU's certificates for it; see libvirt's qemu.conf.
""",
    ),
    cfg.IntOpt(
        'live_migration_parallel_connections',
        default=1,
        min=1,
        mutable=True,
        help="""
Over how many connections at once a guest's memory is sent.

A whole number of 1 or more; default 1. More make use of a link that one connection does not fill. QEMU has no
post-copy with more than one.
""",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register what :class:`migrator.virt.libvirt.driver.LibvirtDriver` reads.

    :param conf: the configuration that the driver will be given.
    """
    conf.register_opts(DEFAULT_OPTS)
    conf.register_opts(LIBVIRT_OPTS, group='libvirt')


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by section, for the generator of the sample file."""
    return [('DEFAULT', DEFAULT_OPTS), ('libvirt', LIBVIRT_OPTS)]
