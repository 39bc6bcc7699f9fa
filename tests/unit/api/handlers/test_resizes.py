# SPDX-License-Identifier: Apache-2.0

"""resize: forms, answers, and refusals in nova's order; the flavors for it."""

import pytest

from migrator.objects import Flavor
from tests.unit.api.handlers.test_cold_migrations import act, only_migration

LARGE = Flavor(name='42', vcpus=4, memory_mb=2048, root_gb=20, extra_specs={'trait:CUSTOM_SSD': 'required'})


@pytest.fixture
def flavors(world):
    """Return the world with a flavor that no guest has."""
    world.database.flavors.create(LARGE)
    return world


@pytest.mark.parametrize(
    'arguments',
    [{'flavorRef': '42'}, {'flavorRef': 42}, {'flavorRef': '42', 'OS-DCF:diskConfig': 'AUTO'}],
)
def test_each_form_is_accepted_with_both_flavors(flavors, arguments):
    guest = flavors.guest()
    response = act(flavors, guest, 'resize', arguments)
    assert (response.status_int, response.body) == (202, b'')
    row = only_migration(flavors)
    assert (row.migration_type, row.old_flavor, row.new_flavor) == ('resize', guest.flavor, LARGE)
    assert (row.requested_host, row.source_compute, row.dest_compute) == (None, 'source', None)
    assert flavors.conductor.calls == [('live_migrate', row.uuid)]
    assert [one.action for one in flavors.database.actions.list(guest.uuid)] == ['resize']
    shown = flavors.get(f'/servers/{guest.uuid}')['server']
    assert (shown['status'], shown['flavor']['original_name']) == ('RESIZE', 'm1')
    (listed,) = flavors.get('/os-migrations?migration_type=resize')['migrations']
    assert listed['migration_type'] == 'resize'
    assert (listed['old_instance_type_id'], listed['new_instance_type_id']) == (guest.flavor.number, LARGE.number)


def test_flavor_that_the_server_got_while_it_was_accepted_is_its_old_one(flavors, monkeypatch):
    guest, meanwhile = flavors.guest(), LARGE.replace(name='meanwhile')

    def new_uuid(made=flavors.threads.new_uuid):
        # Another resize has moved the server away, and a third one back.
        flavors.database.instances.update(guest.uuid, flavor=meanwhile, tenure=guest.tenure + 2)
        return made()

    monkeypatch.setattr(flavors.threads, 'new_uuid', new_uuid)
    assert act(flavors, guest, 'resize', {'flavorRef': '42'}).status_int == 202
    row = only_migration(flavors)
    assert (row.old_flavor, row.new_flavor) == (meanwhile, LARGE)


def test_a_server_can_be_resized_to_other_amounts_of_its_flavor(flavors):
    guest = flavors.guest(flavor=LARGE.replace(vcpus=1))
    assert act(flavors, guest, 'resize', {'flavorRef': '42'}).status_int == 202
    again = flavors.guest(flavor=LARGE)
    response = act(flavors, again, 'resize', {'flavorRef': '42'})
    flavors.refuses(response, 400, 'badRequest', 'When resizing, instances must change flavor!')


def test_a_server_is_resized_to_the_flavor_of_another_server_of_its_project(world):
    guest = world.guest(project='blue')
    world.guest(project='blue', flavor=LARGE.replace(name='big'))
    world.guest(project='red', flavor=LARGE.replace(name='other'))
    refused = act(world, guest, 'resize', {'flavorRef': 'other'}, token='ada:blue')
    world.refuses(refused, 400, 'badRequest', 'Flavor other could not be found')
    assert act(world, guest, 'resize', {'flavorRef': 'big'}, token='ada:blue').status_int == 202


@pytest.mark.parametrize(
    'arguments', [None, {}, {'flavorRef': None}, {'flavorRef': ''}, {'flavorRef': '42', 'host': 'dest'}, '42']
)
def test_a_body_that_nova_refuses_is_refused(flavors, arguments):
    flavors.refuses(act(flavors, flavors.guest(), 'resize', arguments), 400, 'badRequest')


def test_resize_is_refused_in_novas_order(flavors):
    flavors.database.flavors.create(LARGE.replace(name='diskless', root_gb=0))
    guest = flavors.guest(vm_state='paused')
    flavors.force_down('source')
    before = flavors.rows()

    def refuses(code, fault, *words, flavor='nothing'):
        response = act(flavors, guest, 'resize', {'flavorRef': flavor})
        flavors.refuses(response, code, fault, *words)

    refuses(409, 'conflictingRequest', 'vm_state paused')
    assert flavors.rows() == before
    flavors.database.instances.update(guest.uuid, vm_state='active')
    refuses(409, 'conflictingRequest', 'compute service of the host of the server is down')
    service = flavors.database.services.get_compute('source')
    flavors.database.services.update(service.id, forced_down=False)
    flavors.database.services.report('source', 'nova-compute', service.version, service.boot_id)
    refuses(400, 'badRequest', 'Flavor nothing could not be found')
    refuses(400, 'badRequest', 'Resize to zero disk flavor is not allowed', flavor='diskless')
    refuses(400, 'badRequest', 'When resizing, instances must change flavor!', flavor='m1')
    assert flavors.database.migrations.list() == []
    assert act(flavors, guest, 'resize', {'flavorRef': '42'}).status_int == 202
    refuses(409, 'conflictingRequest', 'resize_prep', flavor='42')


def test_a_member_may_resize_and_a_reader_may_not(roles):
    roles.database.flavors.create(LARGE)
    guest = roles.guest(project='demo')
    wanted = {'flavorRef': '42'}
    roles.refuses(act(roles, guest, 'resize', wanted, token='reader:eve:demo'), 403, 'forbidden')
    assert act(roles, guest, 'resize', wanted, token='member:eve:demo').status_int == 202
    locked = roles.guest(project='demo', locked_by='owner')
    roles.refuses(act(roles, locked, 'resize', wanted, token='member:eve:demo'), 409, 'conflictingRequest', 'locked')


def test_a_created_flavor_is_listed_for_every_project_and_hides_one_of_that_name(flavors):
    flavors.guest(project='red', flavor=LARGE.replace(vcpus=1))
    flavors.guest(project='red', flavor=LARGE.replace(name='m1'))
    for token, names in (('ada:red', ['42', 'm1']), ('ada:blue', ['42'])):
        found = flavors.get('/flavors/detail', token=token)['flavors']
        assert [one['id'] for one in found] == names
        assert (found[0]['vcpus'], found[0]['ram'], found[0]['extra_specs']) == (4, 2048, LARGE.extra_specs)
    flavors.database.flavors.delete('42')
    assert flavors.get('/flavors/42', token='ada:red')['flavor']['vcpus'] == 1
