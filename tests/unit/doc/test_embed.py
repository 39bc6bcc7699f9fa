# SPDX-License-Identifier: Apache-2.0

"""The code of the page on embedding runs: two hosts of a service, and a real conductor.

Their moves block the system's thread that waits for them; that everything else goes on is part of every test.
"""

import pytest

from migrator import rpc
from migrator.conductor import registry
from migrator.objects import Flavor, Instance
from migrator.testing import cloud, toyhv
from tests.unit.doc import conftest


class Cloud(cloud.Cloud):
    """A conductor and an API; they and the hosts talk by oslo.messaging, within this process."""

    def rpc_for(self, name, sender=''):
        transport = rpc.get_transport(self.conf(), 'fake://')
        return self.recorder.wrap(rpc.OsloRPC(transport), sender)


class Site:
    """Hosts alpha and beta as the page has them."""

    def __init__(self, directory, page, threads):
        self.directory = directory
        self.threads = threads
        self.page = page
        self.toy = toyhv.Cluster()
        self.cloud = Cloud(directory, hosts=0, options={'conductor.poll_interval': 1})
        self.hosts = {}
        for name in ('alpha', 'beta'):
            self.toy.add(name)
            self.start(name)
        self.until(lambda: self.cloud.up('alpha', 'beta'))

    def configure(self, name, **options):
        lines = [f'{option} = {value}\n' for option, value in options.items()]
        (self.directory / f'{name}.conf').write_text(
            f'[DEFAULT]\ntransport_url = fake://\nhost = {name}\n{"".join(lines)}'
        )

    def start(self, name):
        self.configure(name)
        example, driver = self.page('embed_example'), self.page('embed_driver')
        arguments, toy = ['--config-file', str(self.directory / f'{name}.conf')], self.toy.hosts[name]
        if conftest.patched():
            self.hosts[name] = self.page('embed_eventlet').embed(arguments, toy)
        else:
            self.hosts[name] = example.compute_host(arguments, driver.ToyDriver(toy))
        self.hosts[name].start()

    def until(self, predicate):
        self.cloud.wait_until(predicate)

    def boot(self, *names):
        flavor = Flavor(name='small', vcpus=1, memory_mb=512, root_gb=1)
        found = []
        for name in names:
            wanted = Instance(
                uuid=self.threads.new_uuid(),
                name=name,
                project_id='demo',
                user_id='demo',
                host='alpha',
                node='alpha',
                flavor=flavor,
            )
            self.toy.hosts['alpha'].boot(wanted.uuid)
            found.append(registry.create_instance(self.cloud.database, self.cloud.placement_client, wanted))
        return found

    def migrate(self, instance):
        assert self.cloud.live_migrate(instance, host='beta').status_int == 202

    def status(self, instance):
        return self.cloud.migrations(instance)[0].status

    def become(self, instance, status):
        self.until(lambda: self.status(instance) == status)

    def abort(self, instance):
        migration = self.cloud.migrations(instance)[0]
        answer = self.cloud.request('DELETE', f'/servers/{instance.uuid}/migrations/{migration.id}')
        assert answer.status_int == 202

    def place(self, instance):
        """Return where the database has a guest, and where the hypervisors have it."""
        allocations = self.cloud.database.instances.get(instance.uuid).host
        holders = [name for name, host in self.toy.hosts.items() if instance.uuid in host.domains()]
        return allocations, holders

    def stop(self):
        for host in self.hosts.values():
            host.stop()
        self.cloud.stop()


@pytest.fixture
def site(tmp_path, page, threads):
    made = Site(tmp_path, page, threads)
    yield made
    made.stop()


def test_a_guest_moves_between_two_embedded_hosts(site):
    (guest,) = site.boot('guest')
    site.migrate(guest)
    site.become(guest, 'completed')
    assert site.place(guest) == ('beta', ['beta'])
    assert site.toy.hosts['beta'].domains()[guest.uuid] == toyhv.RUNNING
    assert site.cloud.recorder.compute_to_compute() == []


def test_a_migration_that_the_hypervisor_refuses_leaves_the_guest_where_it_is(site):
    (guest,) = site.boot('guest')
    site.toy.refuses = 'no route to host'
    site.migrate(guest)
    site.become(guest, 'failed')
    assert site.place(guest) == ('alpha', ['alpha'])
    assert site.toy.hosts['alpha'].domains()[guest.uuid] == toyhv.RUNNING


def test_one_migration_runs_and_each_can_be_aborted_or_force_completed(site):
    site.toy.slow = True
    first, second, third = site.boot('first', 'second', 'third')
    alpha = site.toy.hosts['alpha']
    for guest, status in ((first, 'running'), (second, 'queued'), (third, 'queued')):
        site.migrate(guest)
        site.become(guest, status)

    site.abort(second)
    site.become(second, 'cancelled')
    assert alpha.moving() == {first.uuid}
    site.abort(first)
    site.become(first, 'cancelled')
    site.become(third, 'running')
    migration = site.cloud.migrations(third)[0]
    path = f'/servers/{third.uuid}/migrations/{migration.id}/action'
    assert site.cloud.request('POST', path, {'force_complete': None}).status_int == 202
    site.become(third, 'completed')

    assert [site.place(guest) for guest in (first, second, third)] == [
        ('alpha', ['alpha']),
        ('alpha', ['alpha']),
        ('beta', ['beta']),
    ]
    assert alpha.outcome(second.uuid) is None  # it never had a job


def test_a_reload_lets_more_run_at_once(site):
    site.toy.slow = True
    guests = site.boot('first', 'second')
    for guest, status in zip(guests, ('running', 'queued'), strict=True):
        site.migrate(guest)
        site.become(guest, status)
    site.configure('alpha', max_concurrent_live_migrations=2)
    site.hosts['alpha'].reset()
    site.become(guests[1], 'running')
    for guest in guests:
        site.toy.hosts['alpha'].finish_migration(guest.uuid)
    for guest in guests:
        site.become(guest, 'completed')


def test_restart_resumes_running_migration_and_cancels_queued_one(site):
    site.toy.slow = True
    guests = site.boot('first', 'second')
    for guest, status in zip(guests, ('running', 'queued'), strict=True):
        site.migrate(guest)
        site.become(guest, status)
    # It is queued as soon as the conductor has said so in the database; here it has to be so at the source, too.
    site.until(lambda: site.hosts['alpha'].manager._waiting_live_migrations)
    site.hosts['alpha'].stop()
    assert site.toy.hosts['alpha'].moving() == {guests[0].uuid}
    site.start('alpha')
    site.become(guests[1], 'cancelled')
    site.toy.hosts['alpha'].finish_migration(guests[0].uuid)
    site.become(guests[0], 'completed')
    assert [site.place(guest) for guest in guests] == [('beta', ['beta']), ('alpha', ['alpha'])]
