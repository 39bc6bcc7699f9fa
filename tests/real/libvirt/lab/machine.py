# SPDX-License-Identifier: Apache-2.0

"""What the machine has of what the lab needs, and what the lab makes of it."""

from __future__ import annotations

import functools
import grp
import importlib.util
import json
import os
import pathlib
import pwd
import re
import shutil
import subprocess
import sys

from tests.real.libvirt.lab import emulator
from tests.real.servers import process

SBIN = '/usr/sbin'

#: Debian's libvirtd does not start its QEMU driver where these are unknown, even if it is to run QEMU as root. They
#: come with a package that also starts the system's own libvirt, so each host knows them and the machine need not.
#: The numbers are Debian's; another is taken where they are taken.
USER = 'libvirt-qemu'
GROUPS = ('kvm', 'libvirt-qemu')
NUMBER = 64055

#: The first QEMU that does not lose an emulated guest's memory; see :mod:`emulator`.
MENDED = (9, 0)

COMPILER = (
    'gcc', '-m32', '-march=i686', '-mno-sse', '-mno-mmx', '-O2', '-ffreestanding', '-fno-pic', '-no-pie', '-static',
    '-fno-stack-protector', '-fcf-protection=none', '-fno-asynchronous-unwind-tables', '-nostdlib', '-Wall', '-Wextra',
    # -N puts all of it into one segment, with the header that QEMU looks for at its beginning
    '-Wl,-N,-Ttext=0x100000,--build-id=none',
)  # fmt: skip


#: What a host's namespaces are made with.
UNSHARE = (
    'unshare', '--mount', '--uts', '--pid', '--fork', '--kill-child=KILL', '--mount-proc', '--propagation', 'private',
    '--',
)  # fmt: skip

#: Which packages have which programs.
PROGRAMS = {
    'qemu-system-x86_64': 'qemu-system-x86',
    'qemu-img': 'qemu-utils',
    'libvirtd': 'libvirt-daemon',
    'virsh': 'libvirt-clients',
    'gcc': 'gcc',
    'unshare': 'util-linux',
}


@functools.cache
def missing() -> str | None:
    """Say what the lab lacks here; None: nothing."""
    lacks = [
        f'{program} (package {package})' for program, package in PROGRAMS.items() if not process.which(program, SBIN)
    ]
    if not _has_driver():
        lacks.append("libvirt's driver for QEMU (package libvirt-daemon-driver-qemu)")
    if importlib.util.find_spec('libvirt') is None:
        lacks.append('Python module libvirt (extra libvirt, which is built with package libvirt-dev)')
    if os.geteuid() != 0:
        lacks.append('root')
    elif process.which('unshare') and (why := _no_namespaces()):
        lacks.append(f'permission to make mount, UTS and PID namespaces ({why})')
    return ', '.join(lacks) or None


def _no_namespaces() -> str:
    tried = subprocess.run([*UNSHARE, 'true'], capture_output=True, text=True, check=False)
    return tried.stderr.strip() or f'{tried.args[0]} ended with {tried.returncode}' if tried.returncode else ''


def _has_driver() -> bool:
    folders = [
        *pathlib.Path('/usr/lib').glob('*/libvirt'),
        *map(pathlib.Path, ('/usr/lib/libvirt', '/usr/lib64/libvirt')),
    ]
    return any((folder / 'connection-driver' / 'libvirt_driver_qemu.so').exists() for folder in folders)


def libvirtd() -> str:
    """Return where libvirtd is."""
    found = process.which('libvirtd', SBIN)
    assert found is not None
    return found


@functools.cache
def accelerated() -> bool:
    """Whether guests run on the processor itself.

    That /dev/kvm opens says little: it may do so where the processor cannot, and guests then stop at their first
    interrupts.
    """
    able = re.search(r'^flags\s*:.*\b(svm|vmx)\b', pathlib.Path('/proc/cpuinfo').read_text(), re.MULTILINE)
    return able is not None and os.access('/dev/kvm', os.R_OK | os.W_OK)


def make_emulator(directory: pathlib.Path) -> pathlib.Path:
    """Make the program that guests run in, and return its path.

    Its directory holds nothing else that is run.
    """
    real = shutil.which('qemu-system-x86_64')
    assert real is not None
    said = subprocess.run([real, '--version'], capture_output=True, text=True, check=True).stdout
    version = re.search(r'version (\d+)\.(\d+)', said)
    assert version is not None, said
    larger = not accelerated() and (int(version[1]), int(version[2])) < MENDED
    path = directory / 'qemu-system-x86_64'
    (directory / 'emulator.json').write_text(json.dumps({'emulator': real, 'larger': larger}))
    source = pathlib.Path(emulator.__file__).read_text()
    path.write_text(f'#!{sys.executable} -IS\n{source}')
    path.chmod(0o755)
    return path


def make_guest(directory: pathlib.Path) -> pathlib.Path:
    """Build the guest's kernel, and return its path."""
    path = directory / 'guest.elf'
    source = pathlib.Path(__file__).with_name('guest.c')
    process.run([*COMPILER, '-o', str(path), str(source)], directory)
    return path


def make_sharing(directory: pathlib.Path) -> pathlib.Path:
    """Build the library that has a libvirtd believe that a directory is on NFS, and return its path."""
    path = directory / 'shared.so'
    source = pathlib.Path(__file__).with_name('shared.c')
    process.run(['gcc', '-O2', '-Wall', '-shared', '-fPIC', '-o', str(path), str(source), '-ldl'], directory)
    return path


def make_users(directory: pathlib.Path) -> dict[str, str]:
    """Make lists of users and groups that have libvirt's; return which path is to show which file."""
    users, groups = pwd.getpwall(), grp.getgrall()
    taken = {user.pw_uid for user in users} | {group.gr_gid for group in groups}
    free = (number for number in range(NUMBER, 65500) if number not in taken)
    lines = pathlib.Path('/etc/group').read_text()
    numbers = {group.gr_name: group.gr_gid for group in groups}
    for name in GROUPS:
        if name not in numbers:
            numbers[name] = next(free)
            lines += f'{name}:x:{numbers[name]}:\n'
    (directory / 'group').write_text(lines)
    lines = pathlib.Path('/etc/passwd').read_text()
    if USER not in {user.pw_name for user in users}:
        lines += f'{USER}:x:{next(free)}:{numbers["kvm"]}:Libvirt QEMU:/var/lib/libvirt:/usr/sbin/nologin\n'
    (directory / 'passwd').write_text(lines)
    return {'/etc/passwd': str(directory / 'passwd'), '/etc/group': str(directory / 'group')}
