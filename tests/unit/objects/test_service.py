# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import datetime

import pytest

from migrator.objects import service

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize(('unreachable', 'up'), [(0, True), (60, True), (60.001, False), (-30, True), (-61, False)])
def test_conductor_is_up_while_its_last_write_is_within_the_lease(unreachable: float, up: bool) -> None:
    seen = NOW - datetime.timedelta(seconds=unreachable)
    assert service.Service(uuid='s', host='h', binary='nova-conductor', last_seen_up=seen).is_up(NOW, 60) == up


def test_compute_is_up_until_a_conductor_declares_it_down() -> None:
    seen = NOW - datetime.timedelta(days=1)
    assert service.Service(uuid='s', host='h', last_seen_up=seen).is_up(NOW, 60)
    assert not service.Service(uuid='s', host='h', last_seen_up=seen, down_since=NOW).is_up(NOW, 60)


def test_forced_down_service_is_down_despite_a_recent_report() -> None:
    assert not service.Service(uuid='s', host='h', last_seen_up=NOW, forced_down=True).is_up(NOW, 60)


def test_service_that_never_reported_is_down_and_unreachable() -> None:
    assert not service.Service(uuid='s', host='h').is_up(NOW, 60)
    assert service.Service(uuid='s', host='h').is_unreachable(NOW, 60)


def test_stopped_service_is_down_at_once_and_unreachable_later() -> None:
    stopped = service.Service(uuid='s', host='h', last_seen_up=None, updated_at=NOW)
    assert not stopped.is_up(NOW, 60)
    assert not stopped.is_unreachable(NOW + datetime.timedelta(seconds=60), 60)
    assert stopped.is_unreachable(NOW + datetime.timedelta(seconds=61), 60)


def test_disabled_service_is_up() -> None:
    assert service.Service(uuid='s', host='h', last_seen_up=NOW, disabled=True).is_up(NOW, 60)


def test_service_versions_are_one_list_without_gaps_and_a_remark_each() -> None:
    assert list(service.SERVICE_VERSIONS) == list(range(1, service.CURRENT_VERSION + 1))
    assert all(service.SERVICE_VERSIONS.values())


def test_the_total_of_a_class_is_summed_over_the_whole_tree() -> None:
    providers = [
        service.ProviderInventory(uuid='root', name='root', inventory={'VCPU': {'total': 8}}),
        service.ProviderInventory(
            uuid='numa0', name='numa0', parent_uuid='root', inventory={'MEMORY_MB': {'total': 512}}
        ),
        service.ProviderInventory(
            uuid='numa1', name='numa1', parent_uuid='root', inventory={'MEMORY_MB': {'total': 256}}
        ),
    ]
    node = service.ComputeNode(uuid='root', host='h', node='h', providers=providers)
    assert (node.total('VCPU'), node.total('MEMORY_MB'), node.total('DISK_GB')) == (8, 768, 0)
