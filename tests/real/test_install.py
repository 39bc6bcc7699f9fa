# SPDX-License-Identifier: Apache-2.0

"""The lines of the page on installation, typed on a machine that has the packages and nothing else.

The machine is a namespace of this one: its files are this machine's, and what is written to them is lost. Two things
differ from a real one. It has no network, so that the packages, the first step, are there already. Its first process is
not systemd, so that ``systemctl`` is :mod:`tests.real.servers.systemctl`.
"""

import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

from tests.real.plugin import need

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / 'doc/source/install.rst'
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
#: Seconds for everything that is typed.
PATIENCE = 360

#: Makes the machine, and types the lines there.
MACHINE = """
set -e
mount -t tmpfs machine {place}
mkdir {place}/upper {place}/work {place}/root
mount -t overlay machine -o lowerdir=/,upperdir={place}/upper,workdir={place}/work {place}/root
cd {place}/root
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs run run
mount --rbind {python} .{python}
hostname localhost
ip link set lo up
cp {script} tmp/typed.sh
exec chroot . /bin/bash -eu tmp/typed.sh
"""
#: What the first step of the page does on a real machine, and the path of the Python that its packages run by.
FIRST = """
rm -rf /etc/keystone /etc/placement /etc/migrator
mkdir -p /usr/local/lib/migrator/share/migrator /opt/openstack /usr/local/sbin
chmod o+x {parents}
ln -s {bin} /usr/local/lib/migrator/bin
ln -s {bin} /opt/openstack/bin
cp -r {root}/etc/. /usr/local/lib/migrator/share/migrator/
printf '#!/bin/sh\\nexec {python} {root}/tests/real/servers/systemctl.py "$@"\\n' > /usr/local/sbin/systemctl
chmod +x /usr/local/sbin/systemctl
trap 'tail -n 40 /var/log/units/* 2>/dev/null' ERR
"""


def steps():
    """Return the lines of each step: (title, lines)."""
    found = re.split(r'^(\d+\. .*)\n=+\n', PAGE.read_text(), flags=re.MULTILINE)[1:]
    for title, text in zip(found[::2], found[1::2], strict=True):
        text = re.split(r'^.*\n=====', text, flags=re.MULTILINE)[0]
        blocks = re.findall(r'::\n\n((?:(?: {4}.*)?\n)+)', text)
        yield title, ''.join(textwrap.dedent(block) for block in blocks)


def needs_a_machine():
    """Leave the test out where it lacks something."""
    for name in ('postgresql', 'rabbitmq', 'placement_http', 'keystone', 'haproxy'):
        need(name)
    if os.geteuid() != 0:
        pytest.skip('a machine of its own needs root')


def type_on_a_machine(tmp_path, lines, python=sys.executable):
    """Type lines on a new machine, and return what it prints.

    :param python: the Python of the virtual environment with the packages.
    """
    executable, bin_ = pathlib.Path(python).resolve(), pathlib.Path(python).parent
    parents = ' '.join(str(one) for one in [*executable.parents, *bin_.parents] if one != pathlib.Path('/'))
    script, place = tmp_path / 'typed.sh', tmp_path / 'machine'
    first = FIRST.format(bin=bin_, parents=parents, python=sys.executable, root=ROOT)
    script.write_text('\n'.join([first, *lines]))
    place.mkdir()
    machine = MACHINE.format(place=place, script=script, python=executable.parents[1])
    environment = {
        'PATH': '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
        'PYTHONPATH': str(ROOT) if python == sys.executable else '',
    }
    command = [
        'unshare',
        '--mount',
        '--uts',
        '--ipc',
        '--net',
        '--pid',
        '--fork',
        '--kill-child',
        '/bin/sh',
        '-c',
        machine,
    ]
    output = tmp_path / 'output'
    try:
        with output.open('w') as file:
            subprocess.run(
                command, env=environment | {'HOME': '/root', 'LANG': 'C.UTF-8'}, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, timeout=PATIENCE, check=True,
            )  # fmt: skip
    except subprocess.SubprocessError as error:
        raise AssertionError(f'{error}\n{output.read_text()[-6000:]}') from None
    return output.read_text()


def test_page_leads_from_a_machine_to_a_drained_host_behind_tls(tmp_path):
    needs_a_machine()
    (first, packages), *rest = steps()
    assert first == '1. The packages'
    assert "'.[postgresql,osc]'" in packages
    output = type_on_a_machine(tmp_path, [f'echo "=== {title} $(date +%T)"\n{text}' for title, text in rest])
    end = output[output.index('=== 9.') :]
    assert re.search(r'OS-EXT-SRV-ATTR:host +\| host2', end), end
    assert re.search(r'status +\| ACTIVE', end), end
