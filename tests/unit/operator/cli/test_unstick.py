# SPDX-License-Identifier: Apache-2.0

"""migrator-manage migration retry and abandon: their refusals, plans and waits."""

import re

import pytest

from migrator import exception
from migrator.conductor.migration import settle
from migrator.operator.cli import command


@pytest.fixture
def stuck(operator, monkeypatch):
    """A stuck migration: its source lost power after the time in which the copy would have ended."""
    monkeypatch.setattr(settle, 'SECONDS_PER_GIB', 0)
    monkeypatch.setenv('LOGNAME', 'ada')
    cloud = operator.cloud
    instance = cloud.boot('one', 'host1', memory_mb=4096)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.simulation.run_until(lambda: cloud.migrations()[0].status == 'running')
    cloud.world.hypervisors['host1'].power_off()
    cloud.kill('host1')
    cloud.simulation.run_until(lambda: cloud.migrations()[0].stuck_reason, timeout=300)
    return cloud.migrations()[0]


@pytest.fixture
def no_broker(monkeypatch):
    """An unreachable broker, so that no conductor is woken."""

    def wake(asked, context, uuid, server):
        raise exception.ServiceUnreachable(service='The message broker', reason='away')

    monkeypatch.setattr(command.Asked, 'wake', wake)


def test_the_refusal_of_a_migration_that_is_not_stuck_shows_its_state(operator):
    instance = operator.cloud.boot('one', 'host1')
    assert operator.cloud.live_migrate(instance).status_int == 202
    operator.cloud.wait()
    for words in (('retry', '1'), ('abandon', '1', '--guest-on', 'host1')):
        status, out = operator.status('migration', *words)
        assert (status, out) == (1, '')
        assert re.search(r'is not stuck: it ended completed .* ago\.', operator.err)


def test_a_dry_run_shows_both_allocations_the_other_host_and_the_end(operator, stuck):
    text = operator.observed('migration', 'abandon', stuck.uuid, '--guest-on', 'host1')
    amounts = 'VCPU 1, MEMORY_MB 4096, DISK_GB 1'
    assert f'* Allocation of the instance in Placement: now {amounts} at host2; then {amounts} at host1.' in text
    assert f'* Allocation of the migration in Placement: now {amounts} at host1; then nothing.' in text
    assert '* host2 removes what was prepared for the guest there' in text
    assert '* It ends in error. The instance is at host1 then' in text
    assert 'Nothing is started, resumed, stopped or removed at host1' in text
    assert text.endswith(f'migration abandon {stuck.uuid} --guest-on host1 --yes\n')
    document = operator.json('migration', 'abandon', stuck.uuid, '--guest-on', 'host1')
    assert document['dry_run'] is True
    # The REST API has the same plan, whose allocations a conductor reads.
    path, body = f'/migrator/v1/migrations/{stuck.uuid}/action', {'guest_on': 'host1', 'dry_run': True}
    response = operator.cloud.request('POST', path, {'abandon': body})
    assert response.json == {'dry_run': True, 'plan': document['plan']}
    assert operator.cloud.request('GET', '/migrator/v1/findings').json == {'findings': []}


@pytest.mark.parametrize('name', ['migrator.conf', 'of the west site.conf'])
def test_the_commands_in_the_timeline_of_a_stuck_migration_can_be_pasted(operator, stuck, name):
    """The commands once lacked the options of the configuration, and so used another database or none."""
    operator.file = operator.file.rename(operator.file.with_name(name))
    text = operator.observed('migration', 'show', stuck.uuid)
    retry, look, do = (line for line in text.splitlines() if line.startswith('  migrator-manage '))
    assert operator.json('migration', 'show', stuck.uuid)['timeline']['next'].count(retry) == 1
    status, out = operator.pastes(retry)
    assert (status, out.partition(':')[0]) == (1, 'It was observed again, and is still stuck')
    status, out = operator.pastes(look.replace('HOST', 'host1'))
    assert (status, 'Nothing was changed' in out) == (0, True)
    # The command that this plan prints is the last one of the timeline.
    assert out.splitlines()[-1] == do.replace('HOST', 'host1')
    status, out = operator.pastes(out.splitlines()[-1])
    assert (status, 'It has ended error' in out) == (0, True)


def test_the_command_for_a_blocked_cleanup_can_be_pasted(operator, stuck):
    cloud = operator.cloud
    assert operator.status('migration', 'abandon', stuck.uuid, '--guest-on', 'host2', '--yes')[0] == 0
    (blocked,) = cloud.database.cleanups.list()
    assert blocked.blocked_because
    (line,) = (one for one in operator.json('migration', 'show', stuck.uuid)['timeline']['next'] if 'retry' in one)
    status, out = operator.pastes(line[line.index('migrator-manage ') :])
    assert (status, out.startswith('With its next sweep a conductor has host1 do')) == (0, True)
    assert cloud.database.cleanups.list()[0].blocked_because is None


def test_a_dry_run_works_without_placement(operator, stuck, unused_port):
    operator.configure(f'http://127.0.0.1:{unused_port}')
    text = operator.observed('migration', 'abandon', stuck.uuid, '--guest-on', 'host2')
    assert '* Allocation of the instance in Placement: not known now (Placement is not reachable' in text
    assert '* host1 removes what is left of the guest there, if host2 reports that it runs the guest' in text


def test_a_retry_waits_for_its_result(operator, stuck):
    status, out = operator.status('migration', 'retry', stuck.uuid)
    assert (status, operator.err) == (1, f'migration {stuck.uuid} of guest one ({stuck.instance_uuid})\n')
    assert out.startswith('It was observed again, and is still stuck: The source host1 is down')
    operator.cloud.world.hypervisors['host1'].power_on()
    operator.cloud.start_compute('host1')
    operator.cloud.simulation.run_until(operator.cloud.up)
    status, out = operator.status('migration', 'retry', stuck.uuid)
    # The migration may have gone on by itself as soon as the host was back.
    assert 'no longer stuck' in out or 'is not stuck' in operator.err
    operator.cloud.wait()


def test_without_a_broker_the_sweep_finds_the_request(operator, stuck, no_broker):
    status, out = operator.status('migration', 'abandon', stuck.uuid, '--guest-on', 'host1', '--yes')
    assert status == 0
    assert out.splitlines()[-1] == ('It has ended error: Abandoned by ada with the guest on host1.')
    assert 'no conductor was woken, its sweep finds the request' in operator.err
    assert operator.err.count('\n') == 2


def test_without_waiting_the_request_exits_0(operator, stuck):
    operator.cloud.kill('conductor1')
    out = operator.observed('migration', 'retry', stuck.uuid, '--wait', 0)
    assert out == 'The retry is requested, and no conductor has done it yet.\n'
    assert operator.cloud.migrations()[0].retry_requested_by == 'ada'
    status, out = operator.status('migration', 'retry', stuck.uuid, '--wait', 1)
    assert (status, 'no conductor has done it yet' in out) == (1, True)
    out = operator.observed('migration', 'abandon', stuck.uuid, '--guest-on', 'host1', '--yes', '--wait', 0)
    assert 'has not ended yet' in out
    operator.cloud.start_conductor('conductor1')
    operator.cloud.wait()


def test_the_wait_ends_after_the_given_seconds(operator, stuck):
    operator.cloud.kill('conductor1')
    status, out = operator.status('migration', 'abandon', stuck.uuid, '--guest-on', 'host1', '--yes', '--wait', 3)
    assert status == 1
    assert 'has not ended yet' in out
    status, out = operator.status('migration', 'abandon', stuck.uuid, '--guest-on', 'host1', '--yes', '--wait', 0)
    assert status == 0
    # A second request cannot name another host.
    status, out = operator.status('migration', 'abandon', stuck.uuid, '--guest-on', 'host2', '--yes')
    assert (status, out) == (1, '')
    assert re.search('is being abandoned already, as requested .* by ada: the guest is on host1', operator.err)
    # A dry run of the same request shows the request, and not that the migration is stuck.
    out = operator.observed('migration', 'abandon', stuck.uuid, '--guest-on', 'host1')
    assert re.search(r'\* It is being abandoned already, as requested .* by ada: the guest is on host1\.', out)
    assert 'Nothing was changed, and no further request is needed. To wait for it:' in out
    assert 'It is stuck' not in out
    out = operator.observed('migration', 'show', stuck.uuid)
    assert 'That has not begun yet. It is stuck: ' in out
    assert 'goes on by itself' not in out
    operator.cloud.start_conductor('conductor1')
    operator.cloud.wait()


@pytest.mark.parametrize(
    'words',
    [
        ('retry',),
        ('retry', 'x'),
        ('abandon', '1'),
        ('abandon', '1', '--guest-on', ''),
        ('abandon', '1', '--guest-on', 'host1', '--yes', '--dry-run'),
        ('abandon', '1', '--guest-on', 'host1', '--wait', '-1'),
    ],
)
def test_wrong_usage_exits_2_with_one_line(refused, words):
    assert refused('migration', *words).count('\n') == 1
