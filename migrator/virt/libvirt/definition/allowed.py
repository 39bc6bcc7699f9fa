# SPDX-License-Identifier: Apache-2.0

"""What a definition that another host has reported may have: the table, after libvirt's schema.

A place is the path of an element below ``<domain>``. Any other part is refused. :mod:`.bounds` is the judge.
"""

from __future__ import annotations

import enum


class Kind(enum.Enum):
    """What a value names, and so how it is judged."""

    NAME = 'the name of a disk in the guest'
    TEXT = 'text that libvirt only shows, or gives to the guest'
    DISK = 'a file that the guest reads or writes'
    BLOCK = 'a block device that the guest reads or writes'
    NVRAM = 'the file of the variables of its firmware'
    FIRMWARE = 'a file of a firmware'
    LOG = 'a file that libvirt or QEMU creates or appends to'
    SOCKET = 'a socket at which QEMU listens or to which it connects'
    CHARACTER = 'what the type of a character device says'
    ADDRESS = 'an address at which QEMU listens or to which it connects'
    PROGRAM = 'an emulator'
    ENTROPY = 'a device with random bytes'
    RENDERER = 'a device that renders graphics'
    TUN = 'a device that makes network interfaces'
    CEPH = "a configuration of Ceph's client"
    DEVICE = 'a device whose use is limited'
    PARTITION = 'a control group'
    REFUSED = 'what a guest of another host never has'


#: A kind, or the only values.
Rule = Kind | tuple[str, ...]

#: Places below which any element is harmless, with any value.
FREE = ('metadata', 'title', 'description', 'name', 'os/cmdline')
#: Places below which any element is harmless, and no value names a path.
PLAIN = (
    'clock/timer', 'cpu', 'cputune', 'features', 'idmap', 'iothreadids', 'keywrap', 'memoryBacking', 'memtune',
    'numatune', 'perf', 'pm', 'throttlegroups', 'vcpus', 'devices/disk/iotune', 'devices/disk/throttlefilters',
    'devices/controller', 'devices/hub', 'devices/iommu', 'devices/memballoon', 'devices/panic', 'devices/redirfilter',
    'devices/sound', 'devices/vsock', 'devices/watchdog', 'devices/interface/bandwidth', 'devices/interface/coalesce',
    'devices/interface/virtualport', 'devices/interface/vlan',
)  # fmt: skip
#: Place -> another one whose rules, and those below, it has.
SAME = {
    'devices/disk/backingStore': 'devices/disk',
    'devices/disk/source/encryption': 'devices/disk/encryption',
    'devices/disk/source/auth': 'devices/disk/auth',
    'os/nvram/source': 'devices/disk/source',
    'devices/console': 'devices/serial',
    'devices/parallel': 'devices/serial',
    'devices/channel': 'devices/serial',
    'devices/redirdev': 'devices/serial',
    'devices/smartcard': 'devices/serial',
    'devices/rng/backend/source': 'devices/serial/source',
    'devices/rng/backend/log': 'devices/serial/log',
    'devices/rng/backend/protocol': 'devices/serial/protocol',
}
#: What every device may have, as if it were below this place.
ANY = 'devices/*'

#: Place -> its attributes that name nothing outside of the guest; a dot stands for its text.
WORDS = {
    '': 'id type',
    'blkiotune': '',
    'blkiotune/weight': '.',
    'blkiotune/device': '',
    'blkiotune/device/read_bytes_sec': '.',
    'blkiotune/device/read_iops_sec': '.',
    'blkiotune/device/weight': '.',
    'blkiotune/device/write_bytes_sec': '.',
    'blkiotune/device/write_iops_sec': '.',
    'clock': 'adjustment basis offset start',
    'currentMemory': 'unit .',
    'defaultiothread': 'thread_pool_min thread_pool_max',
    'genid': '.',
    'iothreads': '.',
    'launchSecurity': 'type kernelHashes authorKey vcek',
    'launchSecurity/cbitpos': '.',
    'launchSecurity/handle': '.',
    'launchSecurity/policy': '.',
    'launchSecurity/reducedPhysBits': '.',
    'maxMemory': 'slots unit .',
    'memory': 'dumpCore unit .',
    'on_crash': '.',
    'on_lockfailure': '.',
    'on_poweroff': '.',
    'on_reboot': '.',
    'os': 'firmware',
    'os/acpi': '',
    'os/acpi/table': 'type',
    'os/bios': 'useserial rebootTimeout',
    'os/boot': 'dev',
    'os/bootmenu': 'enable timeout',
    'os/firmware': '',
    'os/firmware/feature': 'enabled name',
    'os/loader': 'format readonly secure stateless type',
    'os/nvram': 'format templateFormat',
    'os/smbios': 'mode',
    'os/type': 'arch machine .',
    'qemu:deprecation': 'behavior',
    'resource': '',
    'resource/fibrechannel': 'appid',
    'seclabel': 'model relabel',
    'seclabel/label': '.',
    'seclabel/imagelabel': '.',
    'sysinfo/baseBoard': '',
    'sysinfo/bios': '',
    'sysinfo/chassis': '',
    'sysinfo/oemStrings': '',
    'sysinfo/system': '',
    'uuid': '.',
    'vcpu': 'cpuset current placement .',
    'devices': '',
    # --- disks
    'devices/disk': 'model snapshot index',
    'devices/disk/auth': 'username',
    'devices/disk/auth/secret': 'type usage uuid',
    'devices/disk/backenddomain': 'name',
    'devices/disk/blockio': 'logical_block_size physical_block_size discard_granularity',
    'devices/disk/driver': 'ats cache copy_on_read detect_zeroes discard discard_no_unref error_policy event_idx io '
    'ioeventfd iommu iothread name packed page_per_vq queue_size queues rerror_policy type',
    'devices/disk/driver/iothreads': '',
    'devices/disk/driver/iothreads/iothread': 'id',
    'devices/disk/driver/iothreads/iothread/queue': 'id',
    'devices/disk/driver/metadata_cache': '',
    'devices/disk/driver/metadata_cache/max_size': 'unit .',
    'devices/disk/encryption': 'engine format',
    'devices/disk/encryption/cipher': 'hash mode name size',
    'devices/disk/encryption/ivgen': 'hash name',
    'devices/disk/encryption/secret': 'type usage uuid',
    'devices/disk/format': 'type',
    'devices/disk/format/metadata_cache': '',
    'devices/disk/format/metadata_cache/max_size': 'unit .',
    'devices/disk/geometry': 'cyls heads secs trans',
    'devices/disk/readonly': '',
    'devices/disk/shareable': '',
    'devices/disk/source': 'index managed pool query startupPolicy tls tlsHostname',
    'devices/disk/source/host': 'name port transport',
    'devices/disk/source/initiator': '',
    'devices/disk/source/readahead': 'size',
    'devices/disk/source/reconnect': 'delay enabled timeout',
    'devices/disk/source/reservations': 'managed',
    'devices/disk/source/reservations/source': 'mode type',
    'devices/disk/source/reservations/source/reconnect': 'enabled timeout',
    'devices/disk/source/seclabel': 'labelskip model relabel',
    'devices/disk/source/slices': '',
    'devices/disk/source/slices/slice': 'offset size type',
    'devices/disk/source/snapshot': 'name',
    'devices/disk/source/ssl': 'verify',
    'devices/disk/source/timeout': 'seconds',
    'devices/disk/target': 'bus dpofua removable rotation_rate tray',
    'devices/disk/transient': 'shareBacking',
    'devices/disk/wwn': '.',
    # --- networks
    'devices/interface': 'managed trustGuestRxFilters',
    'devices/interface/backenddomain': 'name',
    'devices/interface/driver': 'ats event_idx ioeventfd iommu name packed page_per_vq queues rss rss_hash_report '
    'rx_queue_size tx_queue_size txmode',
    'devices/interface/driver/guest': 'csum ecn tso4 tso6 ufo',
    'devices/interface/driver/host': 'csum ecn gso mrg_rxbuf tso4 tso6 ufo',
    'devices/interface/filterref': 'filter',
    'devices/interface/filterref/parameter': 'name value',
    'devices/interface/guest': 'actual dev',
    'devices/interface/ip': 'address family peer prefix',
    'devices/interface/link': 'state',
    'devices/interface/mac': 'address check currentAddress type',
    'devices/interface/model': 'type',
    'devices/interface/mtu': 'size',
    'devices/interface/port': 'isolated',
    'devices/interface/rom': 'bar enabled',
    'devices/interface/route': 'address family gateway metric netmask prefix',
    'devices/interface/source': 'bridge connectionid dev macTableManager name network portgroup portgroupid portid '
    'switchid type',
    'devices/interface/source/reconnect': 'enabled timeout',
    'devices/interface/target': 'dev managed',
    'devices/interface/teaming': 'persistent type',
    'devices/interface/tune': '',
    'devices/interface/tune/sndbuf': '.',
    # --- character devices
    'devices/serial': 'bus',
    'devices/serial/log': 'append',
    'devices/serial/protocol': 'type',
    'devices/serial/source': 'append channel mode service tls',
    'devices/serial/source/clipboard': 'copypaste',
    'devices/serial/source/mouse': 'mode',
    'devices/serial/source/reconnect': 'enabled timeout',
    'devices/serial/source/seclabel': 'labelskip model relabel',
    'devices/serial/target': 'address name port state type',
    'devices/serial/target/model': 'name',
    # --- graphics and sound
    'devices/graphics': 'autoport connected defaultMode fullscreen keymap listen multiUser p2p passwdValidTo port '
    'powerControl replaceUser sharePolicy tlsPort websocket',
    'devices/graphics/audio': 'id',
    'devices/graphics/channel': 'mode name',
    'devices/graphics/clipboard': 'copypaste',
    'devices/graphics/filetransfer': 'enable',
    'devices/graphics/gl': 'enable',
    'devices/graphics/image': 'compression',
    'devices/graphics/jpeg': 'compression',
    'devices/graphics/listen': 'address network type',
    'devices/graphics/mouse': 'mode',
    'devices/graphics/playback': 'compression',
    'devices/graphics/streaming': 'mode',
    'devices/graphics/zlib': 'compression',
    'devices/video': '',
    'devices/video/driver': 'ats iommu name packed page_per_vq vgaconf',
    'devices/video/model': 'blob edid heads primary ram type vgamem vram vram64',
    'devices/video/model/acceleration': 'accel2d accel3d',
    'devices/video/model/resolution': 'x y',
    'devices/audio': 'id timerPeriod',
    'devices/audio/input': 'bufferLength fixedSettings mixingEngine voices',
    'devices/audio/input/settings': 'channels format frequency',
    'devices/audio/output': 'bufferLength fixedSettings mixingEngine voices',
    'devices/audio/output/settings': 'channels format frequency',
    # --- other devices
    'devices/crypto': 'model type',
    'devices/crypto/backend': 'queues type model',
    'devices/input': 'bus model',
    'devices/memory': 'access discard',
    'devices/memory/source': '',
    'devices/memory/source/alignsize': 'unit .',
    'devices/memory/source/nodemask': '.',
    'devices/memory/source/pagesize': 'unit .',
    'devices/memory/source/pmem': '',
    'devices/memory/target': 'dynamicMemslots',
    'devices/memory/target/address': 'base',
    'devices/memory/target/block': 'unit .',
    'devices/memory/target/current': 'unit .',
    'devices/memory/target/label': '',
    'devices/memory/target/label/size': 'unit .',
    'devices/memory/target/node': '.',
    'devices/memory/target/readonly': '',
    'devices/memory/target/requested': 'unit .',
    'devices/memory/target/size': 'unit .',
    'devices/memory/uuid': '.',
    'devices/nvram': '',
    'devices/rng': 'model',
    'devices/rng/rate': 'bytes period',
    # --- what every device may have
    'devices/*/acpi': 'index',
    'devices/*/address': 'base bus chassis controller cssid devno domain function iobase irq multifunction port reg '
    'slot ssid target type unit',
    'devices/*/address/zpci': 'fid uid',
    'devices/*/alias': 'name',
    'devices/*/boot': 'loadparm order',
    'devices/*/driver': 'ats iommu packed page_per_vq',
}

#: Place -> the attributes that name something, or could; '' stands for its text.
NAMES: dict[str, dict[str, Rule]] = {
    'blkiotune/device/path': {'': Kind.DEVICE},
    'clock': {'timezone': Kind.TEXT},
    'launchSecurity/dhCert': {'': Kind.TEXT},
    'launchSecurity/session': {'': Kind.TEXT},
    'launchSecurity/guestVisibleWorkarounds': {'': Kind.TEXT},
    'launchSecurity/hostData': {'': Kind.TEXT},
    'launchSecurity/idAuth': {'': Kind.TEXT},
    'launchSecurity/idBlock': {'': Kind.TEXT},
    'os/acpi/table': {'': Kind.DISK},
    'os/dtb': {'': Kind.DISK},
    'os/initrd': {'': Kind.DISK},
    'os/kernel': {'': Kind.DISK},
    'os/shim': {'': Kind.DISK},
    'os/loader': {'': Kind.FIRMWARE},
    'os/nvram': {'': Kind.NVRAM, 'template': Kind.FIRMWARE, 'type': ('file', 'block', 'network')},
    'resource/partition': {'': Kind.PARTITION},
    # With another label, QEMU would run as another user, or unconfined.
    'seclabel': {'type': ('dynamic',)},
    'sysinfo': {'type': ('smbios', 'fwcfg')},
    'sysinfo/entry': {'': Kind.TEXT, 'name': Kind.TEXT, 'file': Kind.DISK},
    'sysinfo/baseBoard/entry': {'': Kind.TEXT, 'name': Kind.TEXT},
    'sysinfo/bios/entry': {'': Kind.TEXT, 'name': Kind.TEXT},
    'sysinfo/chassis/entry': {'': Kind.TEXT, 'name': Kind.TEXT},
    'sysinfo/oemStrings/entry': {'': Kind.TEXT},
    'sysinfo/system/entry': {'': Kind.TEXT, 'name': Kind.TEXT},
    'devices/emulator': {'': Kind.PROGRAM},
    'devices/disk': {
        'type': ('file', 'block', 'network', 'volume'),
        # A guest may write to a floppy, whose content nothing compares.
        'device': ('disk', 'cdrom', 'lun'),
        'rawio': ('no',),
        'sgio': ('filtered',),
    },
    'devices/disk/source': {
        'file': Kind.DISK,
        'dev': Kind.BLOCK,
        'mode': ('host', 'direct'),
        # What a server has under these names is on no file system of this host.
        'name': Kind.TEXT,
        'volume': Kind.TEXT,
        # The others would let a guest read what servers show to this host alone.
        'protocol': ('rbd', 'iscsi', 'nbd', 'gluster'),
    },
    'devices/disk/source/config': {'file': Kind.CEPH},
    'devices/disk/source/host': {'socket': Kind.SOCKET},
    'devices/disk/source/initiator/iqn': {'name': Kind.TEXT},
    'devices/disk/source/reservations/source': {'path': Kind.SOCKET},
    'devices/disk/serial': {'': Kind.TEXT},
    'devices/disk/target': {'dev': Kind.NAME},
    'devices/disk/vendor': {'': Kind.TEXT},
    'devices/disk/product': {'': Kind.TEXT},
    'devices/interface': {'type': ('bridge', 'network', 'ethernet', 'direct', 'vhostuser', 'null')},
    'devices/interface/backend': {'tap': Kind.TUN, 'vhost': Kind.TUN, 'type': ('default',), 'logFile': Kind.LOG},
    'devices/interface/rom': {'file': Kind.DISK},
    'devices/interface/script': {'path': Kind.REFUSED},
    'devices/interface/downscript': {'path': Kind.REFUSED},
    'devices/interface/source': {
        'path': Kind.SOCKET,
        # In passthrough, the guest has a network device of the host to itself.
        'mode': ('bridge', 'private', 'vepa', 'client', 'server'),
    },
    'devices/serial': {
        'type': ('file', 'null', 'pty', 'qemu-vdagent', 'spiceport', 'spicevmc', 'tcp', 'udp', 'unix', 'vc'),
        'mode': ('passthrough',),
        'tty': Kind.CHARACTER,
    },
    'devices/serial/log': {'file': Kind.LOG},
    'devices/serial/source': {'path': Kind.CHARACTER, 'host': Kind.ADDRESS},
    'devices/graphics': {
        'type': ('vnc', 'spice', 'egl-headless'),
        'socket': Kind.SOCKET,
        'address': Kind.REFUSED,
        'display': Kind.REFUSED,
        'xauth': Kind.REFUSED,
    },
    'devices/graphics/gl': {'rendernode': Kind.RENDERER},
    'devices/graphics/listen': {'socket': Kind.SOCKET},
    'devices/video/model/acceleration': {'rendernode': Kind.RENDERER},
    'devices/audio': {'type': ('none', 'spice', 'vnc')},
    'devices/input': {'type': ('tablet', 'mouse', 'keyboard')},
    'devices/memory': {'model': ('dimm', 'virtio-mem', 'sgx-epc')},
    'devices/rng/backend': {
        '': Kind.ENTROPY,
        'model': ('random', 'builtin', 'egd'),
        'type': ('tcp', 'udp', 'unix'),
    },
}
