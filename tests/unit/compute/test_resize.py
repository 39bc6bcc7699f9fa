# SPDX-License-Identifier: Apache-2.0

"""What a host does with the flavor of a resize."""

from __future__ import annotations

from typing import Any

import pytest

from migrator.objects import Flavor, LiveMigrateData
from migrator.testing.hypervisor.driver import FakeDriver
from tests.unit.compute import scene as scene_module

Scene = scene_module.Scene
LARGE = Flavor(name='large', vcpus=2, memory_mb=2048)
CHECKS = [('alpha', 'check_can_migrate_source'), ('beta', 'check_can_migrate_destination')]


def check(scene: Scene, host: str, step: str, **fields: Any) -> Any:
    return scene.host(host).report(step, arguments={'migrate_data': LiveMigrateData(**fields), 'wait': 1.0})


@pytest.fixture(autouse=True)
def guest(scene: Scene) -> None:
    scene.alpha.spawn(scene_module.instance())


@pytest.mark.parametrize(('host', 'step'), CHECKS)
def test_driver_that_resizes_no_guest_is_not_asked_to(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, host: str, step: str
) -> None:
    made = scene.host(host)
    monkeypatch.setattr(made.driver, 'resizes', False)
    report = made.report(step, arguments={'migrate_data': LiveMigrateData(new_flavor=LARGE), 'wait': 1.0})
    assert report.state == 'failed'
    assert f'{host} cannot resize guests, since its driver FakeDriver does not' in report.reason
    assert made.report(step, epoch=2, arguments={'migrate_data': LiveMigrateData(), 'wait': 1.0}).state == 'done'


@pytest.mark.parametrize(('host', 'step'), CHECKS)
def test_driver_that_loses_the_flavor_is_named(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, host: str, step: str
) -> None:
    monkeypatch.setattr(FakeDriver, step, lambda self, instance, data: data.replace(new_flavor=None))
    report = check(scene, host, step, new_flavor=LARGE)
    assert report.state == 'failed'
    assert f'{step} returned None as new_flavor: correct the driver' in report.reason
