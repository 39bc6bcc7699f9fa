# SPDX-License-Identifier: Apache-2.0

"""The files of migrator-drain: nothing of others is followed, written or waited for."""

import os
import stat

import pytest

from migrator import exception
from migrator.nova.foreground import state


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
