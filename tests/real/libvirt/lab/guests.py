# SPDX-License-Identifier: Apache-2.0

"""Guests: each is a program (``guest.c``) that counts, checks its memory, and logs to a serial port.

Each host has a file with what the guest wrote *there*. So the fate of the guest is seen from outside, without asking
libvirt: two hosts that both have the same line had two of the guest, and a page that has changed is counted.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import re
import subprocess
import tempfile
import threading
import time
import uuid as uuids
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple
from xml.sax.saxutils import escape

from tests.real.libvirt.lab import machine
from tests.real.servers import process

if TYPE_CHECKING:
    from tests.real.libvirt.lab import hosts

#: Where a host has what its guests say, as it is seen there.
CONSOLES = '/var/lib/libvirt/console'

#: Ticks a second.
HZ = 100

#: The most ticks between two lines. (A line that is on its way while the guest is moved can be lost.)
GAP = HZ

#: The byte of a mark in a disk.
_MARK = 90

_TICK = re.compile(rb'^T (\d+) A (\d+) P (\d+) W (\d+) B (\d+)\r?\n', re.MULTILINE)
_BOOT = re.compile(rb'^BOOT\r?\n', re.MULTILINE)

_DOMAIN = """
<domain type='{kind}'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <memory unit='MiB'>{memory_mib}</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
    <kernel>{kernel}</kernel>
    <cmdline>mem={work} rate={rate} period={period} audit={audit} fill={fill}</cmdline>
  </os>
  <features><acpi/></features>
  <devices>
    <emulator>{emulator}</emulator>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>{disks}
    <serial type='file'><source path='{console}' append='on'/>{log}</serial>
  </devices>
</domain>
"""

_LOG = "<log file='{path}' append='on'/>"

_VOLUME = """
    <disk type='volume' device='disk'>
      <driver name='qemu' type='qcow2' cache='{cache}'/>
      <source pool='{pool}' volume='{volume}'/>
      <target dev='vd{letter}' bus='virtio'/>
    </disk>"""

_DISK = """
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2' cache='{cache}'/>
      <source file='{path}'/>
      <target dev='vd{letter}' bus='virtio'/>
    </disk>"""


def console(name: str) -> str:
    """Return where a host has what a guest says, as it is seen there."""
    return f'{CONSOLES}/{name}.log'


def _disk(path: str, cache: str, letter: str) -> str:
    if path.startswith('/'):
        return _DISK.format(cache=cache, path=escape(path), letter=letter)
    pool, _, volume = path.partition('/')
    return _VOLUME.format(cache=cache, pool=escape(pool), volume=escape(volume), letter=letter)


class Tick(NamedTuple):
    """What a guest says of itself."""

    #: How long it has lived, in hundredths of a second.
    tick: int
    #: How often it has looked at all its pages.
    audits: int
    #: How often it has rewritten all of them, and one.
    passes: int
    #: MiB that it has rewritten.
    written: int
    #: Pages that did not hold what was last put there.
    bad: int


class Guest:
    """A guest, wherever it is.

    :param lab: on whose hosts it is.
    :param name: as its host knows it.
    :param uuid: the same; some, if none is given.
    :param memory_mib: how much memory it has.
    :param work: how much of that it fills, and looks after, in MiB.
    :param rate: how much of that it rewrites, in MiB a second.
    :param disks: paths of images, as its host sees them, or ``POOL/VOLUME``; they are vda, vdb and so on. It does
        nothing with them.
    :param log: the path of a file, as its host sees it, to which libvirt writes what it says, too.
    :param cache: how its disks are cached.
    :param persistent: whether its host knows it also while it does not run.
    :param audit: ticks from one look at all its pages to the next; 0: none, it looks only at those that it rewrites.
        One that is moved by post-copy would ask for all its pages at once.
    :param period: ticks from one word of it to the next.
    :param fill: whether it fills its memory with noise; otherwise that is zeros but for two words a page.
    """

    def __init__(
        self,
        lab: hosts.Lab,
        name: str,
        *,
        uuid: str | None = None,
        memory_mib: int = 256,
        work: int = 200,
        rate: int = 0,
        disks: Sequence[str] = (),
        log: str = '',
        cache: str = 'none',
        persistent: bool = True,
        audit: int = HZ,
        period: int = 2,
        fill: bool = True,
    ) -> None:
        # its first 2 MiB are its program's
        assert work + 2 <= memory_mib, f'{memory_mib} MiB of memory do not hold {work} MiB of work'
        self.lab = lab
        self.name = name
        self.uuid = uuid or str(uuids.uuid4())
        self.rate = rate
        self.audit = audit
        self.persistent = persistent
        #: What an operator would have written who knows nothing of us.
        self.xml = _DOMAIN.format(
            kind='kvm' if machine.accelerated() else 'qemu',
            name=escape(name),
            uuid=self.uuid,
            memory_mib=memory_mib,
            kernel=lab.kernel,
            work=work,
            rate=rate,
            period=period,
            audit=audit,
            fill=int(fill),
            emulator=lab.emulator,
            disks=''.join(_disk(path, cache, chr(ord('a') + number)) for number, path in enumerate(disks)),
            log=_LOG.format(path=escape(log)) if log else '',
            console=console(name),
        )

    def start(self, host: hosts.Host, wait: bool = True) -> None:
        """Start it for the first time, or anew, and return when it counts, or at once."""
        for each in self.lab.hosts.values():
            each.console(self.name).unlink(missing_ok=True)
        if self.persistent:
            host.virsh('define', '/dev/stdin', given=self.xml)
            host.virsh('start', self.uuid)
        else:
            host.virsh('create', '/dev/stdin', given=self.xml)
        if wait:
            process.wait_until(lambda: self.last_tick(host), f'{self.name} to count on {host.name}', 60)

    def write(self, host: hosts.Host, mib: int) -> None:
        """Have its QEMU on a host write a mark into a MiB of its first disk; see :func:`marked`."""
        disk = '/machine/peripheral/virtio-disk0/virtio-backend'
        for command in (f'write -P {_MARK} {mib}M 64k', 'flush'):
            # What QEMU says of its success goes to its log.
            said = host.virsh('qemu-monitor-command', self.uuid, '--hmp', f'qemu-io -d {disk} "{command}"').strip()
            if said:
                raise process.ServerError(f'{self.name} at {host.name}: {command}: {said}')

    # --- what it says ------------------------------------------------------------------------------------------------

    def said(self, host: hosts.Host) -> bytes:
        """Return all that it has said on a host."""
        try:
            return host.console(self.name).read_bytes()
        except FileNotFoundError:
            return b''

    def ticks(self, host: hosts.Host) -> list[Tick]:
        """Return what it has said of itself on a host."""
        return [Tick(*map(int, found)) for found in _TICK.findall(self.said(host))]

    def last_tick(self, host: hosts.Host) -> Tick | None:
        """Return what it has said last on a host; None: nothing."""
        return next(iter(self.ticks(host)[-1:]), None)

    def watch(self) -> Watch:
        """Return a clock for how long it says nothing; a context manager."""
        return Watch(self)

    # --- what came of it ---------------------------------------------------------------------------------------------

    def survived(self, source: hosts.Host, destination: hosts.Host, timeout: float = 60.0) -> None:
        """Check that it came from one host to another as it was, and lives there.

        Each page is looked at after its arrival, which takes a second or two; with neither ``audit`` nor ``rate`` none
        is.

        :raises AssertionError: it did not: what it said has a gap, a step back or something twice; it was started
            anew; a page is not what it was; or it does not go on, or elsewhere.
        """
        elsewhere = [tick for tick, name in self._received() if name != destination.name]
        assert self.ticks(source), f'{self.name} was never on {source.name}'
        self._lives(destination, max(elsewhere), timeout)

    def unharmed(self, host: hosts.Host, timeout: float = 60.0) -> None:
        """Check that it lives on a host, and always did, or since it came there; as :meth:`survived`."""
        received = self._received()
        self._lives(host, max(received)[0] if received else Tick(0, 0, 0, 0, 0), timeout)

    def _lives(self, host: hosts.Host, since: Tick, timeout: float) -> None:
        """Check that it lives on a host, waiting until it has looked at all its pages since."""
        until = time.monotonic() + timeout
        while True:
            self._sound()
            last = self.last_tick(host)
            # the next look, or pass, that ends may have begun before
            if last is not None and last.tick > since.tick and last.audits >= since.audits + 2 * bool(self.audit):
                if self.audit or not self.rate or last.passes >= since.passes + 2:
                    return
            assert time.monotonic() < until, (
                f'{self.name} does not go on at {host.name}, where it said {last} last; the last that it said anywhere '
                f'is {max(self._received(), default=None)}'
            )
            time.sleep(0.05)

    def _received(self) -> list[tuple[Tick, str]]:
        return [(tick, each.name) for each in self.lab.hosts.values() for tick in self.ticks(each)]

    def _sound(self) -> None:
        """Check what it has said until now, on all hosts."""
        began = [each.name for each in self.lab.hosts.values() for _ in _BOOT.findall(self.said(each))]
        assert len(began) == 1, f'{self.name} began {len(began)} times: on {began}'
        for each in self.lab.hosts.values():
            ticks = self.ticks(each)
            for one, next_ in itertools.pairwise(ticks):
                assert one.tick < next_.tick, f'{self.name} went back on {each.name}, from {one} to {next_}'
        received = sorted(self._received())
        for (one, here), (next_, there) in itertools.pairwise(received):
            assert one.tick < next_.tick, (
                f'{self.name} said {one} on {here} and {next_} on {there}: there were two of it, or it was taken back'
            )
            assert next_.tick - one.tick <= GAP, f'{self.name} has a gap: {one} on {here}, then {next_} on {there}'
        # where it was in between it was for more than a word or two; two of it need not say the same words
        stays = [(name, len(list(words))) for name, words in itertools.groupby(received, key=lambda each: each[1])]
        assert all(words > 2 for _, words in stays[1:-1]), f'{self.name} was in two places at once: {stays}'
        for one, here in received:
            assert one.bad == 0, f'{self.name} has bad pages, first reported on {here}: {one}'


class Watch(threading.Thread):
    """A reader of a guest's output on all hosts; a context manager.

    Its finest grain is the guest's: some 20 ms from word to word.
    """

    #: Seconds from one look to the next.
    INTERVAL = 0.005

    def __init__(self, guest: Guest) -> None:
        super().__init__(name=f'watch-{guest.name}', daemon=True)
        self._consoles = [host.console(guest.name) for host in guest.lab.hosts.values()]
        self._ended = threading.Event()
        self._longest = 0.0
        self._last = time.monotonic()

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ended.set()
        self.join()

    @property
    def longest_silence(self) -> float:
        """The most seconds without output of the guest, which is its downtime as seen from outside."""
        return max(self._longest, 0.0 if self._ended.is_set() else time.monotonic() - self._last)

    def run(self) -> None:
        """Listen until the context is left."""
        before = self._sizes()
        self._last = time.monotonic()
        ended = False
        while not ended:
            ended = self._ended.wait(self.INTERVAL)
            sizes, now = self._sizes(), time.monotonic()
            # the time since its last output counts too: it may have died
            if sizes != before or ended:
                self._longest = max(self._longest, now - self._last)
                before, self._last = sizes, now

    def _sizes(self) -> list[int]:
        sizes = []
        for each in self._consoles:
            size = 0
            with contextlib.suppress(FileNotFoundError):
                size = each.stat().st_size
            sizes.append(size)
        return sizes


# --- images ----------------------------------------------------------------------------------------------------------


def make_image(path: pathlib.Path, mib: int, data_mib: int = 0, backed_by: str | None = None) -> None:
    """Make a qcow2 image: noise in its first part and nothing in the rest; or an overlay of another."""
    if backed_by:
        backing = ['-F', 'qcow2', '-b', f'{backed_by}.qcow2']
        process.run(['qemu-img', 'create', '-f', 'qcow2', *backing, str(path), f'{mib}M'], path.parent)
        return
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix='.raw') as raw:
        for _ in range(data_mib):
            raw.write(os.urandom(1 << 20))
        raw.truncate(mib << 20)
        raw.flush()
        process.run(['qemu-img', 'convert', '-f', 'raw', '-O', 'qcow2', raw.name, str(path)], path.parent)


def take_snapshot(path: pathlib.Path, name: str) -> None:
    """Take a snapshot inside an image that no guest has open."""
    process.run(['qemu-img', 'snapshot', '-c', name, str(path)], path.parent)


def same_image(one: pathlib.Path, other: pathlib.Path) -> bool:
    """Whether two images hold the same; a guest may have them open."""
    done = subprocess.run(
        ['qemu-img', 'compare', '--force-share', str(one), str(other)], capture_output=True, text=True, check=False
    )
    if done.returncode > 1:
        raise process.ServerError(f'{one} and {other} cannot be compared: {done.stderr}')
    return done.returncode == 0


def marked(path: pathlib.Path, mib: int) -> bool:
    """Whether an image has the mark that :meth:`Guest.write` writes; a guest may have it open."""
    command = ['qemu-io', '-r', '-U', '-f', 'qcow2', '-c', f'read -P {_MARK} {mib}M 64k', str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if 'read 65536/65536' not in done.stdout:
        raise process.ServerError(f'{path} cannot be read: {done.stdout}{done.stderr}')
    return done.returncode == 0
