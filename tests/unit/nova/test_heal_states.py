# SPDX-License-Identifier: Apache-2.0

"""Whatever Nova shows, ``heal`` takes nothing from a guest that lives, or from its migration.

Each state is a cloud in which migrations were begun, killed, half written, reset and forgotten, guests were resized and
deleted, and Nova leaves a cell out of some of its answers. MIGRATOR_STATES sets how many are tried.
"""

import contextlib
import os
import random

import pytest

from migrator.nova import audit, errors
from migrator.placement_client.client import PlacementClient
from migrator.testing.fake_placement.service import FakePlacement
from tests.unit import placements
from tests.unit.nova.fake import FakeNova
from tests.unit.nova.test_heal import Cloud, Threads

STATES = int(os.environ.get('MIGRATOR_STATES', '24'))
_LISTS = ('/servers/detail', '/os-migrations', '/os-services')


def moved(cloud, dice, guest):
    """Begin a live migration, and leave it anywhere."""
    fake = cloud.fake
    fake.ticks[guest] = dice.choice((1, 9))
    if dice.random() < 0.3:
        fake.fails[guest] = dice.choice(('pre', 'live', 'post'))
    fake.client().migrate_live(guest, dice.choice((None, 'host2', 'host3')))
    fake.tick(dice.choice((1, 2, 3, 4, 9)))
    row = fake.row(guest)
    if row['status'] == 'running' and dice.random() < 0.4:
        half_written(cloud, dice, row)
    elif row['status'] in ('queued', 'preparing', 'running') and dice.random() < 0.4:
        fake.kill(row['source_compute'])
        fake.start(row['source_compute'])


def half_written(cloud, dice, row):
    """Have the guest arrive, and Nova killed before it has written all of it."""
    fake, guest = cloud.fake, row['instance_uuid']
    fake.truth[guest] = row['dest_compute']
    fake._set(row, 'completed')
    row['forgotten'] = True
    if dice.random() < 0.5:
        fake._put_if(row['uuid'], {})
    if dice.random() < 0.5:
        fake.servers[guest]['task_state'] = None


def resized(cloud, dice, guest):
    """Resize a guest to another host, and leave it for its user to decide, or decided."""
    fake, server = cloud.fake, cloud.fake.servers[guest]
    source, destination = server['host'], dice.choice([one for one in fake.services if one != server['host']])
    fake._add_row(guest, None, None)
    row = fake.rows[-1]
    row.update(migration_type=dice.choice(('resize', 'migration')), dest_compute=destination, status='finished')
    fake._book(guest, row['uuid'], source)
    fake._book(guest, guest, destination)
    server.update(host=destination, vm_state='resized', task_state=None)
    fake.truth[guest] = destination
    row['updated_at'] = fake._time()


def state(cloud, dice):
    """Bring a cloud into a state."""
    fake = cloud.fake
    fake.second_cell = set(dice.sample(sorted(fake.services), dice.choice((0, 1, 2))))
    for number in range(dice.choice((1, 2, 3))):
        guest = fake.add_guest(f'guest{number}', dice.choice(('host1', 'host2')))
        for _ in range(dice.choice((0, 1, 1, 2))):
            server = fake.servers[guest]
            if server['vm_state'] != 'active' or server['task_state'] is not None:
                break
            (moved if dice.random() < 0.7 else resized)(cloud, dice, guest)
        if dice.random() < 0.1:
            fake.delete(guest)
        elif dice.random() < 0.1:
            fake.servers[guest].update(vm_state='error')
        elif dice.random() < 0.1:
            fake.servers[guest].update(task_state=None)
    if dice.random() < 0.3:
        fake.kill(dice.choice(sorted(fake.services)))
    left_out = {path: dice.choice((0.0, 0.0, 0.5, 1.0)) for path in _LISTS}
    fake.leaves_out = lambda path: dice.random() < left_out.get(path, 0.0)


@pytest.fixture(scope='module')
def running(tmp_path_factory):
    with placements.running(tmp_path_factory.mktemp('placement')) as running:
        yield running


def holders(cloud, guest):
    """Return a guest and its migrations."""
    return [guest, *(row['uuid'] for row in cloud.fake.rows if row['instance_uuid'] == guest)]


def is_covered(cloud, guest):
    """Return whether a guest or a migration of it holds something where the guest is."""
    return any(cloud.fake.truth[guest] in at for at in cloud.hosts_of(*holders(cloud, guest)))


def is_moving(cloud, guest):
    """Return whether a migration of a guest goes on, or waits for its user."""
    rows = [row for row in cloud.fake.rows if row['instance_uuid'] == guest]
    ended = ('completed', 'cancelled', 'failed', 'error')
    return bool(rows) and not rows[-1]['forgotten'] and rows[-1]['status'] not in ended


def lost(cloud):
    """Heal everything that has no doubt, and return what a living guest or migration holds no more."""
    guests = [*cloud.fake.truth]
    covered = {guest for guest in guests if is_covered(cloud, guest)}
    moving = {guest: cloud.hosts_of(*holders(cloud, guest)) for guest in guests if is_moving(cloud, guest)}
    with contextlib.suppress(errors.NovaUnreachable):
        for finding in cloud.audit().findings:
            cloud.heal(finding)
    found = [f'{one} holds nothing on {cloud.fake.truth[one]}' for one in covered if not is_covered(cloud, one)]
    return found + [
        f'{guest} and its migrations held {before}'
        for guest, before in moving.items()
        if cloud.hosts_of(*holders(cloud, guest)) != before
    ]


def lost_in(running, seed):
    # The fake Placement, which a test compares with the real one, costs an eighth; each tenth state is on the real one.
    if seed % 10 == 0:
        running.empty()
    placement = PlacementClient((running if seed % 10 == 0 else FakePlacement()).adapter())
    fresh = Cloud(FakeNova(placement=placement), placement, Threads())
    state(fresh, random.Random(f'state {seed}'))  # noqa: S311 -- a state must be repeatable
    return [f'state {seed}: {what}' for what in lost(fresh)]


@pytest.mark.parametrize('part', range(4))
def test_no_state_lets_heal_take_what_a_living_guest_holds(running, part):
    assert [what for seed in range(part, STATES, 4) for what in lost_in(running, seed)] == []


def marker(self):
    """Judge what only a marker shows as a migration of a deleted guest."""
    return self._repair(audit.LEAKED, 'of a deleted guest', {}, None)


def half_written_is_no_doubt(self, server, elsewhere):
    return None


@pytest.mark.parametrize(
    ('name', 'planted', 'seed'), [('_of_no_server', marker, 27), ('_doubt', half_written_is_no_doubt, 44)]
)
def test_rule_that_takes_an_absence_for_a_fact_is_found(running, monkeypatch, name, planted, seed):
    assert lost_in(running, seed) == []
    monkeypatch.setattr(audit._Judgement, name, planted)
    assert lost_in(running, seed) != []
