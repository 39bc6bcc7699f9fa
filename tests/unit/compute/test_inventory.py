# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import logging

import pytest

from migrator.objects import ComputeNode
from migrator.virt import driver
from tests.unit.compute import scene as scene_module

Scene = scene_module.Scene


def test_report_has_inventory_tree_and_current_limit(scene: Scene) -> None:
    host = scene.host()
    host.conf.set_override('max_concurrent_live_migrations', 4)
    host.manager.reset()
    report = host.manager.registration.inventory.report()
    assert report.limit == 4
    assert report.guests == []
    assert isinstance(report.node, ComputeNode)
    assert report.node.uuid == driver.node_uuid('alpha')
    assert report.node.total('VCPU') == 16


def test_heartbeat_goes_on_while_driver_hangs_or_fails(scene: Scene) -> None:
    host = scene.host()
    scene.alpha.faults.fail('get_node')
    scene.alpha.faults.stall('get_node')
    scene.simulation.advance(100)
    assert len(host.events.beats) >= 8
    assert host.events.beats[-1].node is not None


def test_grown_inventory_is_in_the_next_heartbeats(scene: Scene) -> None:
    host = scene.host()
    scene.alpha.capacity.totals['VCPU'] = 32
    scene.simulation.advance(25)
    node = host.events.beats[-1].node
    assert isinstance(node, ComputeNode)
    assert node.total('VCPU') == 32


def levels_logged_for_hypervisor(caplog: pytest.LogCaptureFixture) -> list[str]:
    logged = [(record.levelname, record.getMessage()) for record in caplog.records]
    return [level for level, message in logged if message.startswith('Hypervisor') and 'host alpha' in message]


def test_repeated_driver_failure_logs_one_warning_and_one_recovery(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    host = scene.host()
    for _ in range(2):
        with caplog.at_level(logging.INFO):
            fault = scene.alpha.faults.fail('get_node', 'instances_path hangs', sticky=True)
            scene.simulation.advance(100)
            assert levels_logged_for_hypervisor(caplog) == ['WARNING']
            assert 'instances_path hangs' in caplog.text
            scene.alpha.faults.clear()
            scene.simulation.advance(25)
        assert fault.count > 5
        assert levels_logged_for_hypervisor(caplog) == ['WARNING', 'INFO']
        caplog.clear()
    assert all(beat.node is not None for beat in host.events.beats)


def test_hung_driver_has_one_query_and_one_warning_until_it_recovers(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    host = scene.host()
    stall = scene.alpha.faults.stall('get_node', sticky=True)
    with caplog.at_level(logging.INFO):
        scene.simulation.advance(300)
        assert host.manager._runner.pool.running == 1
        assert levels_logged_for_hypervisor(caplog) == ['WARNING']
        scene.alpha.faults.clear()
        scene.alpha.capacity.totals['VCPU'] = 32
        stall.release()
        scene.simulation.advance(25)
    assert levels_logged_for_hypervisor(caplog) == ['WARNING', 'INFO']
    node = host.events.beats[-1].node
    assert isinstance(node, ComputeNode)
    assert node.total('VCPU') == 32
