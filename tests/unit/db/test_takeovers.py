# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import concurrent.futures

import pytest
import sqlalchemy as sa

from migrator.db import conductors, models
from migrator.db.migrations import Write
from tests.unit.db.conftest import Scene


class Site:
    """A scene with conductors; each is named by its RPC server."""

    def __init__(self, scene: Scene, conductors: int = 2, lease: float = 100.0) -> None:
        self.scene = scene
        self.ids = {f'c{number}': scene.conductor(f'c{number}', lease) for number in range(1, conductors + 1)}

    def accept(self, *hosts: str) -> list[str]:
        """Accept a migration from each host, and return their uuids."""
        return [self.scene.migration(self.scene.instance(host)).uuid for host in hosts]

    def adopt(self, server: str, *uuids: str) -> conductors.Taken | None:
        """Let a conductor find the owner of migrations of one source."""
        return self.scene.database.takeovers.adopt(uuids, self.ids[server], server)

    def owners(self, *uuids: str) -> list[str | None]:
        """Return the servers of the owners of some migrations."""
        servers = {id_: server for server, id_ in self.ids.items()}
        return [servers.get(self.scene.database.migrations.get(uuid).owner or '') for uuid in uuids]


@pytest.fixture
def site(scene: Scene) -> Site:
    return Site(scene)


def test_first_migration_of_a_source_goes_to_its_receiver(site: Site) -> None:
    (uuid,) = site.accept('host1')
    taken = site.adopt('c2', uuid)
    assert taken is not None
    assert taken.server is None
    assert [owned.migration.uuid for owned in taken.owned] == [uuid]
    assert site.owners(uuid) == ['c2']


def test_further_migration_of_a_source_goes_to_its_holder(site: Site) -> None:
    first, second = site.accept('host1', 'host1')
    site.adopt('c2', first)
    assert site.adopt('c1', second) == conductors.Taken([], 'c2')
    row = site.scene.database.migrations.get(second)
    assert (site.owners(second), row.epoch) == (['c2'], 1)
    (owned,) = [site.scene.database.migrations.load(second, site.ids['c2'])]
    assert owned is not None
    assert owned.entries == [], 'the owner needs no log of what it has not begun'


def test_new_source_goes_to_the_conductor_with_the_fewest_sources(scene: Scene) -> None:
    site = Site(scene, conductors=3)
    uuids = site.accept('host1', 'host1', 'host2', 'host3', 'host4')
    for uuid in uuids:
        site.adopt('c1', uuid)
    first, second, *others = site.owners(*uuids)
    assert first == second == 'c1'
    assert sorted(others[:2]) == ['c2', 'c3'], 'the number of sources counts, and not that of their migrations'
    assert others[2] == 'c1', 'the receiver is preferred to others with as few'
    assert scene.database.takeovers.sources() == {site.ids['c1']: 2, site.ids['c2']: 1, site.ids['c3']: 1}


def test_source_with_nothing_in_progress_has_no_holder(site: Site) -> None:
    first, second, third = site.accept('host1', 'host2', 'host1')
    site.adopt('c1', first)
    site.adopt('c1', second)
    assert site.owners(first, second) == ['c1', 'c2']
    known = site.scene.database.migrations.get(first)
    site.scene.database.migrations.commit(known, Write(fields={'status': 'failed'}))
    (other,) = site.accept('host3')
    site.adopt('c1', other)
    site.adopt('c2', third)
    assert site.owners(other, third) == ['c1', 'c2']


def test_orphans_of_a_source_are_taken_together(site: Site) -> None:
    uuids = site.accept('host1', 'host1', 'host2', 'host1')
    for uuid in uuids[:3]:
        site.adopt('c1', uuid)
    site.scene.database.conductors.retire(site.ids['c1'])
    groups = site.scene.database.takeovers.orphans()
    assert groups == [[uuids[0], uuids[1], uuids[3]]], 'oldest first, and host2 belongs to c2'
    taken = site.adopt('c2', *groups[0])
    assert taken is not None
    assert [(owned.migration.uuid, owned.migration.epoch) for owned in taken.owned] == [
        (uuids[0], 2), (uuids[1], 2), (uuids[3], 1),
    ]  # fmt: skip


def test_orphans_are_listed_in_groups_of_a_limited_size(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conductors, 'AT_ONCE', 2)
    one, two, three, four = site.accept('host1', 'host2', 'host1', 'host1')
    assert site.scene.database.takeovers.orphans() == [[one, three], [four], [two]]


def test_holder_whose_lease_has_ended_holds_nothing(site: Site) -> None:
    first, second = site.accept('host1', 'host1')
    site.adopt('c1', first)
    site.scene.database.conductors.retire(site.ids['c1'])
    site.adopt('c2', second)
    assert site.owners(first, second) == ['c1', 'c2']


def test_holder_that_cannot_reach_the_broker_gets_nothing_more(site: Site) -> None:
    first, second, third = site.accept('host1', 'host1', 'host2')
    site.adopt('c1', first)
    assert site.scene.database.conductors.renew(site.ids['c1'], 100, broker_away=3)
    site.adopt('c2', second)
    site.adopt('c2', third)
    assert site.owners(first, second, third) == ['c1', 'c2', 'c2']


def test_conductor_that_cannot_reach_the_broker_lets_others_have_what_its_sweep_finds(site: Site) -> None:
    (uuid,) = site.accept('host1')
    assert site.scene.database.conductors.renew(site.ids['c1'], 100, broker_away=3)
    assert site.adopt('c1', uuid) == conductors.Taken([], 'c2')


def test_only_conductor_takes_everything_even_without_the_broker(scene: Scene) -> None:
    site = Site(scene, conductors=1)
    (uuid,) = site.accept('host1')
    assert scene.database.conductors.renew(site.ids['c1'], 100, broker_away=3)
    site.adopt('c1', uuid)
    assert site.owners(uuid) == ['c1']


def test_earlier_boot_of_the_receiver_holds_nothing(site: Site) -> None:
    first, second = site.accept('host1', 'host1')
    site.adopt('c1', first)
    site.scene.database.conductors.retire(site.ids['c2'])
    site.ids['c1'] = site.scene.conductor('c1', 100)
    site.adopt('c1', second)
    assert site.owners(second) == ['c1']


def test_source_without_a_service_is_held_too(site: Site) -> None:
    with site.scene.database.engine.writer() as session:
        session.execute(sa.delete(models.SERVICES))
    first, second = site.accept('host1', 'host1')
    site.adopt('c1', first)
    site.adopt('c2', second)
    assert site.owners(first, second) == ['c1', 'c1']


def test_nothing_is_taken_from_a_living_owner(site: Site) -> None:
    (uuid,) = site.accept('host1')
    assert site.adopt('c1', uuid) is not None
    assert site.adopt('c1', uuid) is None
    assert site.adopt('c2', uuid) is None


def test_conductors_that_receive_the_first_migrations_of_a_source_at_once_agree(scene: Scene) -> None:
    scene.host('host1')
    site = Site(scene, conductors=8)
    uuids = site.accept(*['host1'] * 8)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(site.adopt, site.ids, uuids))
    assert len(set(site.owners(*uuids))) == 1
