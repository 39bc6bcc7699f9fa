# SPDX-License-Identifier: Apache-2.0

"""A replacement of the daemon and of qemu-img, as far as evacuations and cold migrations use them."""

import os
import pathlib
import re
import uuid
from xml.dom import minidom

import libvirt
from oslo_config import cfg

from migrator import executors
from migrator.conf import compute
from migrator.conf import libvirt as libvirt_conf
from migrator.testing import driver_contract
from migrator.virt.libvirt import evacuation
from migrator.virt.libvirt.driver import LibvirtDriver

INSTANCE = driver_contract.an_instance()

#: It prints the chain that stands in DISK.chain, or fails with the text in DISK.error. With --force-share it does not.
#: To convert a disk is to copy it, and its size is that of the file.
QEMU_IMG = """#!/bin/sh
if [ "$1" = convert ]; then cp "$7" "$8"; exit; fi
if [ "$1" = create ]; then truncate -s "$6" "$5"; exit; fi
if [ "$1" = resize ]; then truncate -s "$6" "$5"; exit; fi
if [ "$3" = -f ]; then echo "{\\"virtual-size\\": $(stat -c %s "$5")}"; exit; fi
shift 5
if [ -e "$1.error" ] && [ -z "$2" ]; then cat "$1.error" >&2; exit 1; fi
if [ -e "$1.chain" ]; then cat "$1.chain"; else echo "[{\\"filename\\": \\"$1\\"}]"; fi
"""


def error(code, text='no luck'):
    made = libvirt.libvirtError(text)
    made.err = (code, 0, text, 0, '', None, None, 0, 0)
    return made


class Domain:
    """A guest of the daemon.

    :ivar now: the definition with which it runs, if that is not the one with which it starts next.
    """

    def __init__(self, daemon, xml, persistent):
        self.daemon, self.xml, self.persistent, self.starts = daemon, xml, persistent, 0
        self.now = ''
        self.uuid = re.search('<uuid>(.*)</uuid>', xml)[1]
        self.reported, self.obstacle, self.size = [libvirt.VIR_DOMAIN_SHUTOFF, 0], '', 64

    def UUIDString(self):  # noqa: N802 -- libvirt's name
        return self.uuid

    def XMLDesc(self, flags):  # noqa: N802 -- libvirt's name
        xml = self.now if self.now and not flags & libvirt.VIR_DOMAIN_XML_INACTIVE else self.xml
        return xml if flags & libvirt.VIR_DOMAIN_XML_SECURE else re.sub(" passwd='[^']*'", '', xml)

    def state(self):
        # A guest that is being started is seen so once.
        found, starting = self.reported, [libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP]
        if found == starting and self.daemon.start_ends:
            self.reported = [libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_BOOTED]
        return found

    def isActive(self):  # noqa: N802 -- libvirt's name
        return self.reported[0] != libvirt.VIR_DOMAIN_SHUTOFF

    def isPersistent(self):  # noqa: N802 -- libvirt's name
        return self.persistent

    def autostart(self):
        return self.starts

    def setAutostart(self, wanted):  # noqa: N802 -- libvirt's name
        self.starts = wanted

    def jobStats(self):  # noqa: N802 -- libvirt's name
        if not self.isActive():
            raise error(libvirt.VIR_ERR_OPERATION_INVALID)
        return {'type': libvirt.VIR_DOMAIN_JOB_NONE}

    def blockInfo(self, target):  # noqa: N802 -- libvirt's name
        if f"dev='{target}'" not in self.XMLDesc(0):
            raise error(libvirt.VIR_ERR_INVALID_ARG, f'invalid path {target} not assigned to domain')
        return self.size, 32, 32

    def hasManagedSaveImage(self, _flags):  # noqa: N802 -- libvirt's name
        return self.obstacle == 'saved'

    def managedSaveRemove(self, _flags):  # noqa: N802 -- libvirt's name
        self.obstacle = ''

    def snapshotNum(self, _flags):  # noqa: N802 -- libvirt's name
        return int(self.obstacle == 'snapshots')

    def listAllCheckpoints(self, _flags):  # noqa: N802 -- libvirt's name
        return ['one'] if self.obstacle == 'checkpoints' else []

    def blockJobInfo(self, _disk, _flags):  # noqa: N802 -- libvirt's name
        return {}

    def create(self):
        self.reported = [libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_BOOTED]

    def setMetadata(self, _kind, element, prefix, uri, _flags):  # noqa: N802 -- libvirt's name
        document = minidom.parseString(self.xml)  # noqa: S318 -- ours
        found = document.getElementsByTagName('metadata')
        metadata = found[0] if found else document.documentElement.appendChild(document.createElement('metadata'))
        for node in [node for node in metadata.childNodes if node.namespaceURI == uri]:
            metadata.removeChild(node)
        if element is not None:
            named = re.sub('^<([a-z]+)', f'<{prefix}:\\1 xmlns:{prefix}="{uri}"', element)
            named = re.sub('</([a-z]+)>$', f'</{prefix}:\\1>', named)
            made = minidom.parseString(named)  # noqa: S318 -- ours
            metadata.appendChild(document.importNode(made.documentElement, True))
        self.xml = document.documentElement.toxml()

    def migrateToURI3(self, uri, _parameters, _flags):  # noqa: N802 -- libvirt's name
        self.daemon.migrate(self, uri)

    def shutdown(self):
        self.daemon.asked += 1
        if self.daemon.listens:
            self.reported = [libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_SHUTDOWN]

    def destroy(self):
        self.daemon.destroyed += 1
        self.reported = [libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_DESTROYED]
        if not self.persistent:
            self.daemon.domains.remove(self)

    def undefineFlags(self, _flags):  # noqa: N802 -- libvirt's name
        self.persistent = False
        if not self.isActive():
            self.daemon.domains.remove(self)


class Daemon:
    """A libvirt daemon, as far as evacuations and cold migrations use it.

    :ivar refusal: why its QEMU cannot run any guest.
    :ivar start_error: why the start of a guest fails.
    :ivar start_ends: whether a guest that is being started runs soon.
    :ivar listens: whether its guests shut down when they are asked to.
    :ivar asked: how often one was asked.
    :ivar destroyed: how often one was destroyed.
    :ivar away: the number of the next calls that fail, because the daemon restarts.
    :ivar pools: its storage pools by name.
    :ivar makes: a file that it makes when it starts a guest.
    :ivar migrate: moves a guest live.
    :ivar where: returns the place at which a path of its host is.
    :ivar holes: the bytes of holes that streams have skipped.
    :ivar emulators: the paths of its QEMUs.
    :ivar loaders: the paths of its firmware.
    :ivar breaks_after: the bytes after which a stream breaks; None: never.
    """

    def __init__(self):
        self.domains, self.networks, self.refusal, self.start_error, self.start_ends = [], [], '', '', True
        self.listens, self.asked, self.destroyed, self.away = True, 0, 0, 0
        self.pools, self.where, self.holes, self.breaks_after = {}, pathlib.Path, 0, None
        self.identity, self.emulators, self.loaders = str(uuid.uuid4()), ['/usr/bin/qemu-system-x86_64'], []
        self.makes, self.migrate = None, lambda domain, uri: None

    def isAlive(self):  # noqa: N802 -- libvirt's name
        alive, self.away = not self.away, max(0, self.away - 1)
        return alive

    def close(self):
        pass

    def getType(self):  # noqa: N802 -- libvirt's name
        return 'QEMU'

    def getVersion(self):  # noqa: N802 -- libvirt's name
        return 7002000

    def getCapabilities(self):  # noqa: N802 -- libvirt's name
        guests = ''.join(f'<guest><arch><emulator>{each}</emulator></arch></guest>' for each in self.emulators)
        return f'<capabilities><host><uuid>{self.identity}</uuid></host>{guests}</capabilities>'

    def getDomainCapabilities(self, _emulator, _arch, _machine, _virttype, _flags):  # noqa: N802 -- libvirt's name
        values = ''.join(f'<value>{each}</value>' for each in self.loaders)
        return f'<domainCapabilities><os><loader supported="yes">{values}</loader></os></domainCapabilities>'

    def domainEventRegisterAny(self, _domain, event, _callback, _opaque):  # noqa: N802 -- libvirt's name
        return event

    def domainEventDeregisterAny(self, _event):  # noqa: N802 -- libvirt's name
        pass

    def registerCloseCallback(self, _callback, _opaque):  # noqa: N802 -- libvirt's name
        pass

    def unregisterCloseCallback(self):  # noqa: N802 -- libvirt's name
        pass

    def storagePoolLookupByName(self, name):  # noqa: N802 -- libvirt's name
        if name not in self.pools:
            raise error(libvirt.VIR_ERR_NO_STORAGE_POOL)
        return self.pools[name]

    def storagePoolDefineXML(self, xml, _flags):  # noqa: N802 -- libvirt's name
        pool = Pool(self, xml)
        self.pools[pool.name()] = pool
        return pool

    def listAllStoragePools(self):  # noqa: N802 -- libvirt's name
        return list(self.pools.values())

    def newStream(self, _flags):  # noqa: N802 -- libvirt's name
        return Stream(self)

    def listAllDomains(self):  # noqa: N802 -- libvirt's name
        return self.domains

    def lookupByUUIDString(self, uuid):  # noqa: N802 -- libvirt's name
        if self.away:
            raise error(libvirt.VIR_ERR_RPC, 'the daemon restarts')
        for domain in self.domains:
            if domain.uuid == uuid:
                return domain
        raise error(libvirt.VIR_ERR_NO_DOMAIN)

    def lookupByName(self, name):  # noqa: N802 -- libvirt's name
        for domain in self.domains:
            if f'<name>{name}</name>' in domain.xml:
                return domain
        raise error(libvirt.VIR_ERR_NO_DOMAIN)

    def networkLookupByName(self, name):  # noqa: N802 -- libvirt's name
        if name not in self.networks:
            raise error(libvirt.VIR_ERR_NO_NETWORK)
        return self

    def isActive(self):  # noqa: N802 -- libvirt's name
        return 1

    def domainXMLToNative(self, _format, _xml, _flags):  # noqa: N802 -- libvirt's name
        if self.refusal:
            raise error(libvirt.VIR_ERR_CONFIG_UNSUPPORTED, self.refusal)

    def createXML(self, xml, flags):  # noqa: N802 -- libvirt's name
        if self.start_error:
            raise error(libvirt.VIR_ERR_INTERNAL_ERROR, self.start_error)
        if self.makes:
            self.makes.touch()
        self.add(xml, False).reported = (
            [libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER]
            if flags & libvirt.VIR_DOMAIN_START_PAUSED
            else [libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_BOOTED]
        )

    def defineXML(self, xml):  # noqa: N802 -- libvirt's name
        self.add(xml, True)

    def add(self, xml, persistent):
        made = Domain(self, xml, persistent)
        for domain in self.domains:
            if domain.uuid == made.uuid:
                domain.persistent |= persistent
                domain.xml = xml if persistent else domain.xml
                return domain
        self.domains.append(made)
        return made


class Pool:
    """A storage pool that is a directory."""

    def __init__(self, daemon, xml):
        self.daemon, self.active, self.xml, self.kind = daemon, False, xml, libvirt.VIR_STORAGE_VOL_FILE
        self.called, path = re.search('<name>(.*)</name>', xml)[1], re.search('<path>(.*)</path>', xml)[1]
        self.directory = daemon.where(path)

    def name(self):
        return self.called

    def XMLDesc(self, _flags):  # noqa: N802 -- libvirt's name
        return self.xml

    def isActive(self):  # noqa: N802 -- libvirt's name
        return self.active

    def create(self, flags):
        if flags & libvirt.VIR_STORAGE_POOL_CREATE_WITH_BUILD:
            self.directory.mkdir(exist_ok=True)
        elif not self.directory.exists():
            raise error(libvirt.VIR_ERR_INTERNAL_ERROR, f'cannot open directory {self.directory}')
        self.active = True

    def storageVolLookupByName(self, name):  # noqa: N802 -- libvirt's name
        if not (self.directory / name).exists():
            raise error(libvirt.VIR_ERR_NO_STORAGE_VOL)
        return Volume(self.directory / name, self.kind)

    def createXML(self, xml, _flags):  # noqa: N802 -- libvirt's name
        path = self.directory / re.search('<name>(.*)</name>', xml)[1]
        path.touch(exist_ok=False)
        os.truncate(path, int(re.search('<capacity>(.*)</capacity>', xml)[1]))
        return Volume(path)

    def destroy(self):
        self.active = False

    def delete(self, _flags):
        self.directory.rmdir()

    def undefine(self):
        del self.daemon.pools[self.called]


class Volume:
    """A file of a pool."""

    def __init__(self, file, kind=libvirt.VIR_STORAGE_VOL_FILE):
        self.file, self.kind = file, kind

    def path(self):
        return str(self.file)

    def info(self):
        return self.kind, 0, 0

    def delete(self, _flags):
        self.file.unlink()

    def upload(self, stream, _offset, _length, _flags):
        stream.file = self.file.open('r+b')


class Stream:
    """A stream that writes to a file, with libvirt's own loop over the data and the holes."""

    sparseSendAll = libvirt.virStream.sparseSendAll  # noqa: N815 -- libvirt's name

    def __init__(self, daemon):
        self.daemon, self.file = daemon, None

    def send(self, data):
        if self.daemon.breaks_after is not None and self.file.tell() >= self.daemon.breaks_after:
            raise error(libvirt.VIR_ERR_RPC, 'the stream broke')
        return self.file.write(data)

    def sendHole(self, length):  # noqa: N802 -- libvirt's name
        self.daemon.holes += length
        return self.file.seek(length, os.SEEK_CUR)

    def finish(self):
        self.file.close()

    abort = finish


def definition(devices='', system='', name='guest'):
    return (
        f'<domain><name>{name}</name><uuid>{INSTANCE.uuid}</uuid><os>{system}</os><devices>{devices}</devices></domain>'
    )


def a_disk(path, kind='file', more=''):
    attribute = {'file': 'file', 'block': 'dev'}.get(kind, 'name')
    return f"<disk type='{kind}'><driver type='qcow2'/><source {attribute}='{path}'/><target dev='vda'/>{more}</disk>"


def install_qemu_img(folder, monkeypatch):
    """Put the replacement of qemu-img in front of the real one, and let nothing wait long."""
    script = folder / 'bin' / 'qemu-img'
    script.parent.mkdir()
    script.write_text(QEMU_IMG)
    script.chmod(0o755)
    monkeypatch.setenv('PATH', f'{script.parent}:{os.environ["PATH"]}')
    monkeypatch.setattr(evacuation, '_QUIET', 0.01)
    monkeypatch.setattr(evacuation, '_START', 0.2)


def driver_of(host, folder, images, monkeypatch):
    """Return a driver of a host, and its daemon.

    :param folder: has what the driver keeps.
    :param images: its instances_path.
    """
    conf = cfg.ConfigOpts()
    compute.register_opts(conf)
    libvirt_conf.register_opts(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    conf.set_override('host', host)
    conf.set_override('state_path', str(folder / host))
    conf.set_override('instances_path', str(images))
    made, daemon = LibvirtDriver(conf, executors.NativeThreads()), Daemon()
    monkeypatch.setattr(made.connection, '_opened', lambda: daemon)
    made._records.prepare()
    return made, daemon
