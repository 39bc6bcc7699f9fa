# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import datetime

from migrator.db.cleanups import Cleanup
from migrator.db.migrations import Write
from tests.unit.db import conftest


def test_a_life_is_alive_until_its_lease_runs_out_on_the_databases_clock(scene: conftest.Scene) -> None:
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


def test_a_lease_that_has_run_out_cannot_be_renewed(scene: conftest.Scene) -> None:
    one = scene.conductor(lease=15)
    scene.clock.seconds = 15
    assert not scene.database.conductors.renew(one, 15)
    assert scene.database.conductors.server_of(one) is None


def test_who_was_never_registered_cannot_renew(scene: conftest.Scene) -> None:
    assert not scene.database.conductors.renew('nobody', 15)
    assert scene.database.conductors.server_of('nobody') is None


def test_a_retired_life_is_over_at_once_and_for_ever(scene: conftest.Scene) -> None:
    one = scene.conductor()
    scene.database.conductors.retire(one)
    assert scene.database.conductors.server_of(one) is None
    assert not scene.database.conductors.renew(one, 15)


def test_lives_that_ended_long_ago_are_forgotten_unless_something_in_progress_names_them(scene: conftest.Scene) -> None:
    month = 30 * 24 * 3600
    _idle, busy, owing, had = (scene.conductor(name, lease=15) for name in ('idle', 'busy', 'owing', 'had'))
    scene.owned(busy)
    ended = scene.owned(had)
    for owner, known in ((owing, scene.owned(owing)), (had, ended)):
        cleanup = Cleanup(
            host='host1', migration_uuid=known.uuid, instance_uuid=known.instance_uuid, step='post', reason='down',
            epoch=1, owner=owner,
        )  # fmt: skip
        owed = [cleanup] if owner == owing else []
        known, _ = scene.database.migrations.commit(known, Write(fields={'status': 'preparing'}, cleanups=owed))
        scene.database.migrations.commit(known, Write(fields={'status': 'failed'}))

    def left() -> set[str]:
        return {life.server for life in scene.database.conductors.list()}

    scene.clock.seconds = 15 + month - 1
    scene.conductor('almost a month later')
    assert left() == {'idle', 'busy', 'owing', 'had', 'almost a month later'}
    scene.clock.seconds = 15 + month + 1
    scene.conductor('a month later')
    assert left() == {'busy', 'owing', 'almost a month later', 'a month later'}


def test_two_lives_of_one_server_have_leases_of_their_own(scene: conftest.Scene) -> None:
    first, second = scene.conductor('same'), scene.conductor('same')
    scene.database.conductors.retire(first)
    assert scene.database.conductors.server_of(second) == 'same'


def test_a_server_that_retires_is_down_unless_another_life_of_its_name_goes_on(scene: conftest.Scene) -> None:
    first, second = scene.conductor('same'), scene.conductor('same')
    scene.database.services.report('same', 'nova-conductor', 4)
    scene.database.services.report('same', 'nova-compute', 4)

    def up() -> list[str]:
        return [one.binary for one in scene.database.services.list() if one.is_up(scene.clock.now(), 60)]

    scene.database.conductors.retire(first, 'same')
    assert up() == ['nova-conductor', 'nova-compute']
    scene.database.conductors.retire(second, 'same')
    assert up() == ['nova-compute']


def test_every_life_is_listed_the_one_with_the_latest_lease_first(scene: conftest.Scene) -> None:
    one = scene.conductor('one', lease=15)
    two = scene.conductor('two', lease=30)
    found = scene.database.conductors.list()
    assert [(life.id, life.server) for life in found] == [(two, 'two'), (one, 'one')]
    assert found[1].lease_until == conftest.START + datetime.timedelta(seconds=15)
    scene.database.conductors.retire(two)
    assert [life.server for life in scene.database.conductors.list()] == ['one', 'two']
