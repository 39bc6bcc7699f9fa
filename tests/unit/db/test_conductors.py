# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import datetime

from migrator.db.cleanups import Cleanup
from migrator.db.migrations import Write
from tests.unit.db import conftest


def test_an_incarnation_lives_until_its_lease_ends_by_the_databases_clock(scene: conftest.Scene) -> None:
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


def test_a_retired_incarnation_ends_at_once_and_for_ever(scene: conftest.Scene) -> None:
    one = scene.conductor()
    scene.database.conductors.retire(one)
    assert scene.database.conductors.server_of(one) is None
    assert not scene.database.conductors.renew(one, 15)


def test_old_incarnations_are_deleted_unless_work_in_progress_names_them(scene: conftest.Scene) -> None:
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


def test_two_incarnations_of_one_server_have_separate_leases(scene: conftest.Scene) -> None:
    first, second = scene.conductor('same'), scene.conductor('same')
    scene.database.conductors.retire(first)
    assert scene.database.conductors.server_of(second) == 'same'


def test_a_retired_server_is_down_unless_another_incarnation_lives(scene: conftest.Scene) -> None:
    first, second = scene.conductor('same'), scene.conductor('same')
    scene.database.services.report('same', 'nova-conductor', 4)
    scene.database.services.report('same', 'nova-compute', 4)

    def up() -> list[str]:
        return [one.binary for one in scene.database.services.list() if one.is_up(scene.clock.now(), 60)]

    scene.database.conductors.retire(first, 'same')
    assert up() == ['nova-conductor', 'nova-compute']
    scene.database.conductors.retire(second, 'same')
    assert up() == ['nova-compute']


def test_every_incarnation_is_listed_latest_lease_first(scene: conftest.Scene) -> None:
    one = scene.conductor('one', lease=15)
    two = scene.conductor('two', lease=30)
    found = scene.database.conductors.list()
    assert [(one.id, one.server) for one in found] == [(two, 'two'), (one, 'one')]
    assert found[1].lease_until == conftest.START + datetime.timedelta(seconds=15)
    scene.database.conductors.retire(two)
    assert [one.server for one in scene.database.conductors.list()] == ['one', 'two']
