# SPDX-License-Identifier: Apache-2.0

"""Shared parts of the tests of the page on embedding: its code, and a hypervisor for it."""

import importlib.util
import pathlib
import sys

import pytest

from migrator import executors

SOURCE = pathlib.Path(__file__).resolve().parents[3] / 'doc' / 'source'


def patched():
    """Return whether eventlet has patched this process."""
    patcher = sys.modules.get('eventlet.patcher')
    return patcher is not None and patcher.is_monkey_patched('thread')


def bound(binding):
    """Return a binding as the page says to give it to a driver: under eventlet, off the hub."""
    if not patched():
        return binding
    from eventlet import tpool

    return tpool.Proxy(binding)


@pytest.fixture
def page(monkeypatch):
    """Return a module of the page by its name."""

    def load(name):
        spec = importlib.util.spec_from_file_location(name, SOURCE / f'{name}.py')
        module = importlib.util.module_from_spec(spec)
        # Its parts import each other.
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def threads():
    return executors.NativeThreads()
