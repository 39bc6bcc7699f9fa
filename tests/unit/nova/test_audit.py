# SPDX-License-Identifier: Apache-2.0

"""The judgement of a guest's allocations on a stock Nova, as a table of what Nova and Placement show."""

import dataclasses

import pytest

from migrator.nova import audit
from migrator.nova.resources import NovaMigration, Server
from migrator.objects import Flavor
from migrator.placement_client.allocation_state import ConsumerAllocations

SMALL = {'VCPU': 1, 'MEMORY_MB': 1024, 'DISK_GB': 1}
FLAVOR = Flavor(name='small', vcpus=1, memory_mb=1024, root_gb=1)
#: Each host's provider has the name of the host. ``gpu1`` is a child of host1's, and ``pool`` is shared.
HOSTS = {'host1': 'host1', 'gpu1': 'host1', 'host2': 'host2', 'host3': 'host3'}
GUEST, CLAIM = 'guest-uuid', 'migration-uuid'


def server(host='host1', status='ACTIVE', **fields):
    fields = {'vm_state': status.lower(), 'flavor': FLAVOR} | fields
    return Server(uuid=GUEST, name='guest1', host=host, status=status, **fields)


def move(status, source='host1', destination='host2', kind='live-migration', uuid=CLAIM, number=4):
    return NovaMigration(
        id=number,
        uuid=uuid,
        instance_uuid=GUEST,
        status=status,
        type=kind,
        source_compute=source,
        dest_compute=destination,
    )


def on(*providers):
    return dict.fromkeys(providers, SMALL)


def judged(shown, *moves, down=(), deleted=None, **held):
    """Judge what ``guest`` and ``claim`` hold, each given by its providers."""
    by_uuid = {GUEST: held.get('guest', {}), **({CLAIM: held['claim']} if 'claim' in held else {})}
    case = audit.Case(
        consumer=GUEST,
        server=shown,
        deleted=deleted,
        migrations=moves,
        held={
            uuid: ConsumerAllocations(
                uuid=uuid,
                generation=generation if amounts else None,
                allocations=amounts,
                project_id='blue' if amounts else None,
                user_id='ada' if amounts else None,
                consumer_type='unknown' if amounts else None,
            )
            for generation, (uuid, amounts) in enumerate(by_uuid.items(), 7)
        },
    )
    return audit.judge(case, audit.Hosts(of=HOSTS, down=down))


def written(found):
    """Return what the repair gives to each consumer, as its providers."""
    return {write.consumer.uuid: sorted(write.allocations) for write in found.writes}


# --- right -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('shown', 'holds'),
    [
        (server(), on('host1')),
        (server(), on('host1', 'gpu1')),
        (server(), on('host1', 'pool')),
        (server(status='SHUTOFF'), on('host1')),
        (server(status='ERROR'), on('host1')),
        (server(host=None, status='SHELVED_OFFLOADED'), {}),
        (server(flavor=Flavor(name='none', vcpus=0, memory_mb=0, root_gb=0)), {}),
        (None, {}),
    ],
    ids=['plain', 'nested', 'shared', 'off', 'error', 'shelved', 'no resources', 'deleted'],
)
def test_guest_that_holds_its_allocation_where_it_is_has_no_finding(shown, holds):
    assert judged(shown, guest=holds) is None


@pytest.mark.parametrize(
    ('shown', 'moves', 'held', 'down', 'reason'),
    [
        (
            server(status='MIGRATING', task_state='migrating'),
            [move('running')],
            {'guest': on('host2'), 'claim': on('host1')},
            (),
            'its task is migrating, and live-migration 4 from host1 to host2 is running',
        ),
        (
            server(status='MIGRATING', task_state='migrating'),
            [move('queued')],
            {'guest': on('host2'), 'claim': on('host1')},
            ('host1',),
            'live-migration 4 from host1 to host2 is queued, and nova-compute on host1 is down',
        ),
        (
            server(status='MIGRATING', task_state='migrating'),
            [move('accepted', destination=None)],
            {'claim': on('host1')},
            (),
            'from host1 to no host yet is accepted',
        ),
        (
            server(host='host2', status='VERIFY_RESIZE', vm_state='resized'),
            [move('finished', kind='resize')],
            {'guest': on('host2'), 'claim': on('host1')},
            (),
            'it is resized, and resize 4 from host1 to host2 is finished',
        ),
        (
            server(),
            [move('post-migrating', kind='migration')],
            {'guest': on('host2'), 'claim': on('host1')},
            (),
            'migration 4 from host1 to host2 is post-migrating',
        ),
        (
            server(host=None, status='BUILD', vm_state='building', task_state='scheduling'),
            [],
            {'guest': on('host1')},
            (),
            'its task is scheduling',
        ),
        (
            server(host='host2'),
            [move('done', kind='evacuation')],
            {'guest': on('host1', 'host2')},
            ('host1',),
            'evacuation 4 from host1 to host2 is done, and nova-compute on host1 is down: Nova releases the allocation',
        ),
        (
            server(host='host2'),
            [move('pre-migrating', kind='evacuation')],
            {'guest': on('host1', 'host2')},
            (),
            'evacuation 4 from host1 to host2 is pre-migrating',
        ),
    ],
    ids=['running', 'queued, host down', 'accepted', 'resized', 'cold', 'building', 'evacuated', 'evacuating'],
)
def test_operation_in_progress_is_no_error_and_is_not_repaired(shown, moves, held, down, reason):
    found = judged(shown, *moves, down=down, **held)
    assert (found.verdict, found.wrong, found.request) == (audit.IN_PROGRESS, False, None)
    assert reason in found.reason


def test_guest_on_a_host_without_a_hypervisor_is_not_judged():
    found = judged(server(host='host9'), guest=on('host1'))
    assert (found.verdict, found.wrong, found.request) == (audit.NOT_JUDGED, False, None)
    assert 'start nova-compute on host9' in found.remedy


# --- wrong, and repaired ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('shown', 'moves', 'held', 'verdict', 'writes'),
    [
        (
            server(),
            [move('error')],
            {'guest': on('host2'), 'claim': on('host1', 'gpu1')},
            audit.WRONG_HOST,
            {GUEST: ['gpu1', 'host1'], CLAIM: []},
        ),
        (
            server(host='host2'),
            [move('completed')],
            {'guest': on('host2'), 'claim': on('host1')},
            audit.LEAKED,
            {GUEST: ['host2'], CLAIM: []},
        ),
        (
            server(host='host2'),
            [move('error')],
            {'guest': on('host2'), 'claim': on('host1')},
            audit.LEAKED,
            {GUEST: ['host2'], CLAIM: []},
        ),
        (
            server(host='host2', status='SHUTOFF'),
            [move('confirmed', kind='resize')],
            {'guest': on('host2'), 'claim': on('host1')},
            audit.LEAKED,
            {GUEST: ['host2'], CLAIM: []},
        ),
        (
            server(host='host2', status='SHUTOFF'),
            [move('completed', kind='evacuation')],
            {'guest': on('host1', 'gpu1', 'host2')},
            audit.DOUBLED,
            {GUEST: ['host2']},
        ),
    ],
    ids=['killed while running', 'completed', 'reset', 'resized', 'evacuated'],
)
def test_allocation_that_an_ended_move_left_is_repaired_in_one_write(shown, moves, held, verdict, writes):
    found = judged(shown, *moves, **held)
    assert (found.verdict, found.doubt, written(found)) == (verdict, None, writes)
    assert found.right.endswith(f'on {shown.host}, and nothing else') or 'no compute host' in found.right


def test_repair_is_one_post_with_the_generations_that_were_read():
    found = judged(server(), move('error'), guest=on('host2'), claim=on('host1'))
    owner = {'project_id': 'blue', 'user_id': 'ada'}
    assert found.request == {
        'method': 'POST',
        'url': '/allocations',
        'body': {
            GUEST: owner
            | {
                'allocations': {'host1': {'resources': SMALL}},
                'consumer_generation': 7,
                'consumer_type': 'INSTANCE',
            },
            CLAIM: owner | {'allocations': {}, 'consumer_generation': 8, 'consumer_type': 'MIGRATION'},
        },
    }


def test_guest_without_an_allocation_gets_the_owner_of_its_migration():
    found = judged(server(), move('accepted'), claim=on('host1'))
    body = found.request['body'][GUEST]
    assert (body['project_id'], body['user_id'], body['consumer_generation']) == ('blue', 'ada', None)


def test_allocation_of_a_server_that_nova_has_deleted_is_removed():
    found = judged(None, deleted='server', guest=on('host1'))
    assert (found.verdict, found.doubt, written(found)) == (audit.LEAKED, None, {GUEST: []})
    assert 'server' in found.reason
    assert found.right == 'nothing'


# --- wrong, and repaired only if it is named -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('shown', 'moves', 'held', 'verdict', 'doubt'),
    [
        (
            server(host='host2', status='ERROR'),
            [move('error')],
            {'guest': on('host2'), 'claim': on('host1')},
            audit.LEAKED,
            'live-migration 4 is error, and the server is ERROR',
        ),
        (
            server(status='SHUTOFF'),
            [move('error')],
            {'guest': on('host2'), 'claim': on('host1')},
            audit.WRONG_HOST,
            'live-migration 4 is error, and the server is SHUTOFF',
        ),
        (
            server(),
            [move('running')],
            {'guest': on('host2'), 'claim': on('host1')},
            audit.WRONG_HOST,
            'live-migration 4 is running, although the server has no task',
        ),
        (
            server(),
            [move('queued')],
            {'guest': on('host2'), 'claim': on('host1', 'pool')},
            audit.WRONG_HOST,
            'nova-compute was restarted, or the state was reset',
        ),
        (server(), [move('accepted')], {'claim': on('host1')}, audit.MISSING, 'live-migration 4 is accepted'),
        (
            server(),
            [move('accepted', destination=None, number=5, uuid='later-uuid'), move('error')],
            {'guest': on('host2'), 'claim': on('host1')},
            audit.WRONG_HOST,
            'live-migration 5 is accepted',
        ),
        (
            server(),
            [move('error', kind='migration')],
            {'guest': on('host2'), 'claim': on('host1')},
            audit.WRONG_HOST,
            'migration 4 is error',
        ),
        (
            server(host='host2'),
            [move('done', kind='evacuation')],
            {'guest': on('host1', 'host2')},
            audit.DOUBLED,
            'no move explains its allocation on host1',
        ),
        (
            server(host='host2'),
            [],
            {'guest': on('host1', 'host2')},
            audit.DOUBLED,
            'no move explains its allocation on host1',
        ),
        (
            server(),
            [move('error')],
            {'guest': on('host3'), 'claim': on('host1')},
            audit.WRONG_HOST,
            'no move explains its allocation on host3',
        ),
        (server(host=None, status='ERROR'), [], {'guest': on('host1')}, audit.LEAKED, 'why the server has no host'),
        (None, [], {'guest': on('host1')}, audit.UNKNOWN_CONSUMER, 'find out which service uses it'),
        (
            server(),
            [move('completed')],
            {'guest': on('host2'), 'claim': on('host1')},
            audit.WRONG_HOST,
            'live-migration 4 to host2 is completed, and Nova shows it on host1',
        ),
        (
            server(),
            [move('error', number=5, uuid='later-uuid'), move('completed')],
            {'guest': on('host2'), 'claim': on('host1')},
            audit.WRONG_HOST,
            'live-migration 4 to host2 is completed, and Nova shows it on host1',
        ),
    ],
    ids=[
        'post failed',
        'off',
        'reset while running',
        'reset while queued',
        'not claimed',
        'requested again',
        'cold move failed',
        'evacuated, host up again',
        'doubled, unexplained',
        'another destination',
        'no host',
        'unknown',
        'half written',
        'half written, then requested again',
    ],
)
def test_repair_with_a_doubt_needs_the_name_of_the_consumer(shown, moves, held, verdict, doubt):
    found = judged(shown, *moves, **held)
    assert (found.verdict, bool(found.writes)) == (verdict, True)
    assert doubt in found.doubt
    assert f'--consumer {GUEST}' in found.remedy
    assert not audit.repairable(found, [])[0]
    assert audit.repairable(found, [GUEST])[0]


def test_migration_that_no_list_shows_is_repaired_only_if_it_is_named():
    found = judged(None, deleted='migration', guest=on('host1'))
    assert (found.verdict, written(found)) == (audit.LEAKED, {GUEST: []})
    assert 'in a cell that does not answer, or it was deleted' in found.doubt
    assert not audit.repairable(found, [])[0]


def test_while_a_cell_does_not_answer_or_a_list_lacks_a_migration_each_repair_has_a_doubt():
    case = audit.Case(
        consumer=GUEST,
        server=server(host='host2'),
        migrations=[move('completed')],
        held={
            uuid: ConsumerAllocations(
                uuid=uuid, generation=1, allocations=held, project_id='blue', user_id='ada', consumer_type=None
            )
            for uuid, held in ((GUEST, on('host2')), (CLAIM, on('host1')))
        },
    )
    assert audit.judge(case, audit.Hosts(of=HOSTS)).doubt is None
    assert 'cell of host3 does not' in audit.judge(case, audit.Hosts(of=HOSTS, unread=['host3'])).doubt
    lacks = dataclasses.replace(case, unlisted=['other'])
    assert 'a list of Nova lacks other' in audit.judge(lacks, audit.Hosts(of=HOSTS)).doubt


def test_half_written_move_is_not_booked_where_the_guest_may_not_be():
    found = judged(server(), move('completed'), guest=on('host2'))
    assert (found.verdict, found.request) == (audit.WRONG_HOST, None)
    assert 'nova-manage' not in found.remedy
    assert 'live-migration 4 to host2 is completed' in found.remedy


# --- wrong, without a repair -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('shown', 'held', 'verdict'),
    [
        (server(), {}, audit.MISSING),
        (server(), {'guest': on('host2')}, audit.WRONG_HOST),
        (server(), {'guest': on('host1', 'host2', 'pool')}, audit.DOUBLED),
        (server(), {'guest': on('host2'), 'claim': on('host3')}, audit.WRONG_HOST),
        (server(), {'guest': on('host2'), 'claim': on('host1', 'host3')}, audit.WRONG_HOST),
    ],
    ids=['missing', 'elsewhere', 'shared', 'claim elsewhere', 'claim on two hosts'],
)
def test_allocation_that_no_consumer_has_kept_is_left_to_nova_manage(shown, held, verdict):
    found = judged(shown, move('failed'), **held)
    assert (found.verdict, found.request, found.right) == (verdict, None, None)
    assert found.remedy == f'nova-manage placement heal_allocations --instance {GUEST} --force'
