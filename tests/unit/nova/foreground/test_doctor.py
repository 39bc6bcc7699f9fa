# SPDX-License-Identifier: Apache-2.0

"""migrator-drain doctor: each finding names what is wrong and what to do, and nothing is changed."""

import json

import pytest
from keystoneauth1.exceptions import ConnectFailure
from openstack.config import loader

from migrator.cmd import drain
from tests.unit.nova import cloud_server, cloud_variants


def wrong(operator):
    """Return the wrong findings, as (check, found, remedy)."""
    return [
        (one['check'], one['found'], one['remedy']) for one in operator.json('doctor')['checks'] if not one['is_right']
    ]


def test_healthy_cloud_is_right_and_stays_as_it_is(operator, nova):
    nova.add_guest('guest1')
    status, out = operator.run('doctor')
    assert status == 0, out
    assert [line.split()[:2] for line in out.splitlines()[1:-1]] == [
        ['right', 'Nova'], ['right', 'services'], ['right', 'cells'], ['right', 'migrations'], ['right', 'Placement'],
    ]  # fmt: skip
    assert 'microversion 2.103; 2.65 is needed' in out
    assert '3 nova-computes, 3 up, 0 disabled' in out
    assert out.endswith('All is right. A drain can start.\n')
    assert {method for method, _path in nova.requests} == {'GET'}


def test_host_that_does_not_report_is_named_with_what_helps(operator, nova):
    nova.kill('host2')
    ((check, found, remedy),) = wrong(operator)
    assert (check, found.startswith('nova-compute at host2 has not reported since 2026-')) == ('services', True)
    assert remedy.startswith('Start it. If the host is dead: migrator-drain evacuate host2 ')
    assert operator.run('doctor')[0] == 1


def test_host_that_is_forced_down_has_a_remedy_of_its_own(operator, nova):
    nova.kill('host2')
    nova.services['host2']['forced_down'] = True
    ((check, found, remedy),) = wrong(operator)
    assert (check, found) == ('services', 'host2 is declared forced down.')
    assert remedy.startswith('Leave host2 declared forced down until it is repaired.')


def test_cell_that_does_not_answer_is_named_by_its_hosts(operator, nova):
    nova.second_cell = {'host3'}
    nova.leaves_out = lambda path: path == '/os-services'
    assert [(check, found) for check, found, _ in wrong(operator)] == [
        ('cells', 'The database of the cell of host3 does not answer, so lists of Nova lack its guests.')
    ]


def test_host_with_two_records_is_named_with_both(operator, nova):
    old = nova.services['host1'] | {'id': 'old-record', 'state': 'down'}
    nova.more_services.append(old)
    ((check, found, remedy),) = wrong(operator)
    assert check == 'records'
    assert found == f'host1 has 2 records of nova-compute: {nova.services["host1"]["id"]} (up) and old-record (down).'
    assert 'Do not delete the other one while the host has guests' in remedy


def test_migration_that_nova_has_forgotten_is_named(operator, nova):
    nova.at_once = 0  # so that it stays queued
    guest = nova.add_guest('guest1')
    nova.client().migrate_live(guest)
    nova.tick(2)
    assert wrong(operator) == []
    nova.kill('host1')
    nova.start('host1')
    ((check, found, remedy),) = wrong(operator)
    assert check == 'migrations'
    request = nova.row(guest)['request_id']
    assert found.startswith(f'Guest {guest}: Nova has forgotten its migration 1 ({request}), which stays queued')
    assert remedy.startswith('Look at both hosts.')
    assert 'Look at both hosts' not in found


def test_hypervisor_without_a_provider_is_named(operator, nova):
    placement, nova.placement = nova.placement, None
    nova.add_host('host4')
    nova.placement = placement
    assert [(check, found) for check, found, _ in wrong(operator)] == [
        ('Placement', 'No resource provider for host4: Nova places no guest there.')
    ]


def test_nova_that_is_away_is_unreachable_and_placement_is_still_checked(operator, nova):
    def fail(_method, _path):
        raise ConnectFailure('closed')

    nova.before = fail
    status, out = operator.run('doctor', '--json')
    assert status == 3
    found = json.loads(out)['checks']
    assert [(one['check'], one['is_right']) for one in found if one['check'] == 'services'] == [('services', False)]
    assert 'Nova is not reachable' in found[1]['found']


def test_start_refuses_when_placement_is_away_before_anything_is_changed(operator, nova):
    nova.add_guest('guest1')

    class Away:
        def request(self, *_args, **_more):
            raise ConnectFailure('closed')

    nova.placement = type(nova.placement)(Away())
    assert operator.run('start', 'host1')[0] == 3
    assert 'Placement is not reachable' in operator.err
    assert nova.services['host1']['status'] == 'enabled'
    assert operator.json('list') == {'drains': []}


def test_start_names_two_records_and_goes_on(operator, nova):
    nova.more_services.append(nova.services['host1'] | {'id': 'old-record', 'state': 'down'})
    nova.add_guest('guest1')
    assert operator.run('start', 'host1')[0] == 0
    assert 'host1 has 2 records of nova-compute' in operator.err.splitlines()[0]


# --- the cloud -------------------------------------------------------------------------------------------------------


@pytest.fixture
def cloud(tmp_path, monkeypatch, capsys):
    """Return a function that runs doctor on a catalog of a cloud on loopback."""
    server = cloud_server.CloudServer()
    for name in ('CONFIG_FILES', 'SECURE_FILES', 'VENDOR_FILES'):
        monkeypatch.setattr(loader, name, [])
    monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path / 'state'))

    def run(files):
        for name, value in cloud_variants.Variant(files).write(tmp_path, server.url, 'http://127.0.0.1:1').items():
            monkeypatch.setenv(name, value)
        status = drain.main(['--os-cloud', 'mine', 'doctor', '--json'])
        out, err = capsys.readouterr()
        return status, {one['check']: one for one in json.loads(out)['checks']} if out else err

    yield run
    server.stop()


def test_file_clouds_region_and_role_are_shown(cloud, tmp_path):
    _, found = cloud(cloud_variants.clouds('unversioned'))
    file = f'{tmp_path}/clouds.yaml has the clouds mine. Cloud mine, region RegionOne: '
    assert found['clouds.yaml']['found'].startswith(file)
    assert found['identity']['found'].endswith('/identity knows unversioned in project admin, with the roles: admin.')
    assert found['Nova']['is_right']
    assert not (tmp_path / 'state').exists()


def test_user_without_the_role_admin_is_wrong(cloud):
    status, found = cloud(cloud_variants.clouds('reader'))
    assert (status, found['identity']['is_right']) == (1, False)
    assert 'with the roles: member, reader.' in found['identity']['found']
    assert 'role admin' in found['identity']['remedy']


def test_identity_service_that_is_away_is_unreachable(cloud):
    files = cloud_variants.clouds('plain')
    status, found = cloud({'clouds.yaml': files['clouds.yaml'].replace('@URL@', '@CLOSED@')})
    assert (status, [*found]) == (3, ['identity'])
    assert 'The identity service is not reachable' in found['identity']['found']


def test_broken_file_is_a_usage_error(cloud):
    status, error = cloud({'clouds.yaml': 'clouds: ['})
    assert status == 2
    assert 'clouds.yaml, line 1' in error
