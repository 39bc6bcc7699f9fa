# SPDX-License-Identifier: Apache-2.0

"""Marks what stands on real servers; they are in :mod:`tests.real.plugin`."""

from __future__ import annotations

import pathlib

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin('tests.real.plugin')


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = pathlib.Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.real)
