# SPDX-License-Identifier: Apache-2.0

"""The files of migrator-drain: nothing of others is followed, written or waited for."""

import argparse
import contextlib
import os
import re
import sqlite3
import stat
import types

import pytest

from migrator import exception
from migrator.cmd import drain
from migrator.nova.foreground import session, state
from tests import templates
from tests.unit.nova import cloud_server, cloud_variants

GIVEN = ('os_cloud', 'os_region_name', 'state')


def test_lock_names_its_holder_and_is_gone_afterwards(tmp_path):
    path = tmp_path / 'x.lock'
    with state.locked(path) as free:
        assert free is None
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert state.holder(path) == os.getpid()
    assert not path.exists()
    assert state.holder(path) is None


def test_link_in_the_place_of_the_lock_is_refused_and_its_target_kept(tmp_path):
    precious, path = tmp_path / 'precious', tmp_path / 'x.lock'
    precious.write_text('all of it')
    path.symlink_to(precious)
    with pytest.raises(exception.ConfigurationError, match=r'symbolic link\. Name another file'), state.locked(path):
        pass
    assert precious.read_text() == 'all of it'
    assert path.is_symlink()


@pytest.mark.parametrize('name', ['x.sqlite', 'x.lock'])
def test_pipe_in_the_place_of_a_file_is_refused_at_once(tmp_path, name):
    path = tmp_path / name
    os.mkfifo(path)
    deed = state.prepare if name == 'x.sqlite' else state.holder
    with pytest.raises(exception.ConfigurationError, match='no regular file'):
        deed(path)


def test_lock_of_another_user_is_refused(tmp_path, monkeypatch):
    path = tmp_path / 'x.lock'
    path.write_text('1')
    monkeypatch.setattr(os, 'geteuid', lambda: os.getuid() + 1)
    with pytest.raises(exception.ConfigurationError, match='another user'), state.locked(path):
        pass
    assert path.read_text() == '1'


def test_state_file_may_be_a_link_of_its_user(tmp_path):
    path, real = tmp_path / 'x.sqlite', tmp_path / 'real.sqlite'
    path.symlink_to(real)
    state.prepare(path)
    assert stat.S_ISREG(real.stat().st_mode)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Return a cloud on loopback with two names in clouds.yaml, and the folder of its states."""
    server = cloud_server.CloudServer()
    files = cloud_variants.clouds('regions', 'region_name: RegionOne') | {
        'more.yaml': cloud_variants.clouds('interfaces', 'interface: internal')['clouds.yaml']
    }
    files['clouds.yaml'] += '\n'.join(cloud_variants.clouds('regions', name='both')['clouds.yaml'].split('\n')[1:])
    variant = cloud_variants.Variant(files)
    for name, value in variant.write(tmp_path, server.url, 'closed').items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path))
    monkeypatch.delenv('OS_REGION_NAME', raising=False)
    yield types.SimpleNamespace(path=tmp_path / 'migrator', server=server)
    server.stop()


def run(*words):
    return drain.main(words)


def files_of(home):
    return sorted(one.name for one in home.path.iterdir() if not one.is_symlink())


def host_of(home):
    return home.server.url.removeprefix('http://').replace(':', '_')


NAMES = [
    ('--os-cloud', 'mine'),
    ('--os-cloud', 'mine', '--os-region-name', 'RegionOne'),
    ('--os-cloud', 'both', '--os-region-name', 'RegionOne'),
]


def test_one_cloud_has_one_state_by_whatever_name(home, capsys):
    for names in NAMES * 2:
        assert run(*names, 'list') == 0
    assert files_of(home) == [f'{host_of(home)}_nova-RegionOne.sqlite']


def test_another_region_has_another_state(home):
    assert run('--os-cloud', 'both', '--os-region-name', 'RegionOne', 'list') == 0
    assert run('--os-cloud', 'both', '--os-region-name', 'RegionTwo', 'list') == 0
    assert files_of(home) == [f'{host_of(home)}_nova-RegionOne.sqlite', f'{host_of(home)}_nova-two-RegionTwo.sqlite']


def test_interface_does_not_change_the_state(home, monkeypatch, tmp_path):
    monkeypatch.setenv('OS_CLIENT_CONFIG_FILE', str(tmp_path / 'more.yaml'))
    assert run('--os-cloud', 'mine', 'list') == 0
    monkeypatch.setenv('OS_INTERFACE', 'public')
    assert run('--os-cloud', 'mine', '--os-region-name', 'RegionOne', 'list') == 0
    assert files_of(home) == [f'{host_of(home)}_nova-RegionOne.sqlite']


def test_list_needs_no_cloud_once_its_name_is_known(home, capsys):
    assert run('--os-cloud', 'mine', 'list') == 0
    home.server.stop()
    assert run('--os-cloud', 'mine', 'list') == 0
    assert run('--os-cloud', 'mine', 'plan', 'host1') == 3
    assert 'The identity service is not reachable' in capsys.readouterr().err


@pytest.mark.parametrize('old', ['mine.sqlite', 'mine-RegionOne.sqlite'])
def test_file_under_an_old_name_is_the_state_of_the_cloud(home, old, tmp_path):
    home.path.mkdir()
    templates.database(tmp_path).rename(home.path / old)
    for names in NAMES[1:2] + NAMES:
        assert run(*names, 'list') == 0
    assert files_of(home) == [old]


def test_file_under_an_old_name_is_judged_by_its_baseline(home, tmp_path, capsys):
    home.path.mkdir()
    templates.database(tmp_path).rename(home.path / 'mine.sqlite')
    with contextlib.closing(sqlite3.connect(home.path / 'mine.sqlite')) as opened, opened:
        opened.execute("UPDATE alembic_version SET version_num = 'another'")
    assert run(*NAMES[1], 'list') == 2
    assert re.search("mine.sqlite': .* nothing converts it", capsys.readouterr().err)


def test_two_files_under_old_names_are_refused_with_their_names(home, tmp_path, capsys):
    home.path.mkdir()
    for name in ('mine.sqlite', 'mine-RegionOne.sqlite'):
        (home.path / name).touch()
    assert run(*NAMES[0], 'plan', 'host1') == 2
    error = capsys.readouterr().err
    assert str(home.path / 'mine.sqlite') in error
    assert str(home.path / 'mine-RegionOne.sqlite') in error


def test_file_without_a_region_in_its_name_is_not_taken_for_another_region(home, tmp_path):
    home.path.mkdir()
    templates.database(tmp_path).rename(home.path / 'both.sqlite')
    assert run('--os-cloud', 'both', '--os-region-name', 'RegionTwo', 'list') == 0
    assert files_of(home) == [f'{host_of(home)}_nova-two-RegionTwo.sqlite', 'both.sqlite']


def test_locks_of_one_drain_are_one_file_by_whatever_name(home):
    paths = set()
    for names in NAMES:
        given = drain.make_parser().parse_args([*names, 'plan', 'host1'], argparse.Namespace(**dict.fromkeys(GIVEN)))
        paths.add(session.find(given)[0])
    assert len(paths) == 1
