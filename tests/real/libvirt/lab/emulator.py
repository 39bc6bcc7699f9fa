# SPDX-License-Identifier: Apache-2.0

"""The lab's emulator: QEMU, but for two things.

It is copied to where it runs, next to ``emulator.json``.

*Memory.* A QEMU before 9.0 that emulates the processor loses what its guest writes while it is moved: for memory whose
size is a multiple of 256 KiB, it clears the marks of what was written without the emulation's knowing (mended by QEMU
03bfc2188f, "physmem: Fix migration dirty bitmap coherency with TCG memory access"). The guest arrives with old
memory, and no error is reported. libvirt gives whole MiB, so there are 8 KiB more here than it asks for.

*Faults.* Where a host has a file of that name, its guests do not start, and its text is why.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import sys

#: Where a host has it, as it is seen there.
FAULT = '/var/lib/libvirt/emulator-fault'

#: QEMU rounds up to this.
MORE = 8192


def larger(arguments: list[str]) -> list[str]:
    """Return a command line that gives the guest a little more memory."""
    found = []
    for before, argument in zip(['', *arguments], arguments, strict=False):
        if before == '-m' and (match := re.fullmatch(r'(size=)?(\d+)([kM]?)(,.*)?', argument)):
            # without a unit they are MiB
            kib = int(match[2]) * (1 if match[3] == 'k' else 1024) + MORE // 1024
            argument = f'size={kib}k{match[4] or ""}'
        elif before == '-object' and argument.startswith('{') and '"memory-backend-' in argument:
            backend = json.loads(argument)
            backend['size'] += MORE
            argument = json.dumps(backend)
        found.append(argument)
    return found


def main() -> None:
    """Become QEMU, or fail as was asked for."""
    orders = json.loads(pathlib.Path(__file__).with_name('emulator.json').read_text())
    arguments = sys.argv[1:]
    # libvirt also starts it without a guest, to learn what it can do
    if any(argument.startswith('guest=') for argument in arguments) and os.path.exists(FAULT):
        sys.exit(pathlib.Path(FAULT).read_text())
    if orders['larger']:
        arguments = larger(arguments)
    # libvirt hands on what was loaded into it for its own sake
    environment = {name: value for name, value in os.environ.items() if name != 'LD_PRELOAD'}
    os.execve(orders['emulator'], [sys.argv[0], *arguments], environment)  # noqa: S606 -- it is to become QEMU


if __name__ == '__main__':
    main()
