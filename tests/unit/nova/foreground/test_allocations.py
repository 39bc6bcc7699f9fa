# SPDX-License-Identifier: Apache-2.0

"""migrator-drain audit and heal: what they print, and their exit statuses."""

import json

import pytest

from migrator import exception
from migrator.placement_client import allocations

OTHER = '00000000-0000-4000-8000-000000000001'


@pytest.fixture
def moved(nova):
    """A guest whose nova-compute was killed while it moved it, with its migration."""
    guest = nova.add_guest('guest1')
    nova.ticks[guest] = 99
    nova.client().migrate_live(guest, 'host2')
    nova.tick(4)
    nova.kill('host1')
    nova.start('host1')
    return guest, nova.row(guest)['uuid']


def hosts_of(nova, consumer):
    host_of = {uuid: host for host, uuid in nova.nodes.items()}
    return [host_of[uuid] for uuid in allocations.read(nova.placement, consumer).allocations]


def test_audit_without_an_error_is_a_success(operator, nova):
    nova.add_guest('guest1')
    assert operator.run('audit') == (0, 'No wrong allocation was found.\n')
    assert operator.run('heal', '--yes') == (0, 'No wrong allocation was found.\n')


def test_audit_lists_moves_in_progress_as_no_error(operator, nova):
    guest = nova.add_guest('guest1')
    nova.ticks[guest] = 99
    nova.client().migrate_live(guest, 'host2')
    nova.tick(4)
    status, out = operator.run('audit')
    assert status == 0
    (line,) = (line for line in out.splitlines() if guest in line)
    assert line.split()[:4] == ['guest1', guest, 'in', 'progress']
    assert line.endswith('its task is migrating, and live-migration 1 from host1 to host2 is running')
    assert out.endswith('No wrong allocation was found.\n')
    found = operator.json('audit')
    assert (found['findings'], [one['verdict'] for one in found['others']]) == ([], ['in progress'])


def test_audit_names_who_holds_what_and_what_is_right(operator, nova, moved):
    status, out = operator.run('audit', '--settle', '3')
    guest, migration = moved
    holds = 'holds 1 VCPU, 1024 MEMORY_MB, 1 DISK_GB on'
    assert status == 1
    assert operator.threads.clock.seconds == 3
    assert out.splitlines() == [
        f'server guest1 {guest}',
        '  wrong host: it is on host1, where its migration holds its allocation; it holds one on host2; '
        'live-migration 1 from host1 to host2 is error and holds one on host1',
        f'    instance {guest} {holds} host2 (provider {nova.nodes["host2"]})',
        f'    migration {migration} {holds} host1 (provider {nova.nodes["host1"]})',
        '  it must hold 1 VCPU, 1024 MEMORY_MB, 1 DISK_GB on host1, and nothing else',
        '  remedy: migrator-drain heal --yes',
        '',
        '1 guest or consumer has wrong allocations. To see the corrections: '
        f'migrator-drain --state {operator.path} heal',
    ]


@pytest.mark.parametrize('options', [(), ('--dry-run',)])
def test_heal_without_yes_shows_the_write_and_does_nothing(operator, nova, moved, options):
    guest, migration = moved
    status, out = operator.run('heal', *options)
    assert status == 0
    assert 'Would be done: it holds 1 VCPU' in out
    assert out.endswith('Nothing was changed. To do it: the same with --yes.\n')
    assert (hosts_of(nova, guest), hosts_of(nova, migration)) == (['host2'], ['host1'])


def test_heal_sends_the_write_that_it_has_shown(operator, nova, moved):
    guest, migration = moved
    sent, post = [], nova.placement.post
    nova.placement.post = lambda url, body: (sent.append(('POST', url, body)), post(url, body))[1]
    status, out = operator.run('heal', '--yes')
    assert status == 0
    (shown,) = (line.split(maxsplit=2) for line in out.splitlines() if 'POST' in line)
    assert [(shown[0], shown[1], json.loads(shown[2]))] == sent
    assert 'Done: it holds 1 VCPU' in out
    assert out.endswith('1 corrected, 0 left.\n')
    assert (hosts_of(nova, guest), hosts_of(nova, migration)) == (['host1'], [])
    assert operator.run('audit')[0] == 0


def test_heal_leaves_a_guest_that_has_changed_and_says_so(operator, nova, moved):
    guest, _ = moved
    post = nova.placement.post

    def write_first(url, body):
        held = nova.placement.read(f'/allocations/{guest}')
        nova.placement.put(f'/allocations/{guest}', held | {'consumer_type': 'INSTANCE'})
        return post(url, body)

    nova.placement.post = write_first
    status, out = operator.run('heal', '--yes')
    assert status == 1
    assert 'Not corrected: another client has written it since the audit: audit again.' in out
    assert out.endswith('0 corrected, 1 left.\n')


def test_heal_goes_on_if_placement_does_not_answer_a_write(operator, nova, moved):
    def away(url, body):
        raise exception.PlacementUnreachable(reason='no route')

    nova.placement.post = away
    status, out = operator.run('heal', '--yes')
    assert status == 1
    assert 'Not corrected: the correction may or may not be done (Placement is not reachable: no route)' in out


def test_doubtful_finding_is_corrected_if_it_is_named(operator, nova):
    guest = nova.add_guest('guest1')
    nova.fails[guest] = 'post'
    nova.client().migrate_live(guest, 'host2')
    nova.tick(9)
    status, out = operator.run('heal', '--yes')
    assert (status, 'POST' in out) == (1, False)
    assert f'name it with --consumer {guest} to repair it' in out
    status, out = operator.run('heal', '--yes', '--consumer', nova.row(guest)['uuid'])
    assert (status, 'POST' in out) == (0, True)
    assert hosts_of(nova, guest) == ['host2']


def test_heal_of_named_consumers_leaves_the_others(operator, nova, moved):
    healthy = nova.add_guest('guest2')
    status, out = operator.run('heal', '--yes', '--consumer', healthy)
    assert (status, out) == (0, f'{healthy}: its allocations are correct, or are changing at this moment.\n')
    assert hosts_of(nova, moved[0]) == ['host2']
    status, out = operator.run('heal', '--yes', '--consumer', OTHER)
    assert (status, out) == (1, f'{OTHER}: Nova does not know it, and it holds nothing in Placement: check the uuid.\n')


def test_json_has_the_findings_and_their_outcome(operator, moved):
    guest, _ = moved
    found = operator.json('heal', '--yes')
    assert (found['dry_run'], found['unknown'], found['unreadable']) == (False, [], 0)
    assert [(one['consumer'], one['request']['method']) for one in found['findings']] == [(guest, 'POST')]
    assert [(one['consumer'], one['healed']) for one in found['consumers']] == [(guest, True)]


def test_servers_that_cannot_be_read_are_no_success(operator, nova):
    nova.add_guest('guest1')
    nova._show = lambda server, version: {'id': server['id'], 'status': 'UNKNOWN'}
    status, out = operator.run('audit')
    assert status == 1
    assert out.startswith('Not audited: 1 servers, because the database of their cell does not answer.\n')
