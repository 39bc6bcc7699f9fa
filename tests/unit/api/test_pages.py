# SPDX-License-Identifier: Apache-2.0

"""Pages while rows come and change: no row of before the first page is skipped or repeated."""

import uuid

from migrator.db import cleanups
from migrator.objects import instance
from migrator.objects.difference import Difference
from migrator.objects.drain import Drain, Member

#: Its list has another key for the links.
ACTIONS = 'instanceActions'
#: A path; the key of its list; the key that differs between its rows.
LISTS = [
    ('/servers?all_tenants=1', 'servers', 'id'),
    ('/servers/detail?all_tenants=1', 'servers', 'id'),
    ('/servers/detail?all_tenants=1&sort_key=display_name&sort_dir=asc', 'servers', 'id'),
    ('/os-migrations?host=source', 'migrations', 'uuid'),
    ('/servers/{guest}/os-instance-actions?', ACTIONS, 'request_id'),
    ('/os-hypervisors?', 'hypervisors', 'id'),
    ('/os-hypervisors/detail?', 'hypervisors', 'id'),
    ('/flavors?', 'flavors', 'id'),
    ('/flavors/detail?', 'flavors', 'id'),
    ('/migrator/v1/migrations?', 'migrations', 'uuid'),
    ('/migrator/v1/hosts?', 'hosts', 'name'),
    ('/migrator/v1/drains?', 'drains', 'uuid'),
    ('/migrator/v1/drains/{drain}/members?', 'members', 'instance_uuid'),
    ('/migrator/v1/cleanups?', 'cleanups', 'id'),
    ('/migrator/v1/differences?', 'differences', 'instance_uuid'),
]


def pages(world, path, key, by):
    """Yield the ids of the rows of each page of two."""
    path = f'{path}&limit=2'
    while path:
        page = world.get(path)
        yield [row[by] for row in page[key]]
        links = {link['rel']: link['href'] for link in page.get('links' if key == ACTIONS else f'{key}_links', [])}
        path = links['next'].removeprefix('http://api.test').removeprefix('/v2.1') if 'next' in links else None


class Growing:
    """A world with a guest, and a drain of its host.

    :ivar migrations: those of the other guests.
    """

    def __init__(self, world):
        self._world, database = world, world.database
        self.guest, self.drain = world.guest(), Drain(uuid=str(uuid.uuid4()), host='source')
        database.drains.accept(self.drain)
        database.drains.adopt('conductor')
        self.migrations = []

    def grow(self):
        """Add a row to each list: of a host, its drain, a guest with a new flavor, its migration, and so on.

        The names are by turns before and behind the earlier ones.
        """
        world, database, count = self._world, self._world.database, len(self.migrations)
        name = f'{"az"[count % 2]}{count}'
        world.host(name)
        database.drains.accept(Drain(uuid=str(uuid.uuid4()), host=name))
        flavor = instance.Flavor(name=name, vcpus=1, memory_mb=512, root_gb=1)
        guest = world.guest(name, flavor=flavor, host='source')
        member = Member(instance_uuid=guest.uuid, name=name, position=(count % 2) * 100 + count)
        database.drains.write(database.drains.get(self.drain.uuid), {}, [member], [])
        one = world.migration(guest)
        with database.engine.writer() as session:
            cleanups.write(session, cleanups.Cleanup('source', one.uuid, guest.uuid, 'clean', 'it was down', 1))
        lost = Difference(instance_uuid=guest.uuid, name=name, host='source', kind='missing', seen={})
        database.differences.replace([*database.differences.list(), lost])
        world.migration(self.guest, 'completed')
        self.migrations.append(one)

    def change(self, number):
        """Let a migration go on."""
        of = self.migrations[number % 5]
        self._world.move(of.uuid, memory_total=number, updated_at=self._world.database.services.now())


def test_pages_are_the_list_in_its_order(world):
    growing = Growing(world)
    for _ in range(5):
        growing.grow()
    for path, key, by in LISTS:
        named = path.format(guest=growing.guest.uuid, drain=growing.drain.uuid)
        assert [row for page in pages(world, named, key, by) for row in page] == [
            one[by] for one in world.get(named)[key]
        ]


def test_pages_neither_skip_nor_repeat_while_rows_come_and_change(world):
    growing = Growing(world)
    for _ in range(5):
        growing.grow()
    before, seen, walks = {}, {}, {}
    for path, key, by in LISTS:
        named = path.format(guest=growing.guest.uuid, drain=growing.drain.uuid)
        before[path], seen[path] = {one[by] for one in world.get(named)[key]}, []
        assert len(before[path]) >= 5
        walks[path] = pages(world, named, key, by)
    for number in range(5, 100):
        turned = [seen[path].extend(page) for path, walk in walks.items() if (page := next(walk, None)) is not None]
        if not turned:
            break
        # A few rows come, so that the pages have an end, and one that is there changes.
        if number < 12:
            growing.grow()
        growing.change(number)
    assert [path for path, rows in seen.items() if len(rows) != len({*rows})] == []
    assert {path: missed for path, rows in before.items() if (missed := rows - {*seen[path]})} == {}
