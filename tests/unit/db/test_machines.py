# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest

from migrator import exception
from migrator.db import machines
from migrator.objects import Service, protocol
from tests.unit.db import conftest

Scene = conftest.Scene


def register(scene: Scene, host: str, identity: str | None, boot_id: str = 'a boot') -> None:
    """Register a host as the conductor does."""
    database = scene.database
    known = {one.host: one.boot_id for one in database.services.list()}
    report = protocol.HostReport(host=host, boot_id=boot_id, version=3, identity=identity, replaces=known.get(host))
    try:
        database.migrations.begin_boot(report, database.services)
    except exception.MachineRefused as refused:
        database.machines.record_refusal(refused)
        raise


def service(scene: Scene, host: str) -> Service:
    return scene.database.services.get_compute(host)


def test_another_identity_under_a_known_name_changes_nothing_but_the_refusal(scene: Scene) -> None:
    register(scene, 'host1', 'one')
    before = service(scene, 'host1')
    scene.clock.seconds = 100
    with pytest.raises(exception.MachineRefused, match='identity one; this one has two'):
        register(scene, 'host1', 'two', 'its boot')
    after = service(scene, 'host1')
    assert (after.refused_host, after.refused_identity, after.refused_at) == ('host1', 'two', scene.clock.now())
    assert after.replace(refused_at=None, refused_host=None, refused_identity=None) == before
    register(scene, 'host1', 'one', 'the next boot')
    assert service(scene, 'host1').refused_at is None


def test_refusal_is_not_a_report_of_a_service_that_was_stopped(scene: Scene) -> None:
    register(scene, 'host1', 'one')
    scene.database.migrations.begin_stop('host1', 'a boot', [], scene.database.services)
    scene.clock.seconds = 100
    with pytest.raises(exception.MachineRefused):
        register(scene, 'host1', 'two')
    assert service(scene, 'host1').is_unreachable(scene.clock.now(), 60)


def test_known_identity_under_another_name_is_recorded_where_the_name_or_the_identity_is_known(scene: Scene) -> None:
    register(scene, 'host1', 'one')
    with pytest.raises(exception.MachineRefused, match='is registered as host1'):
        register(scene, 'host2', 'one')
    assert [one.host for one in scene.database.services.list()] == ['host1']
    assert service(scene, 'host1').refused_host == 'host2'
    register(scene, 'host2', 'two')
    with pytest.raises(exception.MachineRefused):
        register(scene, 'host2', 'one')
    assert (service(scene, 'host2').refused_host, service(scene, 'host2').refused_identity) == ('host2', 'one')


def test_identity_that_another_host_claims_at_the_same_moment_is_refused(scene: Scene) -> None:
    for host in ('host1', 'host2'):
        register(scene, host, None)
    register(scene, 'host1', 'one')
    late = protocol.HostReport(host='host2', boot_id='a boot', version=3, identity='one')
    with pytest.raises(exception.MachineRefused, match='at this moment'):  # noqa: SIM117 -- it ends the transaction
        with scene.database.engine.writer() as session:
            machines.claim(session, late)
    assert service(scene, 'host2').identity is None


def test_identity_that_is_longer_than_the_column_is_that_of_the_same_machine(scene: Scene) -> None:
    for number in range(2):
        register(scene, 'host1', 'x' * 300, f'boot {number}')
    assert service(scene, 'host1').boot_id == 'boot 1'


def test_machine_that_was_refused_before_is_news_only_once(scene: Scene) -> None:
    register(scene, 'host1', 'one')
    refused = exception.MachineRefused(host='host1', identity='two', reason='planted', shown_at='host1')
    assert [scene.database.machines.record_refusal(refused) for _ in range(2)] == [True, False]
