# SPDX-License-Identifier: Apache-2.0

"""A driver of six methods keeps the contract, alone and in a whole cloud."""

import pytest

from migrator import exception
from migrator.objects import GuestState, LiveMigrateData
from migrator.simulator.invariants import check
from migrator.simulator.monitor import Monitor
from migrator.testing import driver_contract
from migrator.testing.cloud import SimulatedCloud
from migrator.testing.hypervisor.hypervisor import PARTS
from migrator.testing.hypervisor.job import Job
from migrator.testing.simulation.threads import Simulation
from migrator.virt.driver import Verdict
from migrator.virt.simple import SimpleDriver
from tests.unit.testing.hypervisor.fake_bench import FakeBench


class SixMethods(SimpleDriver):
    """A driver of a fake hypervisor that has the six methods and nothing else."""

    settle_seconds = 2.0

    def __init__(self, hypervisor, threads):
        super().__init__({name: one['total'] for name, one in hypervisor.capacity.inventory().items()}, threads)
        self.boot = f'{hypervisor.host}/{threads.new_uuid()}'
        self.hypervisor = hypervisor
        self.world = hypervisor.world

    def guests(self):
        with self.world.lock:
            return [self.hypervisor.describe(uuid) for uuid in self.hypervisor.guests]

    def receive(self, instance):
        with self.world.lock:
            guest = self.hypervisor.guests.get(instance.uuid)
            if guest is None:
                guest = self.hypervisor.add_guest(instance, GuestState.WAITING, self.boot)
            guest.incoming = True
            self.hypervisor.residues[instance.uuid] = set(PARTS)
        return {'address': f'fake://{self.hypervisor.host}'}

    def begin(self, instance, destination, facts):
        """Request a job of the hypervisor, which outlives this process."""
        uuid = instance.uuid
        with self.world.lock:
            other = self.world.hypervisors.get(destination)
            if other is None or facts['address'] != f'fake://{destination}':
                reason = f'host {destination} cannot be reached'
                raise exception.DriverError(host=self.host, phase='migrate', reason=reason)
            job = self.hypervisor.pending[uuid] = Job(
                self.hypervisor, self.hypervisor.guests[uuid], other, 0.0, self.boot
            )
        self.world.threads.start(job.run, name=f'job-{uuid}')
        return job

    def migrate(self, instance, destination, facts, report):
        job = self.begin(instance, destination, facts)
        job.begun.wait()
        if job.error is not None:
            raise RuntimeError(str(job.error))
        while not job.ended.is_set():
            figures = job.progress()
            report(figures.get('memory_total', 0), figures.get('memory_remaining', 0))
            job.ended.wait(0.5)
        if job.verdict is not Verdict.COMPLETED:
            raise RuntimeError(f'the job has {job.verdict}')

    def abort(self, instance_uuid):
        self._job('abort', instance_uuid)

    def force_complete(self, instance_uuid):
        self._job('force_complete', instance_uuid)

    def _job(self, name, instance_uuid):
        with self.world.lock:
            job = self.hypervisor.jobs.get(instance_uuid)
            if job is not None:
                getattr(job, name)()

    def remove(self, instance_uuid):
        with self.world.lock:
            self.hypervisor.remove(instance_uuid, self.boot)


class Resuming(SixMethods):
    """A driver that also resumes a guest that the hypervisor left paused."""

    def resume(self, instance_uuid):
        with self.world.lock:
            guest = self.hypervisor.guests[instance_uuid]
            self.hypervisor.set_state(guest, guest.resume_to, self.boot)


class Evacuating(SixMethods):
    """A driver that also evacuates guests."""

    stops = True

    def definition(self, instance_uuid):
        return {'name': f'guest {instance_uuid}'}

    def start_guest(self, instance, definition, state):
        if not definition['name'].endswith(instance.uuid):
            raise ValueError(f'no such disk: {definition}')
        if self.get_guest(instance.uuid).state not in (GuestState.ABSENT, GuestState.WAITING):
            raise RuntimeError(f'guest {instance.uuid} exists')
        with self.world.lock:
            self.hypervisor.add_guest(instance, state, self.boot)

    def stop_guest(self, instance_uuid):
        if self.stops:
            self.hypervisor.shut_off(instance_uuid)


class SimpleBench(FakeBench):
    driver = SixMethods

    def __init__(self, simulation):
        super().__init__(simulation)
        self.source = self.connect('alpha')
        self.destination = self.connect('beta')

    def connect(self, host):
        """Return the driver of a new start of a host's service."""
        made = self.driver(self.world.hypervisors[host], self.processes[host])
        made.init_host(host)
        return made

    def evacuating(self):
        """Connect drivers that evacuate guests too, and return the bench."""
        self.driver = Evacuating
        self.source, self.destination = self.connect('alpha'), self.connect('beta')
        return self

    def listeners(self):
        return self.source.attached(self.instance.uuid)

    def verdict(self, call):
        self.run_until(lambda: call.ended)
        return call.result()


@pytest.fixture
def bench():
    with Simulation(seed=1) as simulation:
        made = SimpleBench(simulation)
        yield made
        assert made.world.violations == []


@pytest.fixture
def evacuation(bench):
    return bench.evacuating()


class TestContract(driver_contract.EvacuationContract):
    describes_instances = False

    @pytest.fixture
    def bench(self, bench):
        return bench.evacuating()

    def pause(self, bench):
        bench.alpha.pause(bench.instance.uuid)


# --- the result of a migration ---------------------------------------------------------------------------------------


def test_failed_migration_of_a_guest_that_stays_raises_with_the_text_of_the_error(bench):
    bench.alpha.faults.fail('copying')
    with pytest.raises(exception.LiveMigrationFailed, match='RuntimeError: the job has failed'):
        bench.verdict(bench.move(bench.prepare()))
    assert bench.at_source().active


def test_failure_after_the_guest_has_left_is_unsettled(bench):
    class Disconnected(SixMethods):
        def migrate(self, *args):
            super().migrate(*args)
            raise ConnectionError('the hypervisor closed the connection')

    bench.driver = Disconnected
    bench.source = bench.connect('alpha')
    with pytest.raises(exception.MoveUnsettled, match='closed the connection'):
        bench.verdict(bench.move(bench.prepare()))
    assert bench.at_destination().active


def test_lost_connection_ends_the_call_only_when_the_job_has_ended(bench):
    class Disconnected(SixMethods):
        def migrate(self, instance, destination, facts, report):
            def lose(total, remaining):
                report(total, remaining)
                raise ConnectionError('the hypervisor closed the connection')

            super().migrate(instance, destination, facts, lose)

    bench.driver = Disconnected
    bench.source = bench.connect('alpha')
    bench.slow()
    call = bench.move(bench.prepare())
    bench.run_until(lambda: call.started)
    bench.simulation.advance(10.0)
    assert not call.ended
    assert bench.at_source().job
    bench.source.live_migration_abort(bench.instance)
    assert bench.verdict(call) is Verdict.ABORTED


def test_migrate_that_returns_while_the_guest_runs_here_is_a_failure(bench):
    class Careless(SixMethods):
        def migrate(self, instance, destination, facts, report):
            report(1, 1)

    bench.driver = Careless
    bench.source = bench.connect('alpha')
    with pytest.raises(exception.LiveMigrationFailed, match='reports no error'):
        bench.verdict(bench.move(bench.prepare()))


def test_request_without_an_answer_is_awaited_because_the_hypervisor_may_begin_yet(bench):
    class TimedOut(SixMethods):
        def migrate(self, instance, destination, facts, report):
            self.begin(instance, destination, facts)
            raise TimeoutError('no answer')

    bench.driver = TimedOut
    bench.source = bench.connect('alpha')
    stall = bench.alpha.faults.stall('starting')
    bench.slow()
    call = bench.move(bench.prepare())
    bench.run_until(stall.reached.is_set)
    stall.release()
    bench.simulation.advance(5.0)
    assert not call.ended
    assert bench.at_source().job
    bench.source.live_migration_abort(bench.instance)
    bench.run_until(lambda: call.ended)
    assert bench.at_source().active


def test_request_that_the_hypervisor_has_not_begun_counts_as_a_job(bench):
    stall = bench.alpha.faults.stall('starting')
    call = bench.move(bench.prepare())
    bench.run_until(stall.reached.is_set)
    assert bench.at_source().job
    with pytest.raises(exception.DriverError, match='has not ended'):
        bench.source.rollback_live_migration_at_source(bench.instance, None)
    stall.release()
    assert bench.verdict(call) is Verdict.COMPLETED


def test_error_of_a_subclass_names_host_and_method(bench):
    def guests():
        raise OSError('no such socket')

    bench.source.guests = guests
    with pytest.raises(exception.DriverError, match='The hypervisor of alpha failed in list_guests: OSError: no such'):
        bench.at_source()


# --- after a failure of the switchover -------------------------------------------------------------------------------


def left_paused(bench):
    bench.alpha.leave_paused = True
    bench.alpha.faults.fail('cutover')
    with pytest.raises(exception.MoveUnsettled, match='paused for cut-over here'):
        bench.verdict(bench.move(bench.prepare()))
    assert bench.at_source().state == GuestState.CUTOVER


def test_rollback_resumes_a_guest_that_the_hypervisor_left_paused(bench):
    bench.driver = Resuming
    bench.source = bench.connect('alpha')
    left_paused(bench)
    bench.source.rollback_live_migration_at_source(bench.instance, None)
    assert bench.at_source().active


def test_rollback_without_resume_says_what_an_operator_has_to_do(bench):
    left_paused(bench)
    with pytest.raises(exception.DriverError, match='resume it in the hypervisor'):
        bench.source.rollback_live_migration_at_source(bench.instance, None)


# --- restarts --------------------------------------------------------------------------------------------------------


def restart(bench):
    """Kill the process of the source, and return the driver of its next start."""
    bench.simulation.kill(bench.processes['alpha'])
    bench.processes['alpha'] = bench.simulation.process('alpha')
    bench.source = bench.connect('alpha')
    return bench.source


def test_settle_waits_until_a_request_of_a_killed_process_has_become_a_job(bench):
    stall = bench.alpha.faults.stall('starting')
    bench.slow()
    bench.move(bench.prepare())
    bench.run_until(stall.reached.is_set)
    call = bench.in_thread(restart(bench).settle, bench.instance.uuid)
    bench.simulation.advance(1.0)
    assert not call.ended
    stall.release()
    assert bench.verdict(call).job


def test_settle_returns_at_once_when_the_service_has_run_for_longer(bench):
    bench.simulation.advance(3.0)
    before = bench.simulation.time
    assert bench.source.settle(bench.instance.uuid).active
    assert bench.simulation.time == before


def test_job_of_a_killed_process_is_waited_for_without_a_verdict(bench):
    bench.slow()
    first = bench.move(bench.prepare())
    bench.run_until(lambda: first.started)
    source = restart(bench)
    assert bench.at_source().job
    attached = bench.in_thread(source.attach_live_migration, bench.instance.uuid)
    again = bench.move(LiveMigrateData())
    bench.run_until(lambda: again.started)
    assert not attached.ended
    source.live_migration_abort(bench.instance)
    assert bench.verdict(attached) is None
    with pytest.raises(exception.MoveUnsettled, match='earlier start of the service'):
        bench.verdict(again)
    assert bench.at_source().active


# --- evacuation ------------------------------------------------------------------------------------------------------


def test_failed_start_leaves_nothing_and_reports_the_text_of_the_error(evacuation):
    data = LiveMigrateData(source={'name': 'another guest'})
    with pytest.raises(exception.DriverError, match='no such disk'):
        evacuation.destination.evacuate(evacuation.instance, data)
    evacuation.destination.rollback_evacuation_at_destination(evacuation.instance, data)
    assert evacuation.beta.residue(evacuation.instance.uuid) == []


def test_rollback_waits_for_a_start_that_an_earlier_process_has_requested(evacuation):
    again, uuid = evacuation.connect('beta'), evacuation.instance.uuid
    evacuation.alpha.power_off()

    def late():
        evacuation.simulation.world.sleep(Evacuating.settle_seconds / 2)
        evacuation.beta.spawn(evacuation.instance)

    evacuation.simulation.world.start(late, name='hypervisor')
    call = evacuation.in_thread(again.rollback_evacuation_at_destination, evacuation.instance, None)
    evacuation.run_until(lambda: call.ended)
    with pytest.raises(exception.GuestStillHere):
        call.result()
    assert again.get_guest(uuid).active


def test_copy_that_does_not_stop_is_kept(evacuation):
    evacuation.source.stops = False
    with pytest.raises(exception.GuestStillHere):
        evacuation.source.post_evacuation_at_source(evacuation.instance, LiveMigrateData())
    assert evacuation.at_source().active


def test_check_refuses_guest_without_definition_and_guest_that_is_there(evacuation):
    with pytest.raises(exception.MigrationPreCheckError, match='alpha has not reported the definition'):
        evacuation.destination.check_can_evacuate(evacuation.instance, LiveMigrateData())
    with pytest.raises(exception.MigrationPreCheckError, match='alpha already has guest'):
        evacuation.source.check_can_evacuate(evacuation.instance, evacuation.definition())


def test_driver_of_six_methods_refuses_evacuation_and_keeps_the_guest(bench):
    instance, data = bench.instance, LiveMigrateData(source={'name': 'guest'})
    assert bench.source.get_definition(instance.uuid) is None
    with pytest.raises(exception.MigrationPreCheckError, match='the driver SixMethods cannot start a guest'):
        bench.destination.check_can_evacuate(instance, data)
    with pytest.raises(exception.DriverError, match='the driver SixMethods cannot start a guest'):
        bench.destination.evacuate(instance, data)
    with pytest.raises(exception.DriverError, match='still runs here: stop it in the hypervisor'):
        bench.source.post_evacuation_at_source(instance, data)
    assert (bench.at_source().state, bench.at_destination().state) == ('running', 'absent')


# --- in a cloud ------------------------------------------------------------------------------------------------------


class Cloud(SimulatedCloud):
    """A cloud whose compute hosts have drivers of six methods."""

    def driver_for(self, host, conf, threads):
        return Resuming(self.world.hypervisors[host], threads)


@pytest.fixture
def cloud(backend):
    made = Cloud(backend.directory, hosts=2, seed=1, backend=backend, link=32.0)
    made.monitor = Monitor(made)
    try:
        yield made
        made.wait()
        made.simulation.run()
        check.assert_holds(made.monitor.snapshot(), seen=made.monitor.violations)
    finally:
        made.monitor.close()
        made.stop()


def migrate(cloud):
    """Request the migration of a guest, and return the guest when the copy is under way."""
    guest = cloud.boot('guest', 'host1')
    assert cloud.live_migrate(guest, host='host2').status_int == 202
    cloud.simulation.run_until(lambda: cloud.world.hypervisors['host1'].jobs)
    return guest


def end(cloud, guest):
    """Return the status of the migration at its end, and the hosts that have something of the guest."""
    cloud.wait()
    cloud.simulation.run()
    (migration,) = cloud.migrations(guest)
    return migration.status, [name for name, host in cloud.world.hypervisors.items() if host.residue(guest.uuid)]


def test_guest_is_migrated_and_its_progress_is_shown(cloud):
    guest = migrate(cloud)
    path = f'/servers/{guest.uuid}/migrations'
    cloud.simulation.run_until(
        lambda: 0 < (cloud.request('GET', path).json['migrations'][0]['memory_remaining_bytes'] or 0) < 512 << 20
    )
    assert end(cloud, guest) == ('completed', ['host2'])
    assert cloud.database.instances.get(guest.uuid).host == 'host2'


def test_aborted_migration_leaves_nothing_at_the_destination(cloud):
    guest = migrate(cloud)
    cloud.simulation.run_until(lambda: cloud.migrations(guest)[0].status == 'running')
    path = f'/servers/{guest.uuid}/migrations/{cloud.migrations(guest)[0].id}'
    assert cloud.request('DELETE', path).status_int == 202
    assert end(cloud, guest) == ('cancelled', ['host1'])


@pytest.mark.parametrize('phase', ['starting', 'copying', 'cutover'])
def test_failed_migration_leaves_the_guest_at_the_source(cloud, phase):
    source = cloud.world.hypervisors['host1']
    source.leave_paused = True
    source.faults.fail(phase)
    guest = cloud.boot('guest', 'host1')
    assert cloud.live_migrate(guest, host='host2').status_int == 202
    assert end(cloud, guest) == ('failed', ['host1'])
    assert source.guests[guest.uuid].state == GuestState.RUNNING


@pytest.mark.parametrize('host', ['host1', 'host2'])
def test_migration_continues_after_the_process_of_a_host_was_killed(cloud, host):
    guest = migrate(cloud)
    cloud.kill(host)
    cloud.start_compute(host)
    assert end(cloud, guest) == ('completed', ['host2'])


def test_migration_continues_after_the_source_was_killed_before_the_hypervisor_has_begun(cloud):
    stall = cloud.world.hypervisors['host1'].faults.stall('starting')
    guest = cloud.boot('guest', 'host1')
    assert cloud.live_migrate(guest, host='host2').status_int == 202
    cloud.simulation.run_until(stall.reached.is_set)
    cloud.kill('host1')
    cloud.simulation.process('hypervisor').start(stall.release, name='release')
    cloud.start_compute('host1')
    assert end(cloud, guest) == ('completed', ['host2'])
