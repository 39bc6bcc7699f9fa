# SPDX-License-Identifier: Apache-2.0

"""What a wrong word gets: the nearest one, and the help of the verb that was meant."""

import pytest
import sqlalchemy as sa


@pytest.mark.parametrize(
    ('words', 'ends'),
    [
        (('darin', 'list'), '; is drain meant? See migrator-manage --help'),
        (('drain', 'shwo', 'x'), '; is show meant? See migrator-manage drain --help'),
        (
            ('drain', 'start', 'host1', '--destinaton', 'host2'),
            '--destinaton host2; is --destination meant? See migrator-manage drain start --help',
        ),
        (('drain', 'list', '--xyz'), 'unrecognized arguments: --xyz. See migrator-manage drain list --help'),
        (
            ('drain', 'start', 'host1', '--deadline', 'soon'),
            'or a span from now of at most 365000d, such as 30d, 12h or 90m. See migrator-manage drain start --help',
        ),
    ],
)
def test_wrong_word_gets_the_nearest_one_and_the_help_of_its_verb(refused, words, ends):
    assert refused(*words).rstrip().endswith(ends)


@pytest.mark.parametrize('noun', ['drain', 'migration', 'cleanup', 'service', 'instance'])
def test_list_of_a_host_that_nothing_names_is_an_error(operator, noun):
    status, out = operator.status(noun, 'list', '--host', 'hots1')
    assert (status, out) == (1, '')
    assert operator.err.strip() == 'migrator-manage: Compute host hots1 could not be found; is host1 meant?'
    assert operator.status(noun, 'list', '--host', 'host1')[0] == 0


@pytest.mark.parametrize('words', [('plan', 'hots1'), ('start', 'hots1'), ('start', 'host2', '--destination', 'hots1')])
def test_host_of_a_drain_that_is_misspelt_gets_the_nearest_one(operator, words):
    assert operator.status('drain', *words) == (1, '')
    assert operator.err.strip() == 'migrator-manage: Compute host hots1 could not be found; is host1 meant?'


def test_openstack_and_rest_name_the_nearest_host(operator):
    request = operator.cloud.request
    for path in ('hosts/hots1', 'drains?host=hots1', 'drains?host=hots1&in_progress=true'):
        answer = request('GET', f'/migrator/v1/{path}')
        assert (answer.status_int, 'Compute host hots1 could not be found; is host1 meant?' in answer.text) == (
            404,
            True,
        )
    assert request('GET', '/migrator/v1/drains?host=host1').json == {'drains': []}


def test_host_that_was_deleted_has_its_history(operator):
    cloud = operator.cloud
    guest = cloud.boot('guest', 'host1')
    cloud.live_migrate(guest, 'host2')
    cloud.wait()
    with cloud.database.engine.writer() as session:
        session.execute(sa.text("DELETE FROM services WHERE host = 'host1'"))
    assert [row['GUEST'] for row in operator.rows('migration', 'list', '--host', 'host1')] == ['guest']


def test_guest_and_drain_are_named_by_what_an_operator_knows(operator):
    cloud = operator.cloud
    cloud.boot('web', 'host1')
    operator.observed('drain', 'start', 'host1')
    status, out = operator.status('drain', 'pause', 'host1')
    (drain,) = cloud.database.drains.list()
    assert (status, out.strip()) == (0, f'Drain {drain.uuid} of host1: paused. Migrations in progress go on.')
    assert operator.err == f'host1: drain {drain.uuid} of host1\n'
    assert operator.json('drain', 'show', drain.uuid[:8])['host'] == 'host1'
    assert operator.status('drain', 'resume', 'host1')[0] == 0
    cloud.wait()
    assert operator.json('migration', 'show', 'web')['drain'] == drain.uuid
    assert [one['uuid'] for one in operator.json('migration', 'list', '--instance', 'web')['migrations']]
    status, _out = operator.status('migration', 'show', 'mail')
    assert (status, 'Migration mail could not be found' in operator.err) == (1, True)
