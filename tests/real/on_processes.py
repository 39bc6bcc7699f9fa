# SPDX-License-Identifier: Apache-2.0

"""Runs the functional tests on processes: ``pytest -p tests.real.on_processes tests/functional``.

The very same files; ``cloud`` is then a :class:`tests.real.cloud.ProcessCloud`. One site serves test after test, as
long as they want it alike, and is emptied between them. A test that is marked ``simulated`` says why it stays behind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.real import cloud as clouds
from tests.real.servers import placement, postgresql, process, rabbitmq
from tests.real.site import Shape, Site

pytest_plugins = ['tests.real.plugin']

#: What the marker ``cloud`` may say that is not a knob of the hypervisors.
_NO_KNOBS = frozenset({'hosts', 'options', 'seed'})


def shape_of(item: Any) -> Shape:
    """Return what a test wants its site to be."""
    marker = item.get_closest_marker('cloud')
    said = marker.kwargs if marker else {}
    return Shape(hosts=said.get('hosts', 3), options=tuple(sorted(said.get('options', {}).items())))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, left = [], []
    for item in items:
        (kept if _can(item) else left).append(item)
    config.hook.pytest_deselected(items=left)
    # those that want the same site one after the other
    items[:] = sorted(kept, key=lambda item: (shape_of(item) != Shape(), str(shape_of(item))))


def _can(item: Any) -> bool:
    if 'cloud' not in item.fixturenames or item.get_closest_marker('simulated') or item.get_closest_marker('not_quiet'):
        return False
    seeds = item.get_closest_marker('seeds')
    # the schedule is the system's: once is enough
    return seeds is None or item.callspec.params['seed'] == seeds.args[0]


class Clouds:
    """The cloud that is kept from test to test.

    :ivar started: how many sites were started.
    """

    def __init__(self, *servers: Any) -> None:
        self._servers = servers
        self._cloud: clouds.ProcessCloud | None = None
        self.started = 0

    @contextlib.contextmanager
    def one(self, item: Any, quiet: bool, allowed: set[str]) -> Iterator[clouds.ProcessCloud]:
        """Give a test its cloud, and judge what it leaves."""
        marker = item.get_closest_marker('cloud')
        knobs = {name: value for name, value in (marker.kwargs if marker else {}).items() if name not in _NO_KNOBS}
        cloud = self._get(shape_of(item))
        before = {
            name: {knob: getattr(each, knob) for knob in clouds.far_world.KNOBS}
            for name, each in cloud.world.hypervisors.items()
        }
        cloud.begin(knobs)
        services = set(cloud.site.services)
        ordered = False
        try:
            yield cloud
            cloud.come_to_rest()
            cloud.judge(allowed)
            for name, values in before.items():
                for knob, value in values.items():
                    setattr(cloud.world.hypervisors[name], knob, value)
            cloud.forget()
            ordered = set(cloud.site.services) == services
        finally:
            # what a failure left would be the next test's trouble
            if not ordered:
                self.end()

    def _get(self, shape: Shape) -> clouds.ProcessCloud:
        if self._cloud is not None and self._cloud.site.shape != shape:
            self.end()
        if self._cloud is None:
            site = Site(*self._servers[:1], shape, *self._servers[1:])
            site.start()
            self.started += 1
            self._cloud = clouds.ProcessCloud(site)
        return self._cloud

    def end(self) -> None:
        """End the cloud that there is."""
        cloud, self._cloud = self._cloud, None
        if cloud is not None:
            cloud.site.end()
            # the next site has hosts of the same names in the same Placement
            cloud.clear_allocations()
            cloud.close()


@pytest.fixture(scope='session')
def process_clouds(
    workspace: process.Workspace,
    rabbitmq: rabbitmq.RabbitMQ,
    postgresql: postgresql.PostgreSQL,
    placement_http: placement.Placement,
) -> Iterator[Clouds]:
    """The cloud of the session."""
    made = Clouds(workspace, rabbitmq, postgresql, placement_http)
    yield made
    made.end()
