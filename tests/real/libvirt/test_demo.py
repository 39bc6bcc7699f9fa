# SPDX-License-Identifier: Apache-2.0

"""The demo: each silence of a guest is short, it can be interrupted anywhere, and nothing is left."""

import json
import os
import pathlib
import pty
import signal
import subprocess
import sys

import pytest

from tests.real.libvirt import demo, demo_scenario
from tests.real.libvirt.test_lab_close import mounted, of_the_machine
from tests.real.servers import process, reaper

TREE = pathlib.Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, '-m', 'tests.real.libvirt.demo']

# It waits for real guests, on a machine that may have other things to do.
pytestmark = [pytest.mark.timeout(500), pytest.mark.slow]


def backends_of(pid):
    """Where the labs are that a process has made."""
    found = set()
    for one in reaper.descendants(pid):
        try:
            reported = pathlib.Path(f'/proc/{one}/environ').read_bytes().split(b'\0')
        except OSError:
            continue  # it has ended
        found |= {each.partition(b'=')[2].decode() for each in reported if each.startswith(b'MIGRATOR_TEST_ROOT=')}
    return {pathlib.Path(each) for each in found}


def left(root):
    return process.left_of(root) or mounted(root) or root.exists()


def test_source_is_emptied_and_the_silence_of_each_guest_is_short(lab):
    before = of_the_machine()
    done = subprocess.run([*COMMAND, '--json'], cwd=TREE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(done.stdout)
    assert report['right']
    assert report['wrong'] == report['audit']['findings'] == []
    came = [(move['guest'], move['plan'], move['status']) for move in report['moves']]
    assert sorted(came) == [
        ('cache', 'failed', 'failed'),
        ('cache', 'moved', 'completed'),
        ('database', 'post-copy', 'completed'),
        ('web', 'moved', 'completed'),
        ('worker', 'moved', 'completed'),
    ]
    assert report['drain']['status'] == 'completed'
    assert all(0 < move['downtime'] <= demo_scenario.SILENCE for move in report['moves'])
    assert all(counted['bad_pages'] == 0 and counted['longest_step'] <= 100 for counted in report['guests'].values())
    assert report['audit']['looked_at'] == {'allocations': 4, 'consumers': 4, 'instances': 4, 'migrations': 5}
    assert 'cache: waiting (Migration ' in done.stderr
    assert of_the_machine() == before


@pytest.mark.parametrize(
    ('when', 'number'),
    [
        ('Starting 4 guests', signal.SIGTERM),
        ('worker: moving', signal.SIGTERM),
        ('is stopped by virsh', signal.SIGINT),
    ],
)
def test_interrupted_it_leaves_nothing(lab, when, number):
    before = of_the_machine()
    with subprocess.Popen(COMMAND, cwd=TREE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert any(when in line for line in child.stdout), child.stderr.read()
        roots = backends_of(child.pid)
        assert len(roots) == 1
        assert all(mounted(root) for root in roots)
        child.send_signal(number)
        said = child.stderr.read()
        assert child.wait(timeout=60) == 128 + number, said
    assert said.endswith('interrupted; nothing of it is left\n')
    assert 'Traceback' not in said
    assert not [found for root in roots if (found := left(root))]
    assert of_the_machine() == before


def test_ctrl_c_at_its_terminal_leaves_nothing_and_the_cursor_is_back(lab):
    own, other = pty.openpty()
    with subprocess.Popen(
        ['setsid', '--ctty', '--wait', *COMMAND], cwd=TREE, stdin=other, stdout=other, stderr=other,
        env={**os.environ, 'TERM': 'xterm', 'COLUMNS': '120', 'LINES': '40'},
    ) as child:  # fmt: skip
        os.close(other)
        said = b''
        while b'is stopped by virsh' not in said:
            said += os.read(own, 65536)
        roots = backends_of(child.pid)
        assert len(roots) == 1
        os.write(own, b'\x03')
        while True:
            try:
                said += os.read(own, 65536)
            except OSError:  # the other end is closed
                break
        assert child.wait(timeout=60) == 130
    os.close(own)
    assert said.rstrip().endswith(b'interrupted; nothing of it is left')
    assert said.rindex(b'\x1b[?25h') > said.rindex(b'\x1b[?25l')
    assert b'Traceback' not in said
    assert not [found for root in roots if (found := left(root))]


# --- where it cannot be -----------------------------------------------------------------------------------------------


def test_demo_without_root_reports_it(monkeypatch, capsys):
    monkeypatch.setattr(os, 'geteuid', lambda: 1000)
    assert demo.main([]) == 2
    assert capsys.readouterr() == (
        '',
        'migrator-demo-libvirt: not root: its hosts are namespaces, which only root may make\n',
    )


@pytest.mark.parametrize('command', [COMMAND, ['tools/demo-libvirt.sh']], ids=['module', 'script'])
def test_demo_without_namespaces_reports_it(lab, command):
    done = subprocess.run(
        ['setpriv', '--bounding-set=-sys_admin', *command], cwd=TREE, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, '')
    assert done.stderr.count('\n') == 1
    assert 'mount, UTS and PID namespaces' in done.stderr


def test_an_option_that_there_is_not(capsys):
    assert demo.main(['--jason']) == 2
    assert capsys.readouterr().err == (
        'migrator-demo-libvirt: unrecognized arguments: --jason (see migrator-demo-libvirt --help)\n'
    )


# --- its verdict ------------------------------------------------------------------------------------------------------


def test_a_report_with_anything_wrong_is_not_right():
    def report(**fields):
        made = {'drain': {}, 'moves': [], 'seconds': 1.0, 'counted': {}, 'findings': [], 'looked_at': {}, 'wrong': []}
        return demo_scenario.Report(**{**made, **fields})

    wrong = demo_scenario.Move(guest=None, plan='moved', migration=None, wrong=['it has a gap'])
    assert report().right
    assert not report(moves=[wrong]).right
    assert not report(findings=[{'verdict': 'leaked'}]).right
    assert not report(wrong=['alpha is not empty']).right
