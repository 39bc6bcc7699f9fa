# SPDX-License-Identifier: Apache-2.0

"""Pages while rows come and change: no row of before the first page is skipped or repeated."""

import pytest

from migrator.objects import instance

#: A path; the key of its list; the key that differs between its rows.
LISTS = [
    ('/servers?all_tenants=1', 'servers', 'id'),
    ('/servers/detail?all_tenants=1', 'servers', 'id'),
    ('/servers/detail?all_tenants=1&sort_key=display_name&sort_dir=asc', 'servers', 'id'),
    ('/os-migrations?', 'migrations', 'uuid'),
    ('/os-hypervisors/detail?', 'hypervisors', 'id'),
    ('/flavors/detail?', 'flavors', 'id'),
    ('/migrator/v1/migrations?', 'migrations', 'uuid'),
    ('/migrator/v1/hosts?', 'hosts', 'name'),
]


def pages(world, path, key, between):
    """Yield the rows of each page of two, and call a function between two pages."""
    path = f'{path}&limit=2'
    while path:
        page = world.get(path)
        yield page[key]
        links = {link['rel']: link['href'] for link in page.get(f'{key}_links', [])}
        path = links['next'].removeprefix('http://api.test').removeprefix('/v2.1') if 'next' in links else None
        between()


def grow(world, count):
    """Add a host, a guest with a new flavor, and its migration.

    The names are by turns before and behind the earlier ones.
    """
    name = f'{"az"[count % 2]}{count}'
    world.host(name)
    flavor = instance.Flavor(name=name, vcpus=1, memory_mb=512, root_gb=1)
    return world.migration(world.guest(name, flavor=flavor, host='source'))


@pytest.mark.parametrize(('path', 'key', 'by'), LISTS)
def test_pages_neither_skip_nor_repeat_while_rows_come_and_change(world, path, key, by):
    known = [grow(world, count) for count in range(5)]
    before = {one[by] for one in world.get(path)[key]}
    assert len(before) >= 5
    turn = iter(range(5, 100))

    def between():
        # A few rows come, so that the pages have an end, and one that is there changes.
        count = next(turn)
        if count < 12:
            grow(world, count)
        world.move(known[count % 5].uuid, memory_total=count, updated_at=world.database.services.now())

    seen = [one[by] for page in pages(world, path, key, between) for one in page]
    assert len(seen) == len(set(seen))
    assert before <= set(seen)
