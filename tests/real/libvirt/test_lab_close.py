# SPDX-License-Identifier: Apache-2.0

"""However a lab ends, nothing of it is left; and what is said of a guest is no more than what it said."""

import itertools
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from tests.real.libvirt.lab import guests, hosts, init, machine
from tests.real.servers import process

TREE = pathlib.Path(__file__).resolve().parents[3]

# --- nothing is left -------------------------------------------------------------------------------------------------

SCENE = """
import signal, sys, time
from tests.real.libvirt.lab import hosts
# a shell without job control has what it runs in the background ignore this one, and its children with it
signal.signal(signal.SIGINT, signal.default_int_handler)
with hosts.Lab() as lab:
    when = sys.argv[1]
    if when == 'starting':
        print(lab.workspace.root, flush=True)
    alpha = lab.start_host('alpha')
    lab.start_guest(alpha, 'demo')
    if when != 'starting':
        print(lab.workspace.root, flush=True)
    if when != 'closed':
        time.sleep(100)
"""


def mounted(root):
    """Which processes see something mounted that belongs to a lab."""
    found = []
    for file in pathlib.Path('/proc').glob('[0-9]*/mountinfo'):
        try:
            if str(root) in file.read_text():
                found.append(file.parent.name)
        except OSError:
            continue  # it has ended
    return found


def of_the_machine():
    """What of the machine a lab could have changed."""
    lists = [pathlib.Path(name).read_text() for name in ('/etc/passwd', '/etc/group', '/etc/hosts')]
    return [sorted(os.listdir(place)) if os.path.isdir(place) else None for place in hosts.PLACES] + lists


@pytest.mark.parametrize(
    ('when', 'number', 'delay'),
    [
        ('closed', None, 0),
        ('running', signal.SIGINT, 0),
        ('running', signal.SIGTERM, 0),
        ('running', signal.SIGKILL, 0),
        *(('starting', number, delay) for number in (signal.SIGINT, signal.SIGKILL) for delay in (0, 0.2, 0.4)),
    ],
)
def test_closed_lab_leaves_nothing_behind(lab, when, number, delay):
    before = of_the_machine()
    with subprocess.Popen(
        [sys.executable, '-c', SCENE, when], cwd=TREE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        root = pathlib.Path(child.stdout.readline().strip())
        assert root.is_absolute()
        if when == 'running':
            assert mounted(root)
            assert any('guest=demo' in line for line in process.left_of(root))
        if when == 'starting':
            # a compiler, or a host: whatever comes first when it is looked at
            process.wait_until(lambda: process.left_of(root), 'something to run')
            time.sleep(delay)
        if number:
            child.send_signal(number)
        # what it was just about to start it may have to complain of, and leave to others
        assert child.wait(timeout=60) == -(number or 0) or when == 'starting'
    process.wait_until(lambda: not (process.left_of(root) or mounted(root) or root.exists()), 'it to be gone', 30)
    assert of_the_machine() == before


def test_host_ends_with_the_process_that_started_it(lab):
    with hosts.Lab() as own:
        alpha = own.start_host('alpha')
        # who would have ended it deletes this last
        (alpha.directory / 'orders.json').unlink()
        process.wait_until(lambda: not alpha.running, 'it to end')


# --- a place that the machine does not have ---------------------------------------------------------------------------


def test_a_host_has_places_that_the_machine_has_not(lab, tmp_path):
    parent = tmp_path / 'parent'
    (parent / 'folder').mkdir(parents=True)
    (parent / 'folder' / 'within').touch()
    (parent / 'file').write_text('text')
    (parent / 'link').symlink_to('file')
    own = tmp_path / 'own'
    own.mkdir()
    (own / 'mine').touch()
    text = f"""
import os, pathlib, sys
sys.path.insert(0, {str(pathlib.Path(init.__file__).parent)!r})
import init
target = pathlib.Path({str(parent / 'new' / 'newer')!r})
init.make_room(target, pathlib.Path({str(tmp_path / 'staging')!r}))
init.bind({str(own)!r}, str(target))
os.chdir({str(parent)!r})
print(sorted(str(each) for each in pathlib.Path('.').rglob('*')), os.readlink('link'), open('link').read())
"""
    done = subprocess.run([*machine.UNSHARE, sys.executable, '-c', text], capture_output=True, text=True, check=False)
    assert done.stderr == ''
    seen = ['file', 'folder', 'folder/within', 'link', 'new', 'new/newer', 'new/newer/mine']
    assert done.stdout == f'{seen} file text\n'
    assert sorted(each.name for each in parent.iterdir()) == ['file', 'folder', 'link']


# --- what a guest said -----------------------------------------------------------------------------------------------


def said(*ticks, audits=0, bad=0, boot=False):
    return ('BOOT\r\n' if boot else '').encode() + b''.join(
        f'T {tick} A {audits} P 1 W 0 B {bad}\r\n'.encode() for tick in ticks
    )


@pytest.mark.parametrize(
    ('on_alpha', 'on_beta', 'complaint'),
    [
        (said(1, 3, boot=True), said(5, 7, audits=2), None),
        # a word on its way is cut in two
        (said(1, 3, boot=True) + b'T 5 A 0 P', b' 1 W 0 B 0\r\n' + said(7, 9, audits=2), None),
        (said(1, 3, boot=True), said(150, 152, audits=2), 'has a gap'),
        (said(1, 3, boot=True), said(3, 5, audits=2), 'there were two of it, or it was taken back'),
        (said(1, 3, 7, boot=True), said(5, 9, audits=2), 'was in two places at once'),
        # there, back, and there again
        (said(1, 3, boot=True) + said(11, 13, 15), said(5, 7, 9) + said(17, audits=2), None),
        (said(1, 3, boot=True), said(5, 7, 6, audits=2), 'went back on beta'),
        (said(1, 3, boot=True), said(5, 7, audits=2, boot=True), r"began 2 times: on \['alpha', 'beta'\]"),
        (said(1, 3, boot=True), said(5, 7, audits=2, bad=4), 'has bad pages, first reported on beta: .*bad=4'),
        (said(1, 3, boot=True), said(5, 7, audits=1), 'does not go on at beta'),
        (said(1, 3, boot=True), b'', 'does not go on at beta'),
        (b'', said(5, 7, boot=True), 'was never on alpha'),
    ],
    ids=itertools.count(),
)
def test_output_of_a_guest_decides_its_verdict(lab, alpha, beta, on_alpha, on_beta, complaint):
    guest = guests.Guest(lab, 'demo')
    alpha.console('demo').write_bytes(on_alpha)
    beta.console('demo').write_bytes(on_beta)
    if complaint is None:
        guest.survived(alpha, beta, timeout=0.1)
    else:
        with pytest.raises(AssertionError, match=complaint):
            guest.survived(alpha, beta, timeout=0.1)


def test_a_silence_is_measured_to_its_end_and_one_that_has_none_too(lab, alpha):
    guest = lab.start_guest(alpha, 'demo')
    with guest.watch() as watch:
        alpha.virsh('suspend', guest.uuid)
        process.wait_until(lambda: watch.longest_silence > 0.5, 'its output to pause')
        alpha.virsh('resume', guest.uuid)
        guest.unharmed(alpha)
    assert 0.5 < watch.longest_silence < 3
    with guest.watch() as watch:
        alpha.destroy(guest.uuid)
        process.wait_until(lambda: watch.longest_silence > 0.5, 'its output to pause')
    assert watch.longest_silence > 0.5
