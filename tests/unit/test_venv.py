# SPDX-License-Identifier: Apache-2.0

"""tools/venv.sh makes, uses and repairs virtual environments, and clears none."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

#: A Python that runs short code as the real one does, records each ``pip`` and ``venv`` in a file, and fails to install
#: if there is a file ``offline``. KIND is what it calls its version.
PYTHON = """#!/bin/sh
case "$1 $2" in
'-c '*'sys.implementation'*) echo KIND ;;
'-c '*) exec REAL "$@" ;;
'-V ') echo KIND ;;
'- ') exec REAL -S "$@" ;;
'-m venv') echo "venv $3" >>called; mkdir -p $3/bin; : >$3/pyvenv.cfg; [ -e $3/bin/python ] || cp "$0" $3/bin/python ;;
'-m pip') for last; do :; done; echo "pip $last" >>called; echo Collecting it
    [ ! -e killed ] || kill -9 $$; [ ! -e offline ] ;;
esac
"""


def add_python(at, kind='3.11'):
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_text(PYTHON.replace('KIND', f'Python {kind}').replace('REAL', sys.executable))
    at.chmod(0o755)


@pytest.fixture
def tree(tmp_path):
    """Return a tree without a virtual environment, on a machine with two Pythons."""
    for name in ('pyproject.toml', 'setup.py'):
        (tmp_path / name).touch()
    (tmp_path / 'tools').mkdir()
    shutil.copy(ROOT / 'tools' / 'venv.sh', tmp_path / 'tools')
    add_python(tmp_path / 'usr' / 'python3')
    add_python(tmp_path / 'usr' / 'python3.13', '3.13')
    return tmp_path


@pytest.fixture
def mine(tree):
    """Return a tree in which the user has made an environment."""
    add_python(tree / '.venv' / 'bin' / 'python')
    for name in ('pyvenv.cfg', 'mine'):
        (tree / '.venv' / name).touch()
    return tree


def make(tree, *extras, path='usr', **variables):
    """Run the script; return its exit status and what it writes."""
    done = subprocess.run(
        ['sh', 'tools/venv.sh', *extras],
        cwd=tree,
        env={'PATH': f'{tree / path}:{tree}/usr:/usr/bin:/bin', **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ''
    return done.returncode, done.stderr


def called(tree):
    found = tree / 'called'
    return found.read_text().splitlines() if found.exists() else []


def test_new_environment_is_made_once_and_each_extra_installed_once(tree):
    assert make(tree, 'demo')[0] == 0
    assert make(tree, 'demo', 'test')[0] == 0
    assert make(tree, 'demo', 'test') == (0, '')
    assert called(tree) == ['venv .venv', 'pip .[demo]', 'pip .[test]']


def test_words_of_pip_are_shown_only_if_it_fails(tree):
    assert 'Collecting' not in make(tree, 'demo')[1]
    (tree / 'offline').touch()
    status, said = make(tree, 'test')
    assert status == 2
    assert 'Collecting it' in said
    assert said.endswith('installing failed: the lines above say why\n')


def test_environment_of_the_user_is_used_as_it_is(mine):
    assert make(mine, 'demo')[0] == 0
    assert make(mine, 'demo', 'test')[0] == 0
    assert make(mine, 'demo')[0] == 0
    assert called(mine) == ['pip .[demo]', 'pip .[test]']
    assert (mine / '.venv' / 'mine').exists()


def test_environment_of_the_user_is_kept_after_a_failed_install(mine):
    (mine / 'offline').touch()
    assert make(mine, 'demo')[0] == 2
    (mine / 'offline').unlink()
    assert make(mine, 'demo')[0] == 0
    assert called(mine) == ['pip .[demo]'] * 2
    assert (mine / '.venv' / 'mine').exists()


def test_environment_of_the_user_is_repaired_and_one_that_was_moved_is_named(mine):
    make(mine, 'demo')
    (mine / '.venv' / '.migrator' / 'busy').touch()
    assert 'was interrupted: repairing it' in make(mine, 'demo')[1]
    assert called(mine) == ['pip .[demo]'] * 2
    (mine / '.venv').rename(mine / 'other')
    status, said = make(mine, 'demo', VENV='other')
    assert (status, f"'other' was made as {os.path.realpath(mine)}/.venv, and works only there" in said) == (2, True)
    assert (mine / 'other' / 'mine').exists()


@pytest.mark.parametrize(('kind', 'repaired'), [('gave up', False), ('was killed', True)])
def test_only_a_pip_that_was_killed_leaves_something_to_repair(tree, kind, repaired):
    make(tree, 'demo')
    (tree / ('offline' if kind == 'gave up' else 'killed')).touch()
    assert make(tree, 'test')[0] == 2
    for name in ('offline', 'killed'):
        (tree / name).unlink(missing_ok=True)
    status, said = make(tree, 'test')
    assert (status, 'repairing it' in said) == (0, repaired)
    assert called(tree)[-1] == ('pip .[demo,test]' if repaired else 'pip .[test]')


def test_space_in_the_place_and_an_exported_cdpath_do_no_harm(tree):
    status, said = make(tree, 'demo', VENV='a place')
    assert (status, "VENV='a place' has a space" in said) == (2, True)
    (tree / 'else' / 'tools').mkdir(parents=True)
    assert make(tree, 'demo', CDPATH=str(tree / 'else'))[0] == 0
    assert not (tree / 'else' / '.venv').exists()


@pytest.mark.parametrize('variables', [{}, {'VIRTUAL_ENV': '.venv'}, {'PYTHON': '.venv/bin/python'}])
def test_environment_on_the_path_or_activated_is_the_same_python(tree, variables):
    make(tree, 'demo')
    (tree / '.venv' / 'bin' / 'python3').symlink_to('python')
    (tree / '.venv' / 'client').touch()
    assert make(tree, 'demo', path='.venv/bin', **variables) == (0, '')
    assert (tree / '.venv' / 'client').exists()


def test_environment_of_another_python_is_named_and_left_alone(tree):
    make(tree, 'demo')
    status, said = make(tree, 'demo', PYTHON='python3.13')
    assert status == 2
    assert "'.venv' was made with Python 3.11, and 'python3.13' is Python 3.13: name that one with PYTHON=" in said
    assert f"Remove it (rm -r '{tree}/.venv'), or name another place with VENV=..." in said
    assert make(tree, 'demo', PYTHON='python3.13', VENV='other')[0] == 0
    assert make(tree, 'demo') == (0, '')
    assert called(tree) == ['venv .venv', 'pip .[demo]', 'venv other', 'pip .[demo]']


def test_environment_that_was_moved_or_lost_its_python_is_named_and_left_alone(tree, tmp_path_factory):
    make(tree, 'demo')
    moved = tmp_path_factory.mktemp('moved') / 'tree'
    shutil.copytree(tree, moved)
    assert f"'.venv' was made as {os.path.realpath(tree)}/.venv, and works only there" in make(moved, 'demo')[1]
    (tree / '.venv' / 'bin' / 'python').unlink()
    status, said = make(tree, 'demo')
    assert (status, "the Python that '.venv' was made with is gone. Remove it (rm -r" in said) == (2, True)


def test_folder_that_is_no_environment_is_named_and_left_alone(tree):
    (tree / '.venv').mkdir()
    (tree / '.venv' / 'letters').touch()
    status, said = make(tree, 'demo')
    assert (status, called(tree)) == (2, [])
    assert "'.venv' exists and is no virtual environment" in said


def test_interrupted_set_up_is_repaired_in_place(tree):
    make(tree, 'demo', 'osc')
    make(tree, 'test')
    state = tree / '.venv' / '.migrator'
    (state / 'busy').touch()
    (tree / '.venv' / 'client').touch()
    packages = tree / 'packages'
    for name, files in (('whole', 'whole.py,,\n'), ('lost', 'lost.py,,\nnever.pyc,,\n'), ('begun', None)):
        metadata = packages / f'{name}-1.dist-info'
        metadata.mkdir(parents=True)
        (metadata / 'METADATA').write_text(f'Name: {name}\nVersion: 1\n')
        if files is not None:
            (metadata / 'RECORD').write_text(files)
    (packages / 'whole.py').touch()
    status, said = make(tree, 'test', PYTHONPATH=str(packages))
    assert (status, 'was interrupted: repairing it' in said) == (0, True)
    assert called(tree)[3:] == ['venv .venv', 'pip .[demo,osc,test]']
    assert (tree / '.venv' / 'client').exists()
    # What pip had not finished, or not finished to remove, no longer looks installed.
    assert [one.name for one in packages.glob('*.dist-info')] == ['whole-1.dist-info']
    assert make(tree, 'test') == (0, '')
