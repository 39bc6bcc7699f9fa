# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import datetime

import pytest
import sqlalchemy as sa
from oslo_db import exception as db_exception

from migrator import exception
from migrator.db import models
from migrator.db.cleanups import Cleanup
from migrator.db.migrations import Write
from migrator.objects import protocol
from tests import work
from tests.unit.db import conftest

Scene = conftest.Scene


class TestReports:
    def test_a_first_report_creates_a_row_and_the_next_changes_it(self, scene: Scene) -> None:
        scene.database.services.report('host1', 'nova-compute', 4, 'boot')
        first = scene.database.services.get_compute('host1')
        scene.clock.seconds = 10
        scene.database.services.report('host1', 'nova-compute', 5)
        second = scene.database.services.get_compute('host1')
        assert (second.id, second.uuid, second.version, second.boot_id) == (first.id, first.uuid, 5, 'boot')
        assert second.last_seen_up - first.last_seen_up == datetime.timedelta(seconds=10)

    def test_boot_has_its_own_kernel_and_one_that_reports_none_has_none(self, scene: Scene) -> None:
        services, before = scene.database.services, None
        for boot, kernel in (('first', 'old'), ('second', 'new'), ('third', None)):
            report = protocol.HostReport(host='host1', boot_id=boot, version=4, kernel=kernel, replaces=before)
            scene.database.migrations.begin_boot(report, services)
            assert services.get_compute('host1').kernel == kernel
            before = boot

    def test_a_note_that_providers_are_placed_is_written_again_after_a_deadlock(self, scene: Scene) -> None:
        scene.host('host1')
        (node,) = scene.database.services.nodes_to_place()
        deadlocks = [db_exception.DBDeadlock()]

        def boundary(_what: str) -> None:
            if deadlocks:
                raise deadlocks.pop()

        scene.database.engine.boundary = boundary
        assert scene.database.services.note_placed(node)
        assert scene.database.services.nodes_to_place() == []

    def test_a_heartbeat_counts_only_in_the_registered_boot(self, scene: Scene) -> None:
        boot = scene.host('host1')
        scene.clock.seconds = 10
        assert scene.database.services.heartbeats({'host1': 'an earlier boot'}, 0.0) == {'host1'}
        assert scene.database.services.get_compute('host1').last_seen_up == conftest.START
        assert scene.database.services.heartbeats({'host1': boot}, 0.0) == set()
        assert scene.database.services.get_compute('host1').last_seen_up == scene.clock.now()
        assert scene.database.services.heartbeats({'unknown': boot}, 0.0) == {'unknown'}

    def test_a_stopped_service_is_down_until_it_reports_again(self, scene: Scene) -> None:
        boot = scene.host('host1')
        services, begin_stop = scene.database.services, scene.database.migrations.begin_stop

        def is_up() -> bool:
            return services.get_compute('host1').is_up(scene.clock.now(), 60)

        begin_stop('host1', 'an earlier boot', [], services)
        assert is_up()
        scene.clock.seconds = 10
        begin_stop('host1', boot, [], services)
        assert not is_up()
        assert services.get_compute('host1').updated_at == scene.clock.now(), 'when it stopped is known'
        assert services.heartbeats({'host1': boot}, 0.0) == {'host1'}, 'it was sent before'
        assert not is_up()
        services.report('host1', 'nova-compute', 4, 'the next boot')
        assert is_up()

    def test_one_host_may_have_services_of_several_kinds(self, scene: Scene) -> None:
        scene.database.services.report('host1', 'nova-compute', 4)
        scene.database.services.report('host1', 'nova-conductor', 4)
        assert len(scene.database.services.list(host='host1')) == 2
        assert [one.binary for one in scene.database.services.list(binary='nova-conductor')] == ['nova-conductor']

    def test_a_missing_service_is_not_found(self, scene: Scene) -> None:
        scene.database.services.report('host1', 'nova-conductor', 4)
        for error, act in (
            (exception.ServiceNotFound, lambda: scene.database.services.get(4711)),
            (exception.ServiceNotFound, lambda: scene.database.services.get('nobody')),
            (exception.ComputeHostNotFound, lambda: scene.database.services.get_compute('host1')),
            (exception.HypervisorNotFound, lambda: scene.database.services.get_node(4711)),
        ):
            with pytest.raises(error):
                act()

    def test_update_changes_the_columns_of_the_operator(self, scene: Scene) -> None:
        scene.host('host1')
        service = scene.database.services.get_compute('host1')
        scene.database.services.update(service.id, disabled=True, disabled_reason='disk', forced_down=True)
        found = scene.database.services.get(service.uuid)
        assert (found.disabled, found.disabled_reason, found.forced_down) == (True, 'disk', True)
        scene.host('host1')
        assert scene.database.services.get(service.uuid).forced_down, 'a start does not take the word back'


class TestNodes:
    def test_a_node_is_read_with_its_tree_and_replaced_at_the_next_start(self, scene: Scene) -> None:
        scene.host('host1')
        first = scene.database.services.list_nodes()
        scene.host('host1')
        second = scene.database.services.list_nodes()
        assert [node.id for node in first] == [node.id for node in second]
        assert scene.database.services.get_node(second[0].uuid) == second[0]

    def test_only_the_hosts_of_the_wanted_providers_are_read(self, scene: Scene) -> None:
        for host in ('host1', 'host2', 'host3'):
            scene.host(host)
        roots = scene.database.services.roots()
        wanted = [uuid for uuid, host in roots.items() if host != 'host2']
        assert sorted(roots.values()) == ['host1', 'host2', 'host3']
        assert scene.database.services.roots([*wanted, scene.uuid()]) == {uuid: roots[uuid] for uuid in wanted}

    def test_pages(self, scene: Scene) -> None:
        for number in range(3):
            scene.host(f'host{number}')
        first = scene.database.services.list_nodes(limit=2)
        rest = scene.database.services.list_nodes(limit=2, marker=first[-1].uuid)
        assert [node.host for node in [*first, *rest]] == ['host0', 'host1', 'host2']
        with pytest.raises(exception.MarkerNotFound):
            scene.database.services.list_nodes(marker='nobody')


class TestPlaces:
    def test_inbound_counts_migrations_in_progress_to_each_host(self, scene: Scene) -> None:
        moving = scene.owned()
        scene.database.migrations.commit(moving, Write(fields={'status': 'preparing', 'dest_compute': 'host2'}))
        scene.owned()
        ended = scene.owned()
        scene.database.migrations.commit(ended, Write(fields={'status': 'failed', 'dest_compute': 'host2'}))
        assert scene.database.services.inbound() == {'host2': (1, 1)}

    def test_inbound_costs_the_same_after_many_migrations(self, scene: Scene) -> None:
        engine, table = scene.database.engine, models.MIGRATIONS
        moving = scene.owned()
        scene.database.migrations.commit(moving, Write(fields={'status': 'preparing', 'dest_compute': 'host2'}))
        with work.counted(engine) as before:
            scene.database.services.inbound()
        with engine.writer() as session:
            row = dict(session.execute(sa.select(table)).mappings().one())
            row |= {'in_progress_instance_uuid': None, 'status': 'completed'}
            del row['id'], row['changed_at']
            session.execute(sa.insert(table), [row | {'uuid': scene.uuid()} for _ in range(200)])
        with work.counted(engine) as after:
            assert scene.database.services.inbound() == {'host2': (1, 1)}
        assert not before.grows_to(after)

    def test_a_place_shows_a_deferred_cleanup_of_the_instance(self, scene: Scene) -> None:

        scene.host('host1')
        scene.host('host2')
        known = scene.owned()
        cleanup = Cleanup(
            host='host1', migration_uuid=known.uuid, instance_uuid=known.instance_uuid, step='post', reason='down',
            epoch=1,
        )  # fmt: skip
        scene.database.migrations.commit(known, Write(cleanups=[cleanup]))
        has_cleanup = {place.host: place.has_cleanup for place in scene.database.services.places(known.instance_uuid)}
        assert has_cleanup == {'host1': True, 'host2': False}
        assert not any(place.has_cleanup for place in scene.database.services.places('another'))

    def test_places_are_filtered_by_host_or_by_roots(self, scene: Scene) -> None:
        scene.host('host1')
        scene.host('host2')
        scene.host('without', node=False)
        everything = scene.database.services.places('anyone')
        assert [place.host for place in everything] == ['host1', 'host2']
        assert scene.database.services.places('anyone', host='host2') == [everything[1]]
        assert scene.database.services.places('anyone', uuids=[everything[0].uuid]) == [everything[0]]
        assert scene.database.services.places('anyone', uuids=[]) == []
        assert scene.database.services.places('anyone', host='nowhere') == []


def test_an_boot_lives_until_its_lease_ends_by_the_databases_clock(scene: conftest.Scene) -> None:
    one = scene.conductor('one', lease=15)
    scene.clock.seconds = 14.9
    assert scene.database.conductors.server_of(one) == 'one'
    scene.clock.seconds = 15
    assert scene.database.conductors.server_of(one) is None


def test_a_renewal_extends_the_lease_from_now(scene: conftest.Scene) -> None:
    one = scene.conductor(lease=15)
    scene.clock.seconds = 10
    assert scene.database.conductors.renew(one, 15)
    scene.clock.seconds = 24.9
    assert scene.database.conductors.server_of(one) == 'conductor1'


def test_an_expired_lease_cannot_be_renewed(scene: conftest.Scene) -> None:
    one = scene.conductor(lease=15)
    scene.clock.seconds = 15
    assert not scene.database.conductors.renew(one, 15)
    assert scene.database.conductors.server_of(one) is None


def test_an_unregistered_conductor_cannot_renew(scene: conftest.Scene) -> None:
    assert not scene.database.conductors.renew('nobody', 15)
    assert scene.database.conductors.server_of('nobody') is None


def test_a_retired_boot_ends_at_once_and_for_ever(scene: conftest.Scene) -> None:
    one = scene.conductor()
    scene.database.conductors.retire(one)
    assert scene.database.conductors.server_of(one) is None
    assert not scene.database.conductors.renew(one, 15)


def test_old_boots_are_deleted_unless_work_in_progress_names_them(scene: conftest.Scene) -> None:
    month = 30 * 24 * 3600
    _idle, busy, owing, had = (scene.conductor(name, lease=15) for name in ('idle', 'busy', 'owing', 'had'))
    scene.owned(busy)
    ended = scene.owned(had)
    for owner, known in ((owing, scene.owned(owing)), (had, ended)):
        cleanup = Cleanup(
            host='host1', migration_uuid=known.uuid, instance_uuid=known.instance_uuid, step='post', reason='down',
            epoch=1, owner=owner,
        )  # fmt: skip
        cleanups = [cleanup] if owner == owing else []
        known, _ = scene.database.migrations.commit(known, Write(fields={'status': 'preparing'}, cleanups=cleanups))
        scene.database.migrations.commit(known, Write(fields={'status': 'failed'}))

    def left() -> set[str]:
        return {one.server for one in scene.database.conductors.list()}

    scene.clock.seconds = 15 + month - 1
    scene.conductor('almost a month later')
    assert left() == {'idle', 'busy', 'owing', 'had', 'almost a month later'}
    scene.clock.seconds = 15 + month + 1
    scene.conductor('a month later')
    assert left() == {'busy', 'owing', 'almost a month later', 'a month later'}


def test_two_boots_of_one_server_have_separate_leases(scene: conftest.Scene) -> None:
    first, second = scene.conductor('same'), scene.conductor('same')
    scene.database.conductors.retire(first)
    assert scene.database.conductors.server_of(second) == 'same'


def test_a_retired_server_is_down_unless_another_boot_lives(scene: conftest.Scene) -> None:
    first, second = scene.conductor('same'), scene.conductor('same')
    scene.database.services.report('same', 'nova-conductor', 4)
    scene.database.services.report('same', 'nova-compute', 4)

    def up() -> list[str]:
        return [one.binary for one in scene.database.services.list() if one.is_up(scene.clock.now(), 60)]

    scene.database.conductors.retire(first, 'same')
    assert up() == ['nova-conductor', 'nova-compute']
    scene.database.conductors.retire(second, 'same')
    assert up() == ['nova-compute']


def test_every_boot_is_listed_latest_lease_first(scene: conftest.Scene) -> None:
    one = scene.conductor('one', lease=15)
    two = scene.conductor('two', lease=30)
    found = scene.database.conductors.list()
    assert [(one.id, one.server) for one in found] == [(two, 'two'), (one, 'one')]
    assert found[1].lease_until == conftest.START + datetime.timedelta(seconds=15)
    scene.database.conductors.retire(two)
    assert [one.server for one in scene.database.conductors.list()] == ['one', 'two']
