# SPDX-License-Identifier: Apache-2.0

"""migrator-manage flavor: the flavors that guests can be resized to."""

import pytest

from migrator.objects import Flavor

SIZE = ('--vcpus', 2, '--memory', 256, '--disk', 1)


def test_a_flavor_is_created_listed_and_deleted(operator):
    document = operator.json('flavor', 'create', 'small', *SIZE, '--property', 'resources:CUSTOM_GOLD=1')
    assert document['flavor']['extra_specs'] == {'resources:CUSTOM_GOLD': '1'}
    assert 'Guests of every project can be resized to it' in operator.observed('flavor', 'create', 'big', *SIZE)
    assert [row['NAME'] for row in operator.rows('flavor', 'list')] == ['big', 'small']
    assert operator.json('flavor', 'list')['flavors'][1] == document['flavor']
    status, _out = operator.status('flavor', 'create', 'small', *SIZE)
    assert (status, 'Flavor small already exists' in operator.err) == (1, True)
    kept = 'Guests that have it keep it, and while a guest has it, the users of its project can still request it.'
    assert kept in operator.observed('flavor', 'delete', 'small')
    status, _out = operator.status('flavor', 'delete', 'small')
    assert (status, 'Flavor small could not be found' in operator.err) == (1, True)
    assert [one['name'] for one in operator.json('flavor', 'list')['flavors']] == ['big']


def test_a_flavor_under_the_name_of_another_one_that_a_guest_has_says_so(operator):
    whose = ('--host', 'host1', '--project', 'blue', '--user', 'ada', '--force')
    operator.observed('instance', 'create', *SIZE, *whose, '--flavor', 'small')
    other = 'There are guests that have another flavor of this name. They keep it.'
    assert other in operator.observed('flavor', 'create', 'small', *SIZE, '--swap', 1)
    operator.observed('flavor', 'delete', 'small')
    assert 'another flavor' not in operator.observed('flavor', 'create', 'small', *SIZE)


def test_an_amount_that_is_no_number_is_refused(operator):
    status, _out = operator.status('flavor', 'create', 'odd', *SIZE, '--property', 'resources:CUSTOM_GOLD=much')
    assert (status, "'resources:CUSTOM_GOLD=much': the value is not a whole number" in operator.err) == (2, True)
    assert operator.json('flavor', 'list')['flavors'] == []


@pytest.mark.parametrize(
    ('given', 'words'),
    [
        ('trait:CUSTOM_SSD=yes', 'the value is not one of required, forbidden'),
        ('trait1:CUSTOM_SSD=', 'the value is not one of required, forbidden'),
        ('trait:ssd=required', 'nova has no extra spec trait:ssd'),
        ('resources:gold=1', 'nova has no extra spec resources:gold'),
        ('resources_GROUP:=1', 'nova has no extra spec resources_GROUP:'),
        ('hw:cpu_polcy=dedicated', 'nova has no extra spec hw:cpu_polcy'),
        ('hw:cpu_policy=pinned', 'the value is not one of dedicated, shared, mixed'),
        ('hw:numa_nodes=0', 'the value is less than 1'),
        ('hw:redirected_usb_ports=16', 'the value is above 15'),
        ('hw:mem_encryption=maybe', 'the value is neither true nor false'),
        ('hw:cpu_dedicated_mask=all', 'the value is not of the form'),
    ],
)
def test_a_property_that_nova_refuses_is_refused(refused, given, words):
    assert f"'{given}': {words}" in refused('flavor', 'create', 'odd', *SIZE, '--property', given)


def test_a_property_of_another_namespace_is_kept_and_named(operator):
    _status, out = operator.status(
        'flavor', 'create', 'odd', *SIZE, '--property', 'acme:tier=gold', '--property', 'hw:pmu=true'
    )
    assert 'Kept as they are, since nova does not know them: acme:tier.' in ' '.join(out.split())


def test_a_trait_is_kept(operator):
    given = ('--property', 'trait:CUSTOM_SSD=required', '--property', 'trait_A:CUSTOM_SLOW=forbidden')
    document = operator.json('flavor', 'create', 'fast', *SIZE, *given)
    assert document['flavor']['extra_specs'] == {'trait:CUSTOM_SSD': 'required', 'trait_A:CUSTOM_SLOW': 'forbidden'}


def test_a_name_that_nova_accepts_as_an_id_is_accepted(operator):
    for name in ('m1.large', '42', '_a-b. c-', 'x' * 255):
        assert operator.json('flavor', 'create', name, *SIZE)['flavor']['name'] == name


@pytest.mark.parametrize(
    'name', ['sl/ash', '..', '../..', '?a=b', 'a#b', '%41', ' ', ' a', 'a ', 'a\n', '', 'größe', '-dash', 'x' * 256]
)
def test_a_name_that_no_url_can_hold_is_refused(refused, name):
    assert 'is not a name of a flavor: give 1 to 255' in refused('flavor', 'create', *SIZE, '--', name)


def test_a_guest_gets_no_flavor_whose_name_no_url_can_hold(refused):
    whose = ('--host', 'host1', '--project', 'demo', '--user', 'demo', '--force')
    said = refused('instance', 'create', *SIZE, *whose, '--flavor', 'sl/ash')
    assert "--flavor: 'sl/ash' is not a name of a flavor: give 1 to 255 of the characters" in said


def test_a_flavor_that_an_earlier_release_created_under_such_a_name_is_deleted(operator):
    operator.cloud.database.flavors.create(Flavor(name='sl/ash'))
    operator.observed('flavor', 'delete', 'sl/ash')
    assert operator.json('flavor', 'list')['flavors'] == []
