# SPDX-License-Identifier: Apache-2.0

"""Hosts: each is a libvirtd with a name, a UUID, places and processes of its own, on this machine.

A host is a mount, a UTS and a PID namespace; the network is the machine's, and how fast a copy goes is a matter of the
bandwidth that it is allowed. libvirt takes two hosts for one that have the same UUID or the same name.

What a host has is kept while it is switched off, as on a disk. The lab itself uses a host by ``virsh`` only, each
time with a bound: the code under test has this process's libvirt for itself, with its own event loop or none.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence

from tests.real.libvirt.lab import emulator, enter, guests, init, machine
from tests.real.servers import process, reaper

#: Where a host has its images, as it is seen there.
IMAGES = '/var/lib/libvirt/images'

#: What a host has of its own, and what that is called in its directory.
PLACES = {
    '/etc/libvirt': 'etc',
    '/var/lib/libvirt': 'lib',
    '/run/libvirt': 'run',
    '/var/log/libvirt': 'logs',
    '/var/cache/libvirt': 'cache',
}

#: A socket's path has at most 107 characters, and the longest of a host's are some 40 longer than its directory's.
LONGEST = 60

#: How many migrations may come in at once, and have a port each.
PORTS = 50

#: Where a host receives guests: on loopback, and not at 127.0.0.1, where libvirt refuses to have QEMU listen.
ADDRESS = '127.0.0.2'

LIBVIRTD = """
host_uuid = "{uuid}"
auth_unix_ro = "none"
auth_unix_rw = "none"
unix_sock_rw_perms = "0700"
listen_tls = 0
listen_tcp = 0
keepalive_interval = {keepalive}
keepalive_count = 5
log_filters = "1:qemu.qemu_migration 3:qemu 4:udev 4:network 4:util 4:node_device"
log_outputs = "1:file:/var/log/libvirt/libvirtd.log 3:stderr"
"""

QEMU = """
user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
cgroup_controllers = []
namespaces = []
stdio_handler = "file"
migration_address = "{address}"
migrate_tls_x509_cert_dir = "/etc/libvirt/pki"
migration_port_min = {lowest}
migration_port_max = {highest}
keepalive_interval = {keepalive}
keepalive_count = 5
"""


def _free_ports() -> int:
    """Return the first of a block of ports that no other lab gets from here while this process lives."""
    lowest = int(pathlib.Path('/proc/sys/net/ipv4/ip_local_port_range').read_text().split()[0])
    blocks = list(range(10000, max(lowest, 20000) - PORTS, PORTS))
    for first in random.sample(blocks, len(blocks)):
        lock = socket.socket(socket.AF_UNIX)
        try:
            # a name of the abstract kind: the kernel forgets it when we end, however we end
            lock.bind(f'\0migrator-test-ports-{first}')
        except OSError:
            lock.close()
            continue
        _taken.append(lock)
        return first
    raise process.ServerError('no ports are free')


_taken: list[socket.socket] = []


class Host(process.Process):
    """One host. Made by :meth:`Lab.start_host`.

    :param lab: to which it belongs.
    :param name: what it calls itself.
    :param delay: seconds until its libvirtd, having ended, is started again.
    :param keepalive: seconds of silence after which libvirt asks whether the other side lives; after five questions
        without an answer it is taken for dead.
    """

    stop_signal = last_signal = signal.SIGKILL

    def __init__(self, lab: Lab, name: str, delay: float = 0.5, keepalive: int = 5) -> None:
        super().__init__(lab.workspace, name)
        if len(str(self.directory)) > LONGEST:
            raise process.ServerError(
                f'the path of {self.directory} is too long for the sockets in it: set TMPDIR to a shorter one'
            )
        self.lab = lab
        self.uuid = str(uuid.uuid4())
        for place in PLACES.values():
            (self.directory / place).mkdir()
        self.certificates.mkdir()
        self.images.mkdir()
        self.outside(guests.CONSOLES).mkdir()
        (self.directory / 'nothing').touch()
        ports = _free_ports()
        given = {
            'uuid': self.uuid,
            'keepalive': keepalive,
            'address': ADDRESS,
            'lowest': ports,
            'highest': ports + PORTS - 1,
        }
        (self.directory / 'etc' / 'libvirtd.conf').write_text(LIBVIRTD.format(**given))
        (self.directory / 'etc' / 'qemu.conf').write_text(QEMU.format(**given))
        (self.directory / 'orders.json').write_text(json.dumps(self._orders(delay)))

    # --- where it is -------------------------------------------------------------------------------------------------

    @property
    def certificates(self) -> pathlib.Path:
        """Where its QEMU looks for the certificates of migrations. A test writes them."""
        return self.directory / 'etc' / 'pki'

    @property
    def uri(self) -> str:
        """Its URI for clients, anywhere on this machine."""
        return f'qemu+unix:///system?socket={self.directory / "run" / "libvirt-sock"}'

    @property
    def p2p_uri(self) -> str:
        """Its URI for another host's libvirtd."""
        return self.uri

    @property
    def migrate_uri(self) -> str:
        """To where guests are sent."""
        return f'tcp://{ADDRESS}'

    @property
    def images(self) -> pathlib.Path:
        """Its images; it sees them at :data:`IMAGES`."""
        return self.outside(IMAGES)

    def outside(self, path: str) -> pathlib.Path:
        """Return where a file is that this host sees at a path."""
        for place, name in PLACES.items():
            if pathlib.Path(path).is_relative_to(place):
                return self.directory / name / pathlib.Path(path).relative_to(place)
        return pathlib.Path(path)

    def console(self, guest: str) -> pathlib.Path:
        """Return the file that has what a guest says here."""
        return self.outside(guests.console(guest))

    def namespace_command(self, command: Sequence[str]) -> list[str]:
        """Return what runs a command on this host.

        The command sees the host's places, and ends when the host is switched off. It
        stands for the command in that it sends on what signals it gets, and has its status.
        """
        return [sys.executable, '-I', '-S', enter.__file__, str(self._inside(1)), *command]

    # --- its power ---------------------------------------------------------------------------------------------------

    def command(self) -> Sequence[str]:
        """Return what is run."""
        return [*machine.UNSHARE, sys.executable, '-I', '-S', init.__file__, str(self.directory / 'orders.json')]

    def start(self, wait: bool = True) -> None:
        """Switch it on, and return when it answers, or at once."""
        # what a machine has there does not outlive its running, either
        shutil.rmtree(self.directory / 'run')
        (self.directory / 'run').mkdir()
        for name in ('daemon', 'held'):
            (self.directory / name).unlink(missing_ok=True)
        super().start(wait)

    def power_on(self, wait: bool = True) -> None:
        """Switch it on, and return when it answers, or at once. Its guests stay off."""
        self.start(wait)

    def power_off(self) -> None:
        """Switch it off: its libvirtd, its guests and what else runs on it are gone at once."""
        self.kill()

    def kill(self) -> None:
        """Switch it off."""
        if not self.running:
            return
        family = self._family()
        try:
            # only the first process: the kernel ends the others, and who waits for the first buries it
            reaper.send(self._inside(1), signal.SIGKILL)
        except process.ServerError:
            super().kill()  # it had not got as far as that
            return
        self._bury(family, patience=10)

    def stop(self) -> None:
        """Switch it off; a host that is wanted no more has nothing to save."""
        self.kill()

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            return self.virsh('hostname', timeout=5).strip() == self.name
        except process.ServerError:
            return False

    def wait(self, timeout: float = 60.0) -> None:
        """Return when it answers."""
        process.wait_until(self.ready, f'{self.name} to answer', timeout)

    # --- its libvirtd ------------------------------------------------------------------------------------------------

    def virsh(self, *arguments: str, timeout: float = 30.0, given: str | None = None) -> str:
        """Return what a command of virsh says.

        :param given: its standard input.
        :raises ServerError: it fails, or takes too long.
        """
        command = ['virsh', '-q', '-c', self.uri, *arguments]
        try:
            done = subprocess.run(
                command, input=given or '', capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            raise process.ServerError(f'{self.name} took more than {timeout:g} s for {arguments}') from None
        if done.returncode:
            raise process.ServerError(f'{self.name}: {" ".join(arguments)}: {done.stderr.strip()}')
        return done.stdout

    def kill_daemon(self, comes_back: bool = True) -> None:
        """Kill its libvirtd; its guests go on.

        :param comes_back: whether it is started again by itself; otherwise by :meth:`start_daemon`.
        """
        pid = self._daemon()
        (self.directory / 'held').unlink(missing_ok=True)
        if not comes_back:
            (self.directory / 'held').touch()
        began = reaper.started_at(pid)
        reaper.send(pid, signal.SIGKILL)
        process.wait_until(lambda: reaper.started_at(pid) != began, f'the libvirtd of {self.name} to end')

    def start_daemon(self, wait: bool = True) -> None:
        """Undo :meth:`kill_daemon`, and return when it answers, or at once."""
        (self.directory / 'held').unlink(missing_ok=True)
        if wait:
            self.wait()

    def stop_daemon(self) -> None:
        """Let its libvirtd hang: it takes connections, and says nothing. Its guests go on."""
        reaper.send(self._daemon(), signal.SIGSTOP)

    def continue_daemon(self) -> None:
        """Undo :meth:`stop_daemon`."""
        reaper.send(self._daemon(), signal.SIGCONT)

    def said_by_libvirt(self) -> str:
        """Return the log of its libvirtd."""
        return self.outside('/var/log/libvirt/libvirtd.log').read_text(errors='replace')

    # --- its guests --------------------------------------------------------------------------------------------------

    def fault_qemu(self, text: str | None) -> None:
        """Let no guest start here from now on, nor arrive, each with this error; None: undo that."""
        file = self.outside(emulator.FAULT)
        file.unlink(missing_ok=True)
        if text is not None:
            file.write_text(text)

    def domains(self) -> list[str]:
        """Return the UUIDs of the guests that it has, running or not."""
        return self.virsh('list', '--all', '--uuid').split()

    def destroy(self, uuid: str) -> None:
        """Have a guest end at once.

        libvirt refuses that for one that has just ended by itself, or of its signal.

        :raises ServerError: it runs on.
        """
        try:
            self.virsh('destroy', uuid)
        except process.ServerError:
            if uuid in self._running_domains():
                raise

    def remove_guests(self) -> None:
        """Let there be no guest, running or not."""
        if not (all_ := self.domains()):
            return
        running = self._running_domains()
        for each in all_:
            if each in running:
                self.destroy(each)
            # one that is transient has gone by that
            with contextlib.suppress(process.ServerError):
                self.virsh('undefine', each, '--managed-save', '--snapshots-metadata', '--checkpoints-metadata')
        if left := self.domains():
            raise process.ServerError(f'{self.name} keeps {left}')

    def _running_domains(self) -> list[str]:
        return self.virsh('list', '--uuid').split()

    def fresh(self) -> None:
        """Make it answer, whatever was done to it, with no guest, no image and no fault."""
        try:
            if self.running:
                self.go_on()
                self.start_daemon(wait=False)
                self.wait(20)
            else:
                self.start()
            self.remove_guests()
        except process.ServerError:
            # something holds it; a machine would be switched off, too
            self.power_off()
            shutil.rmtree(self.directory / 'etc' / 'qemu', ignore_errors=True)
            self.start()
            self.remove_guests()
        self.fault_qemu(None)
        _empty(self.images)
        _empty(self.outside(guests.CONSOLES))

    # --- what it is made of ------------------------------------------------------------------------------------------

    def _orders(self, delay: float) -> dict[str, object]:
        """Return what its first process is to do."""
        return {
            'name': self.name,
            'directory': str(self.directory),
            'directories': {place: str(self.directory / name) for place, name in PLACES.items()},
            'files': self.lab.files,
            'taken_away': [] if machine.accelerated() else ['/dev/kvm'],
            'nothing': str(self.directory / 'nothing'),
            'daemon': [
                machine.libvirtd(),
                *('--listen', '--config', '/etc/libvirt/libvirtd.conf', '--pid-file', '/run/libvirt/libvirtd.pid'),
            ],
            # libvirt's own default emulator is then the lab's, too
            'environment': {
                'PATH': f'{self.lab.emulator.parent}:/usr/sbin:/usr/bin:/sbin:/bin',
                'LD_PRELOAD': str(self.lab.sharing),
                'MIGRATOR_LAB_SHARED': str(self.lab.shared),
            },
            'delay': delay,
        }

    def _inside(self, pid: int) -> int:
        """Return what the machine calls a process of this host."""
        for outside in reaper.descendants(self.pid):
            with contextlib.suppress(OSError):
                status = pathlib.Path(f'/proc/{outside}/status').read_text()
                numbers = next(line.split()[1:] for line in status.splitlines() if line.startswith('NSpid:'))
                if len(numbers) > 1 and int(numbers[-1]) == pid:
                    return outside
        raise process.ServerError(f'{self.name} has no process {pid}')

    def _daemon(self) -> int:
        """Return its libvirtd's number, waiting for there to be one."""
        file = self.directory / 'daemon'
        process.wait_until(file.exists, f'{self.name} to start its libvirtd')
        return self._inside(int(file.read_text()))


class Service(process.Script):
    """A Python program that runs on a host.

    It sees the host's places, and ends when the host is switched off.

    :param host: that host; the other parameters are :class:`process.Script`'s.
    """

    def __init__(
        self,
        host: Host,
        name: str,
        arguments: Sequence[str],
        ready: Callable[[process.Script], bool] = lambda script: True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(host.workspace, name, arguments, ready, environment)
        self.host = host

    def command(self) -> Sequence[str]:
        """Return what is run."""
        return self.host.namespace_command(super().command())


class Lab:
    """Hosts, what they share, and their guests.

    :param workspace: where it is, and what ends it if we cannot; without one it has its own, and must be closed.
    """

    def __init__(self, workspace: process.Workspace | None = None) -> None:
        if (what := machine.missing()) is not None:
            raise process.ServerError(f'there is no {what}')
        self._own = workspace is None
        self.workspace = workspace or process.Workspace()
        self.hosts: dict[str, Host] = {}
        try:
            self.directory = self.workspace.directory('lab')
            if self.directory.is_relative_to('/run'):
                raise process.ServerError(f'no host would see {self.directory}: set TMPDIR to a directory elsewhere')
            #: Seen by all hosts, under this path; to their libvirts it is on NFS.
            self.shared = self.directory / 'shared'
            self.shared.mkdir()
            bin_ = self.directory / 'bin'
            bin_.mkdir()
            self.emulator = machine.make_emulator(bin_)
            self.kernel = machine.make_guest(self.directory)
            self.sharing = machine.make_sharing(self.directory)
            self._names = self.directory / 'hosts'
            self._names.write_text('127.0.0.1 localhost\n')
            #: What hosts see in place of the machine's files.
            self.files = machine.make_users(self.directory) | {'/etc/hosts': str(self._names)}
        except BaseException:
            self.close()
            raise

    @property
    def allowed_paths(self) -> list[str]:
        """Where hosts have images, consoles and kernels of guests, besides their instances_path."""
        return [IMAGES, guests.CONSOLES, str(self.directory.parent)]

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End it; nothing is left.

        With a workspace that was given, the directory stays until that is closed.
        """
        if self._own:
            self.workspace.close()
            return
        for host in self.hosts.values():
            host.close()

    def start_host(self, name: str, delay: float = 0.5, keepalive: int = 5, wait: bool = True) -> Host:
        """Make a host, and switch it on; see :class:`Host`.

        :param wait: whether to return only when it answers.
        """
        host = self.hosts[name] = Host(self, name, delay, keepalive)
        with self._names.open('a') as names:
            names.write(f'{ADDRESS} {name}\n')
        (self.directory / f'{name}.sock').symlink_to(host.directory / 'run' / 'libvirt-sock')
        host.start(wait)
        return host

    @property
    def uri_of_any(self) -> str:
        """The URI of every host for another's libvirtd, with %s for its name."""
        return f'qemu+unix:///system?socket={self.directory}/%s.sock'

    def fresh(self) -> None:
        """Make every host fresh, and what they share empty."""
        for host in self.hosts.values():
            host.fresh()
        _empty(self.shared)

    def start_guest(self, host: Host, name: str, **settings: object) -> guests.Guest:
        """Start a guest, and return it when it counts; see :class:`guests.Guest`."""
        guest = guests.Guest(self, name, **settings)  # type: ignore[arg-type]  # a guest's own to check
        guest.start(host)
        return guest

    def make_disk(
        self, where: Host | None, name: str, mib: int, data_mib: int = 0, backed_by: str | None = None
    ) -> str:
        """Make an image, and return its path as hosts see it.

        :param where: among whose images; None: with what all hosts share.
        :param mib: its size.
        :param data_mib: how much of that, from its beginning, is noise; the rest was never written.
        :param backed_by: the name of an image beside it, of which it has what was not written to itself.
        """
        folder = self.shared if where is None else where.images
        guests.make_image(folder / f'{name}.qcow2', mib, data_mib, backed_by)
        return str(folder / f'{name}.qcow2') if where is None else f'{IMAGES}/{name}.qcow2'


def _empty(folder: pathlib.Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
