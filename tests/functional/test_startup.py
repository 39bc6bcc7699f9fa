# SPDX-License-Identifier: Apache-2.0


"""Starting when something is missing: a clear error if waiting does not help, else a wait."""

import re
import sys

import pytest
from oslo_config import cfg

from migrator import exception
from migrator.compute.manager import ComputeManager
from migrator.conf import opts
from migrator.db.schema import sync
from migrator.db.sql.engine import Engine
from migrator.testing.hypervisor.driver import FakeDriver
from migrator.testing.placement_faults import Fault
from tests import forked
from tests.functional import commands, state

USAGE = 2


def run(tmp_path, command, text):
    """Run a service with a configuration file until it ends; return (exit status, output lines)."""
    file = tmp_path / 'migrator.conf'
    file.write_text(text)
    argv = [sys.executable, '-m', f'migrator.cmd.{command}', '--config-file', str(file)]
    ended = forked.run(argv, env=commands.environment(tmp_path), timeout=commands.PATIENCE)
    said = [line for line in ended.stderr.splitlines() if line.startswith(f'migrator-{command}: ')]
    assert 'Traceback' not in ended.stderr
    return ended.returncode, said


# --- configuration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('value', ['0', '-1', 'many', '1.5', ''])
def test_a_limit_that_is_no_number_of_1_or_more_is_named_with_what_would_do(tmp_path, value):
    text = f'[DEFAULT]\nmax_concurrent_live_migrations = {value}\ntransport_url = fake://\n[compute]\ndriver = fake\n'
    status, said = run(tmp_path, 'compute', text)
    assert status == USAGE
    assert len(said) == 1
    assert '[DEFAULT] max_concurrent_live_migrations' in said[0]
    assert f"'{value}'" in said[0]
    assert 'give a whole number of 1 or more' in said[0]


@pytest.mark.parametrize('value', ['0', 'many', ''])
@pytest.mark.simulated(reason='it reaches into a service')
def test_embedding_service_gets_the_same_error(cloud, tmp_path, value):
    file = tmp_path / 'compute.conf'
    file.write_text(f'[DEFAULT]\nmax_concurrent_live_migrations = {value}\n')
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf(['--config-file', str(file)], project='migrator', default_config_dirs=[])
    threads, events = cloud.threads_for('host1'), cloud.computes['host1'].events
    driver = FakeDriver(cloud.world.hypervisors['host1'], threads)
    with pytest.raises(exception.ConfigurationError, match=r'max_concurrent_live_migrations(?s:.*)1 or more') as raised:
        ComputeManager(conf, 'host1', driver, threads, events)
    assert value in str(raised.value)
    assert raised.value.code == 400


@pytest.mark.simulated(reason='it reaches into a service')
def test_reload_with_an_invalid_limit_changes_nothing(cloud):
    compute = cloud.computes['host1']
    with pytest.raises(ValueError, match='1'):
        compute.conf.set_override('max_concurrent_live_migrations', 0)
    compute.reset()
    instance = cloud.boot('one', 'host1')
    cloud.live_migrate(instance)
    cloud.wait()
    state.completed(cloud, instance, 'host2')


# --- the database ----------------------------------------------------------------------------------------------------

PLACEMENT = '[placement]\nauth_type = none\nendpoint_override = http://127.0.0.1:1/placement\n'


def test_a_schema_that_was_never_made_ends_the_service_and_says_which_command_makes_it(tmp_path):
    text = f'[DEFAULT]\ntransport_url = fake://\n[database]\nconnection = sqlite:///{tmp_path}/new.sqlite\n{PLACEMENT}'
    status, said = run(tmp_path, 'conductor', text)
    assert status == USAGE
    assert len(said) == 1
    assert re.search(r"has no schema yet.*run 'migrator-manage db sync'", said[0])


def test_a_database_that_is_not_there_is_a_clear_error(tmp_path, cloud):
    engine = Engine(f'sqlite:///{tmp_path}/no/such/directory.sqlite', cloud.world.threads)
    with pytest.raises(exception.DatabaseUnreachable, match='The database is not reachable: ') as raised:
        sync.check(engine)
    assert '\n' not in str(raised.value)
    assert raised.value.code == 503


@pytest.mark.simulated(reason='it acts at single commits')
def test_a_conductor_that_starts_while_the_database_refuses_says_so_and_leaves_nothing_behind(cloud):
    outage = state.Outage(cloud, 5)
    with pytest.raises(exception.DatabaseUnreachable):
        cloud.start_conductor('conductor2')
    assert outage.refused
    assert cloud.bus.servers('conductor') == ['conductor1']
    cloud.simulation.advance(6)
    cloud.start_conductor('conductor2')
    assert cloud.bus.servers('conductor') == ['conductor1', 'conductor2']


@pytest.mark.simulated(reason='it acts at single commits')
def test_while_the_database_is_away_a_request_is_a_503_and_nothing_was_accepted(cloud):
    instance = cloud.boot('one', 'host1')
    before = state.everything(cloud)
    state.Outage(cloud, 5)
    response = cloud.live_migrate(instance)
    assert response.status_int == 503
    assert response.headers['Retry-After']
    assert 'The database is not reachable at present: try again.' in response.text
    assert 'planned by the test' not in response.text, 'why is for the log alone'
    assert state.everything(cloud) == before
    assert state.migrations(cloud, instance) == []
    cloud.simulation.advance(6)
    assert cloud.live_migrate(instance).status_int == 202
    cloud.wait()
    state.completed(cloud, instance, 'host2')


# --- Placement, and the others ---------------------------------------------------------------------------------------


@pytest.mark.parametrize('fault', [Fault.UNREACHABLE, Fault.TIMEOUT_NOT_DONE, Fault.TIMEOUT_DONE, Fault.ERROR_DONE])
@pytest.mark.simulated(reason='it decides what becomes of single requests to Placement')
def test_a_host_that_starts_while_placement_is_away_is_up_and_is_a_destination_when_it_is_back(cloud, fault):
    cloud.adapter.inject(fault, times=5)
    cloud.add_host('host4')
    cloud.simulation.advance(5)
    listed = {one['host']: one['state'] for one in state.get(cloud, '/os-services?binary=nova-compute')['services']}
    assert listed == dict.fromkeys(['host1', 'host2', 'host3', 'host4'], 'up')
    cloud.simulation.run_until(cloud.up)
    instance = cloud.boot('one', 'host1')
    cloud.live_migrate(instance, 'host4')
    cloud.wait()
    state.completed(cloud, instance, 'host4')


@pytest.mark.simulated(reason='it decides what becomes of single requests to Placement')
def test_a_host_that_is_started_again_while_placement_is_away_goes_on_with_its_migrations(cloud):
    instance = cloud.boot('one', 'host1')
    stall = cloud.world.hypervisors['host1'].faults.stall('copying', sticky=True)
    cloud.live_migrate(instance, 'host2')
    cloud.simulation.run_until(stall.reached.is_set)
    cloud.adapter.inject(Fault.UNREACHABLE, times=30)
    state.kill(cloud, 'host1')
    cloud.start_compute('host1')
    cloud.simulation.advance(20)
    stall.release()
    cloud.wait()
    state.completed(cloud, instance, 'host2')


@pytest.mark.simulated(reason='it adds a host to what is there')
def test_a_host_that_starts_before_any_conductor_waits_for_one(cloud):
    state.kill(cloud, 'conductor1')
    cloud.add_host('host4')
    cloud.simulation.advance(100)
    assert not cloud.up()
    cloud.start_conductor('conductor1')
    cloud.simulation.run_until(cloud.up, timeout=120)


@pytest.mark.seeds(None, 11)
@pytest.mark.simulated(reason='it lets minutes pass')
def test_a_migration_that_is_asked_for_while_no_conductor_lives_is_taken_up_by_the_first_that_does(cloud):
    instance = cloud.boot('one', 'host1')
    state.kill(cloud, 'conductor1')
    assert cloud.live_migrate(instance).status_int == 202
    cloud.simulation.advance(100)
    assert state.in_progress(cloud, instance)[0]['status'] == 'accepted'
    cloud.start_conductor('conductor1')
    cloud.wait()
    state.completed(cloud, instance, 'host2')


@pytest.mark.simulated(reason='it waits for a host to be given up, which takes minutes')
def test_below_2_34_the_answer_is_202_when_no_conductor_has_looked_within_sync_timeout(cloud):
    instance = cloud.boot('one', 'host1')
    state.kill(cloud, 'conductor1')
    asked = cloud.simulation.time
    assert cloud.live_migrate(instance, version='2.30').status_int == 202
    assert cloud.simulation.time - asked >= 20
    assert state.in_progress(cloud, instance)[0]['status'] == 'accepted', 'the row stands'
    cloud.start_conductor('conductor1')
    cloud.wait()
    state.completed(cloud, instance, 'host2')
