# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import datetime
from typing import Any

import pytest

from migrator import exception
from migrator.context import admin_context
from migrator.objects import COMPUTE_BINARY, CURRENT_VERSION, Flavor
from tests.unit.db import conftest

Scene = conftest.Scene


def test_an_instance_is_read_as_it_was_written(scene: Scene) -> None:
    flavor = Flavor(name='big', vcpus=4, extra_specs={'resources:PGPU': '1'})
    stored = scene.instance(flavor=flavor, locked_by='admin', locked_reason='moving house')
    found = scene.database.instances.get(stored.uuid)
    assert found == stored
    assert found.flavor == flavor
    assert (found.locked, found.vm_state, found.task_state) == (True, 'active', None)
    assert found.created_at == found.launched_at == conftest.START
    assert found.id > 0


def test_each_flavor_is_listed_once_as_the_newest_instance_has_it(scene: Scene) -> None:
    small, adopted = Flavor(name='small', extra_specs={'a': 'é'}), Flavor(name='adopted', memory_mb=1)
    found = [scene.instance(flavor=flavor) for flavor in (adopted, small, adopted.replace(memory_mb=2), small)]
    other = scene.instance(flavor=adopted, project_id='other')
    flavors = scene.database.instances.flavors
    assert flavors() == [adopted, small]
    assert flavors(found[0].project_id) == [adopted.replace(memory_mb=2), small]
    assert flavors('unknown') == []
    wanted = {one.uuid: one.flavor for one in (*found, other)}
    assert scene.database.instances.flavors_of([*wanted, 'unknown']) == wanted


def test_a_uuid_is_taken_once(scene: Scene) -> None:
    stored = scene.instance(name='web')
    scene.clock.seconds += 40
    said = r'already exists: it is web on host1, active, created 40 s ago; delete it first, or keep it as it is\.'
    with pytest.raises(exception.InstanceExists, match=said):
        scene.instance(uuid=stored.uuid)


def test_a_missing_instance_is_not_found(scene: Scene) -> None:
    for act in (
        lambda: scene.database.instances.get('nobody'),
        lambda: scene.database.instances.update('nobody', vm_state='error'),
        lambda: scene.database.instances.delete('nobody'),
    ):
        with pytest.raises(exception.InstanceNotFound):
            act()


def test_an_update_changes_the_named_columns_and_updated_at(scene: Scene) -> None:
    stored = scene.instance()
    scene.clock.seconds = 5
    scene.database.instances.update(stored.uuid, vm_state='paused')
    found = scene.database.instances.get(stored.uuid)
    assert found == stored.replace(vm_state='paused', updated_at=conftest.START + datetime.timedelta(seconds=5))


def test_delete_during_a_migration_is_refused(scene: Scene) -> None:
    stored = scene.instance()
    migration = scene.migration(stored)
    with pytest.raises(exception.MigrationInProgress):
        scene.database.instances.delete(stored.uuid)
    owned = scene.adopt(migration.uuid, scene.conductor())
    from migrator.db.migrations import Write

    scene.database.migrations.commit(owned.migration, Write(fields={'status': 'failed'}))
    scene.database.instances.delete(stored.uuid)
    with pytest.raises(exception.InstanceNotFound):
        scene.database.instances.get(stored.uuid)


def test_pages_neither_skip_nor_repeat_and_the_newest_come_first(scene: Scene) -> None:
    made = [scene.instance().uuid for _ in range(5)]
    pages, marker = [], None
    while page := scene.database.instances.list(limit=2, marker=marker):
        pages += [one.uuid for one in page]
        marker = page[-1].uuid
    assert pages == list(reversed(made))
    with pytest.raises(exception.MarkerNotFound):
        scene.database.instances.list(marker='nobody')


def test_filters_are_equalities(scene: Scene) -> None:
    one, other = scene.instance('host1', name='a'), scene.instance('host2', name='b')
    scene.instance('host2', name='c')
    assert [found.uuid for found in scene.database.instances.list({'host': 'host1'})] == [one.uuid]
    both = scene.database.instances.list({'name': ['a', 'b']})
    assert {found.uuid for found in both} == {one.uuid, other.uuid}
    assert scene.database.instances.list({'host': 'host1', 'name': 'b'}) == []


def test_changes_since_compares_the_last_change(scene: Scene) -> None:
    one = scene.instance()
    scene.instance()
    scene.clock.seconds = 10
    scene.database.instances.update(one.uuid, power_state=4)
    since = conftest.START + datetime.timedelta(seconds=5)
    assert [found.uuid for found in scene.database.instances.list(changes_since=since)] == [one.uuid]


def test_begin_delete_stops_migrations_and_may_be_repeated(scene: Scene) -> None:
    stored = scene.instance()
    for _ in range(2):
        scene.database.instances.begin_delete(stored.uuid)
        assert scene.database.instances.get(stored.uuid).task_state == 'deleting'
    with pytest.raises(exception.InstanceInvalidState, match='deleting'):
        scene.migration(stored)
    scene.database.instances.delete(stored.uuid)
    with pytest.raises(exception.InstanceNotFound):
        scene.database.instances.begin_delete(stored.uuid)


def test_reset_of_an_unknown_instance_or_during_a_migration_is_refused(scene: Scene) -> None:
    stored = scene.instance()
    scene.migration(stored)
    with pytest.raises(exception.MigrationInProgress):
        scene.database.instances.reset_state(admin_context(), stored.uuid, 'error')
    assert scene.database.instances.get(stored.uuid).vm_state == 'active'
    assert 'resetState' not in {one.action for one in scene.database.actions.list(stored.uuid)}
    with pytest.raises(exception.InstanceNotFound):
        scene.database.instances.reset_state(admin_context(), scene.uuid(), 'error')


def test_begin_delete_during_a_migration_is_refused(scene: Scene) -> None:
    stored = scene.instance()
    scene.migration(stored)
    with pytest.raises(exception.MigrationInProgress):
        scene.database.instances.begin_delete(stored.uuid)
    assert scene.database.instances.get(stored.uuid).task_state == 'migrating'


class TestDefinitions:
    AGE = 3540.0

    @pytest.fixture(autouse=True)
    def hosts(self, scene: Scene) -> None:
        for host in ('host1', 'host2'):
            scene.database.services.report(host, COMPUTE_BINARY, CURRENT_VERSION, scene.uuid())

    def outdated(self, scene: Scene) -> dict[str, list[str]]:
        found = scene.database.definitions.outdated(3600, 10)
        return {host: list(guests) for host, guests in found.items()}

    def test_only_hosts_that_are_up_are_asked(self, scene: Scene) -> None:
        one, services = scene.instance(), scene.database.services
        services.update(services.get_compute('host1').id, forced_down=True)
        assert self.outdated(scene) == {}
        services.update(services.get_compute('host1').id, forced_down=False)
        services.report('host1', COMPUTE_BINARY, CURRENT_VERSION)
        assert self.outdated(scene) == {'host1': [one.uuid]}
        scene.clock.seconds += 61
        services.call_down(60)
        assert self.outdated(scene) == {}

    def test_a_stored_definition_is_asked_for_again_after_an_hour(self, scene: Scene) -> None:
        one = scene.instance()
        assert self.outdated(scene) == {'host1': [one.uuid]}
        scene.database.definitions.store('host1', {one.uuid: {'xml': 'old'}}, self.AGE)
        assert scene.database.definitions.get(one.uuid, 'host1') == {'xml': 'old'}
        scene.clock.seconds += 3500
        assert self.outdated(scene) == {}
        scene.clock.seconds += 200
        assert self.outdated(scene) == {'host1': [one.uuid]}

    def test_a_host_that_reports_none_is_asked_again_after_a_minute_and_the_last_one_is_kept(
        self, scene: Scene
    ) -> None:
        known, new = scene.instance(), scene.instance()
        scene.database.definitions.store('host1', {known.uuid: {'xml': 'old'}}, self.AGE)
        scene.database.definitions.store('host1', {known.uuid: {}, new.uuid: {}}, self.AGE)
        assert scene.database.definitions.get(known.uuid, 'host1') == {'xml': 'old'}
        assert scene.database.definitions.get(new.uuid, 'host1') == {}
        assert self.outdated(scene) == {}
        scene.clock.seconds += 70
        assert self.outdated(scene) == {'host1': [known.uuid, new.uuid]}
        scene.database.definitions.store('host1', {known.uuid: {'xml': 'new'}, new.uuid: {'xml': 'its'}}, self.AGE)
        assert scene.database.definitions.get(known.uuid, 'host1') == {'xml': 'new'}
        assert scene.database.definitions.get(new.uuid, 'host1') == {'xml': 'its'}
        assert self.outdated(scene) == {}

    def test_a_guest_is_not_asked_for_during_its_migration(self, scene: Scene) -> None:
        """Its host has set its autostart aside, so an evacuation would start it without."""
        one = scene.instance()
        scene.database.instances.update(one.uuid, task_state='migrating')
        assert self.outdated(scene) == {}
        scene.database.instances.update(one.uuid, task_state=None)
        assert self.outdated(scene) == {'host1': [one.uuid]}

    @pytest.mark.parametrize(
        ('changes', 'kept'),
        [
            ({'power_state': 4}, {'xml': 'new'}),
            ({'flavor': Flavor(name='large', vcpus=4)}, {'xml': 'old'}),
            ({'tenure': 7}, {'xml': 'old'}),
        ],
    )
    def test_definition_of_a_guest_whose_size_may_have_changed_since_it_was_asked_for_is_not_stored(
        self, scene: Scene, changes: dict[str, Any], kept: dict[str, str]
    ) -> None:
        one, stored = scene.instance(), scene.database.definitions
        asked = stored.outdated(3600, 10)['host1']
        stored.store('host1', {one.uuid: {'xml': 'old'}}, self.AGE, asked)
        scene.database.instances.update(one.uuid, **changes)
        stored.store('host1', {one.uuid: {'xml': 'new'}}, self.AGE, asked)
        assert stored.get(one.uuid, 'host1') == kept

    def test_the_definition_of_an_earlier_host_is_replaced(self, scene: Scene) -> None:
        one = scene.instance()
        scene.database.definitions.store('host1', {one.uuid: {'xml': 'old'}}, self.AGE)
        scene.database.definitions.store('host2', {one.uuid: {}}, self.AGE)
        assert scene.database.definitions.get(one.uuid, 'host1') == {}
