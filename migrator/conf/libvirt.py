# SPDX-License-Identifier: Apache-2.0

"""The options of a compute host with libvirt, with nova's names and meanings."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg, types

from migrator.conf import sections


class _Ratio(types.Float):
    """An allocation ratio. Nova writes 0.0 for an unset one."""

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
Where this host keeps records of the work that it has begun, so that they survive a restart of the service.

The path of a directory that no other host uses, created if it is missing; default /var/lib/migrator. The files below
libvirt/HOST are small. Do not remove them while migrations are in progress.
""",
    ),
    cfg.StrOpt(
        'instances_path',
        default='$state_path/instances',
        help="""
The directory of the guests' disks.

The path of a directory; default $state_path/instances. Two hosts that see one directory by this path have shared
storage. The checks test that with a file that one host creates and the other looks for. A disk elsewhere counts as
shared if its file system is NFS, Ceph or the like. The size of the directory's file system is the host's DISK_GB.
""",
    ),
    cfg.IntOpt(
        'shutdown_timeout',
        default=60,
        min=0,
        mutable=True,
        help="""
How long a guest may take to shut down before it is powered off, in seconds.

A whole number of 0 or more; default 60. With 0 it is powered off at once. A cold migration reads it when it powers the
guest off.
""",
    ),
    cfg.Opt(
        'cpu_allocation_ratio',
        type=_Ratio(4.0),
        default=4.0,
        help="""
How many vCPUs guests may have for each processor of the host.

A number above 0; default 4.0, also for 0.0, with which nova means unset.
""",
    ),
    cfg.Opt(
        'ram_allocation_ratio',
        type=_Ratio(1.0),
        default=1.0,
        help="""
How many MiB of memory guests may have for each MiB of the host.

A number above 0; default 1.0, also for 0.0, with which nova means unset.
""",
    ),
    cfg.Opt(
        'disk_allocation_ratio',
        type=_Ratio(1.0),
        default=1.0,
        help="""
How many GiB of disk guests may have for each GiB of the file system of instances_path.

A number above 0; default 1.0, also for 0.0, with which nova means unset.
""",
    ),
    cfg.IntOpt(
        'reserved_host_cpus',
        default=0,
        min=0,
        help="""
How many processors are reserved for the host.

A whole number of 0 or more; default 0.
""",
    ),
    cfg.IntOpt(
        'reserved_host_memory_mb',
        default=512,
        min=0,
        help="""
How much memory is reserved for the host, in MiB.

A whole number of 0 or more; default 512.
""",
    ),
    cfg.IntOpt(
        'reserved_host_disk_mb',
        default=0,
        min=0,
        help="""
How much of the disk is reserved for the host, in MiB.

A whole number of 0 or more; default 0.
""",
    ),
]

LIBVIRT_OPTS = [
    cfg.StrOpt(
        'connection_uri',
        default='qemu:///system',
        help="""
The URI of this host's libvirt daemon.

A URI of libvirt; default qemu:///system.
""",
    ),
    cfg.StrOpt(
        'live_migration_uri',
        help="""
The URI by which this host's libvirt daemon connects to the daemon of another host.

A URI of libvirt, in which %s stands for the other host: its live_migration_inbound_addr, or else its name; default:
qemu+SCHEME://%s/system with live_migration_scheme for SCHEME. A URI without %s is refused. The daemons need to
authenticate each other. qemu+tls:// and qemu+ssh:// are safer than tcp, which needs a network of its own. A cold
migration that copies disks connects by it too, as the user of the compute service. So does the check of a live
migration, to see which host that is. If that user may not, the check does without.
""",
    ),
    cfg.StrOpt(
        'live_migration_scheme',
        help="""
The transport by which this host's libvirt daemon connects to another one, if live_migration_uri is not set.

A transport of libvirt, such as tcp, tls or ssh; default tcp. With any of them, guests' memory goes from QEMU to QEMU
over TCP. live_migration_with_native_tls encrypts that.
""",
    ),
    cfg.HostAddressOpt(
        'live_migration_inbound_addr',
        help="""
The address to which other hosts send guests.

A host name or address; default: none, and then it is the host's name. If there is a network for migrations, give the
address there.
""",
    ),
    cfg.IntOpt(
        'live_migration_bandwidth',
        default=0,
        min=0,
        mutable=True,
        help="""
The greatest rate at which one guest's memory is sent, in MiB/s.

A whole number of 0 or more; default 0, which is no limit. It is read when a live migration begins.
""",
    ),
    cfg.IntOpt(
        'live_migration_downtime',
        default=500,
        min=100,
        mutable=True,
        help="""
The longest pause of a guest at the switchover, in milliseconds.

A whole number of 100 or more; default 500. QEMU ends the copy when the remaining memory can be sent in that time.
""",
    ),
    cfg.IntOpt(
        'live_migration_downtime_steps',
        default=10,
        min=3,
        mutable=True,
        help="""
In how many steps a live migration raises the allowed pause to live_migration_downtime.

A whole number of 3 or more; default 10. It begins with the smallest, so that most guests pause for less.
""",
    ),
    cfg.IntOpt(
        'live_migration_downtime_delay',
        default=75,
        min=3,
        mutable=True,
        help="""
How long a live migration waits between two of these steps, in seconds for each GiB to copy.

A whole number of 3 or more; default 75.
""",
    ),
    cfg.BoolOpt(
        'live_migration_permit_post_copy',
        default=False,
        mutable=True,
        help="""
Whether a forced completion may use post-copy.

True or false; default false. In post-copy the guest runs at the destination while its memory still follows. A failure
of the network during post-copy loses the guest. Without post-copy, a forced completion pauses the guest. Both hosts
have to permit it, and their kernels and QEMUs have to support it.
""",
    ),
    cfg.BoolOpt(
        'live_migration_permit_auto_converge',
        default=False,
        mutable=True,
        help="""
Whether QEMU may slow down a guest that writes to its memory faster than it can be copied.

True or false; default false. If post-copy is permitted, it is used instead.
""",
    ),
    cfg.BoolOpt(
        'live_migration_with_native_tls',
        default=False,
        help="""
Whether QEMU's own TLS encrypts the guests' memory and disks on the network.

True or false; default false. Both hosts need QEMU's certificates for it; see libvirt's qemu.conf.
""",
    ),
    cfg.BoolOpt(
        'require_encryption',
        default=False,
        help="""
Whether this host refuses every migration from or to it that would send anything unencrypted.

True or false; default false. With true, a migration's check fails unless the source's live_migration_uri (or
live_migration_scheme) uses tls or ssh. A live migration also needs live_migration_with_native_tls on both hosts. A
connection_uri that leaves the host has to use tls or ssh too. An alias of libvirt's configuration is refused as a URI.
If one of the two hosts has this option, it applies to both. Set it on every host.
""",
    ),
    cfg.ListOpt(
        'allowed_paths',
        item_type=types.String(regex='^/'),
        default=['/var/lib/libvirt/images', '/var/lib/libvirt/boot', '/var/lib/nova/mnt'],
        mutable=True,
        help="""
Further places where a guest that comes from another host may have files and sockets at this host.

A list of directories, and of single files, with absolute paths; default
/var/lib/libvirt/images,/var/lib/libvirt/boot,/var/lib/nova/mnt.
Evacuations and cold migrations start a guest from the definition that its source has reported. It may name files below
instances_path, in storage pools and in these places, and no other. Migrations that copy disks make files only there.
A file that is an emulator has to be listed itself. List no directory whose files other programs trust. The option is
read at each check.
""",
    ),
    cfg.ListOpt(
        'allowed_parts',
        default=[],
        mutable=True,
        help="""
Further parts that the definition of a guest that comes from another host may have at this host.

A list of paths of elements in libvirt's domain XML, below domain, each with all that is below it; default: empty. An
attribute is written after @, with its value after = if only that one is meant. For example
qemu:commandline,devices/interface@type=user. Evacuations and cold migrations refuse what could harm this host, and what
migrator does not know. The refusal names the part as it is written here. With qemu:commandline and the like, the source
of a guest can run any program at this host. The option is read at each check.
""",
    ),
    cfg.IntOpt(
        'live_migration_parallel_connections',
        default=1,
        min=1,
        mutable=True,
        help="""
How many connections at once send a guest's memory.

A whole number of 1 or more; default 1. More connections help if one does not fill the link. QEMU does not support
post-copy with more than one.
""",
    ),
]

COMPUTE_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        'cpu_dedicated_set',
        help="""
The processors of the host that guests with dedicated ones use: the host's PCPU.

A list of numbers and ranges, such as 4-12,^8; unset by default. If it is set and cpu_shared_set is not, the host has
no VCPU, and other guests cannot come to it.
""",
    ),
    cfg.StrOpt(
        'cpu_shared_set',
        help="""
The processors of the host that all other guests share: the host's VCPU.

A list of numbers and ranges, such as 0-3; unset by default: all processors, or none if cpu_dedicated_set is set.
""",
    ),
]

_LISTEN_HELP = """
The address at which {what} of guests on this host listen.

An IP address; default 127.0.0.1. A guest that arrives gets it, if its consoles have listened at an address of its
source. Others stay as they are, as those that listen at 0.0.0.0 or by the name of a network.
"""


def _listen(name: str, what: str) -> list[cfg.Opt]:
    return [cfg.StrOpt(name, default='127.0.0.1', help=_LISTEN_HELP.format(what=what))]


register_opts, list_opts = sections.of(
    DEFAULT=DEFAULT_OPTS,
    compute=COMPUTE_OPTS,
    libvirt=LIBVIRT_OPTS,
    vnc=_listen('server_listen', 'the VNC consoles'),
    spice=_listen('server_listen', 'the SPICE consoles'),
    serial_console=_listen('proxyclient_address', 'the serial consoles'),
)
