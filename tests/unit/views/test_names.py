# SPDX-License-Identifier: Apache-2.0

"""Drains, migrations and guests by other names than their whole uuids."""

import pytest
import sqlalchemy as sa

from migrator import exception
from migrator.db.sql.drain_rows import DrainRow
from migrator.objects.drain import Drain
from migrator.views import names
from tests.unit.db.conftest import scene

__all__ = ['scene']

ONE, TWO = '1234abcd-0000-4000-8000-000000000001', '1234abff-0000-4000-8000-000000000002'


@pytest.fixture
def drains(scene):
    """A drain of host1 that has ended, one of it that goes on, and two of host2 that have ended."""
    drains = scene.database.drains
    for uuid, host in ((ONE, 'host1'), ('aaaa0001-0000-4000-8000-000000000000', 'host2'), (TWO, 'host2')):
        drains.accept(Drain(uuid=uuid, host=host), has_service=False)
        with scene.database.engine.writer() as session:
            ended = {'status': 'cancelled', 'in_progress_host': None, 'cancel_requested_at': None}
            session.execute(sa.update(DrainRow.__table__).values(**ended))
    drains.accept(Drain(uuid='99990001-0000-4000-8000-000000000000', host='host1'), has_service=False)
    return scene.database


def test_drain_is_found_by_its_uuid_its_host_or_a_beginning(drains):
    for text, uuid in (
        (ONE, ONE),
        ('host1', '99990001-0000-4000-8000-000000000000'),
        ('host2', TWO),
        ('1234abc', ONE),
        ('1234ABF', TWO),
        ('aaaa', 'aaaa0001-0000-4000-8000-000000000000'),
    ):
        assert names.drain(drains, text).uuid == uuid, text


def test_host_of_a_drain_goes_before_the_beginning_of_the_uuid_of_another(drains):
    drains.drains.accept(Drain(uuid='77770001-0000-4000-8000-000000000000', host='aaaa'), has_service=False)
    assert names.drain(drains, 'aaaa').host == 'aaaa'
    assert names.drain(drains, 'aaaa0').host == 'host2'


@pytest.mark.parametrize(
    ('text', 'why'),
    [
        ('hosst1', 'Drain hosst1 could not be found; is host1 meant?'),
        ('compute9', 'Host compute9 has no drain.'),
        ('compute8', 'Drain compute8 could not be found; is compute9 meant?'),
        ('aaa', 'Drain aaa could not be found: give at least 4 characters of its uuid.'),
        ('zzz', 'Drain zzz could not be found.'),
    ],
)
def test_error_about_an_unknown_drain_says_what_is_wrong_with_its_name(scene, drains, text, why):
    scene.database.services.report('compute9', 'nova-compute', 1)
    with pytest.raises(exception.DrainNotFound) as refused:
        names.drain(drains, text)
    assert str(refused.value) == why


@pytest.mark.parametrize('text', ['host3', 'aaa', 'aaab', '123%', '1234abcd-0000-4000-8000-000000000009'])
def test_unknown_drain_is_not_found(drains, text):
    with pytest.raises(exception.DrainNotFound):
        names.drain(drains, text)


def test_if_two_drains_fit_both_are_named(drains):
    with pytest.raises(names.AmbiguousError) as refused:
        names.drain(drains, '1234ab')
    assert f'{ONE} of host1 (cancelled); {TWO} of host2 (cancelled). Give the whole uuid.' in str(refused.value)


def test_where_a_whole_uuid_is_needed_nothing_else_fits(drains):
    for text in ('host1', '1234abc'):
        with pytest.raises(exception.DrainNotFound):
            names.drain(drains, text, whole=True)


def test_migration_is_found_by_its_id_its_guest_or_a_beginning(scene):
    web, db = scene.instance(name='web'), scene.instance(name='db')
    first, second = scene.migration(web, uuid=ONE), scene.migration(db, uuid=TWO)
    for text in (str(first.id), first.uuid, '1234abc', web.uuid, 'web'):
        assert names.migration(scene.database, text).uuid == first.uuid, text
    assert names.migration(scene.database, 'db').uuid == second.uuid
    for text in ('mail', str(2**31), '9' * 5000, first.uuid[:3]):
        with pytest.raises(exception.MigrationNotFound):
            names.migration(scene.database, text)
    assert names.migration(scene.database, str(first.id), whole=True).uuid == first.uuid
    with pytest.raises(exception.MigrationNotFound, match=f'it is a guest, whose migration is {first.uuid}'):
        names.migration(scene.database, web.uuid, whole=True, hint=True)


def test_guests_of_one_name_are_all_named(scene):
    one, two = scene.instance(name='web', uuid=ONE), scene.instance(name='web', uuid=TWO)
    scene.migration(one), scene.migration(two)
    for find in (names.guest, names.migration):
        with pytest.raises(names.AmbiguousError) as refused:
            find(scene.database, 'web')
        assert one.uuid in str(refused.value)
        assert two.uuid in str(refused.value)
    assert names.guest(scene.database, '1234abcd').uuid == one.uuid
    with pytest.raises(exception.InstanceNotFound):
        names.guest(scene.database, 'mail')


def test_uuid_has_any_spelling_and_the_name_of_a_guest_overrides_no_uuid(scene):
    web, thief = scene.instance(name='web', uuid=ONE), scene.instance(name=ONE, uuid=TWO)
    mine, other = scene.migration(web, uuid='02598ca1-0000-4000-8000-000000000001'), scene.migration(thief)
    for text in (mine.uuid.upper(), mine.uuid.replace('-', ''), ONE):
        assert names.migration(scene.database, text).uuid == mine.uuid
    assert names.guest(scene.database, ONE.upper()).uuid == ONE
    taken = scene.instance(name='02598ca1')
    again = scene.migration(taken)
    with pytest.raises(names.AmbiguousError, match=f'{again.uuid}.*{mine.uuid}|{mine.uuid}.*{again.uuid}'):
        names.migration(scene.database, '02598ca1')
    assert other.uuid != mine.uuid


def test_guest_and_migration_are_listed_with_the_name_and_the_uuid_of_each_guest(scene):
    named, other = (
        scene.instance(name='48b3'),
        scene.instance(name='web\x1b', uuid='48b30000-0000-4000-8000-000000000001'),
    )
    mine, its = scene.migration(named), scene.migration(other, uuid='48b30000-0000-4000-8000-000000000002')
    with pytest.raises(names.AmbiguousError) as refused:
        names.guest(scene.database, '48b3')
    assert f'48b3 ({named.uuid}) on ' in str(refused.value)
    assert f'web\\x1b ({other.uuid}) on ' in str(refused.value)
    with pytest.raises(names.AmbiguousError) as refused:
        names.migration(scene.database, '48b3')
    assert f'{mine.uuid} of guest 48b3 ({named.uuid}) (' in str(refused.value)
    assert f'{its.uuid} of guest web\\x1b ({other.uuid}) (' in str(refused.value)
    assert [names.guest(scene.database, one.uuid).name for one in (named, other)] == [named.name, other.name]


def test_guest_without_a_migration_is_not_called_unknown(scene):
    web = scene.instance(name='web')
    for text in ('web', web.uuid):
        with pytest.raises(exception.MigrationNotFound) as refused:
            names.migration(scene.database, text)
        assert str(refused.value) == f'Guest web ({web.uuid}) has no migration.'
    with pytest.raises(exception.MigrationNotFound, match='Migration web could not be found'):
        names.migration(scene.database, 'web', whole=True)


@pytest.mark.parametrize(
    ('find', 'text', 'ends'),
    [
        (names.guest, '48b', 'give at least 4 characters of its uuid.'),
        (names.migration, '48b', 'give at least 4 characters of its uuid.'),
        (names.migration, '481', 'could not be found.'),
        (names.guest, 'web', 'could not be found.'),
    ],
)
def test_beginning_that_is_too_short_is_called_so(scene, find, text, ends):
    with pytest.raises(exception.NotFound) as refused:
        find(scene.database, text)
    assert str(refused.value).endswith(ends)


def test_caller_who_may_not_list_learns_nothing_of_a_name(scene):
    web = scene.instance(name='web')
    migration = scene.migration(web)
    with pytest.raises(exception.MigrationNotFound) as refused:
        names.migration(scene.database, 'web', whole=True)
    assert migration.uuid not in str(refused.value)
    with pytest.raises(exception.MigrationNotFound, match=migration.uuid):
        names.migration(scene.database, 'web', whole=True, hint=True)
