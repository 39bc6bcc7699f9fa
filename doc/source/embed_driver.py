# SPDX-License-Identifier: Apache-2.0

"""A driver for a toy hypervisor; `toyhv` stands for the binding of yours."""

import contextlib

import toyhv

from migrator import exception
from migrator.objects import LiveMigrateData, compute_node, protocol
from migrator.virt import driver

#: The hypervisor's words, and migrator's.
STATES = {
    toyhv.RUNNING: protocol.GuestState.RUNNING,
    toyhv.PAUSED: protocol.GuestState.PAUSED,
    toyhv.STOPPED: protocol.GuestState.SHUTDOWN,
    toyhv.RECEIVING: protocol.GuestState.WAITING,
}
VERDICTS = {
    toyhv.COMPLETED: driver.Verdict.COMPLETED,
    toyhv.FAILED: driver.Verdict.FAILED,
    toyhv.ABORTED: driver.Verdict.ABORTED,
}


class ToyDriver(driver.ComputeDriver):
    """Drives one host.

    :param toy: the binding's object for it. Its calls may block the thread that makes them.
    """

    def __init__(self, toy):
        self.toy = toy
        self.host = ''

    @contextlib.contextmanager
    def _doing(self, phase):
        """Turn the binding's errors into one that a person can act on."""
        try:
            yield
        except toyhv.Error as error:
            raise exception.DriverError(host=self.host, phase=phase, reason=str(error)) from error

    # --- what there is

    def init_host(self, host):
        self.host = host

    def get_node(self):
        with self._doing('get_node'):
            facts = self.toy.facts()
        totals = {'VCPU': facts['cpus'], 'MEMORY_MB': facts['memory_mb'], 'DISK_GB': facts['disk_gb']}
        inventory = {
            name: {
                'total': total,
                'reserved': 0,
                'min_unit': 1,
                'max_unit': total,
                'step_size': 1,
                'allocation_ratio': 1.0,
            }
            for name, total in totals.items()
        }
        # The uuid is this host's for good: Placement knows the host by it.
        root = compute_node.ProviderInventory(uuid=facts['uuid'], name=self.host, inventory=inventory)
        return compute_node.ComputeNode(
            uuid=facts['uuid'], host=self.host, node=self.host, hypervisor_type='toy', providers=[root]
        )

    def list_guests(self):
        with self._doing('list_guests'):
            return [self._guest(uuid, state) for uuid, state in self.toy.domains().items()]

    def get_guest(self, instance_uuid):
        with self._doing('get_guest'):
            return self._guest(instance_uuid, self.toy.domains().get(instance_uuid))

    def _guest(self, uuid, state):
        if state is None:
            return protocol.Guest(instance_uuid=uuid)  # absent, which is no error
        return protocol.Guest(instance_uuid=uuid, state=STATES[state].value, job=self.toy.moving(uuid))

    def settle(self, instance_uuid):
        # A migration is there as soon as start_migration has returned, and a process that died in the call has not
        # begun one. Where something may still be under way, wait for it here, or call it off.
        return self.get_guest(instance_uuid)

    # --- the checks

    def check_can_live_migrate_destination(self, instance, block_migration, disk_over_commit):
        if self.get_guest(instance.uuid).present:
            raise exception.MigrationPreCheckError(reason=f'guest {instance.uuid} is at {self.host} already')
        if block_migration:
            raise exception.MigrationPreCheckError(reason='the disks are shared: False or auto would do')
        with self._doing('check_can_live_migrate_destination'):
            address = self.toy.facts()['address']
        # `destination` is this driver's, to tell the driver at the source what it likes, as JSON.
        return LiveMigrateData(
            block_migration=False, disk_over_commit=disk_over_commit, destination={'address': address}
        )

    def check_can_live_migrate_source(self, instance, migrate_data):
        guest = self.get_guest(instance.uuid)
        if guest.job or guest.state not in ('running', 'paused'):
            raise exception.MigrationPreCheckError(reason=f'guest {instance.uuid} is not one that can move now')
        return migrate_data

    def cleanup_live_migration_destination_check(self, instance):
        """Do nothing: the check has left nothing."""

    # --- the move

    def pre_live_migration(self, instance, migrate_data, token):
        token.raise_if_cancelled()  # between any two parts that take long
        with self._doing('pre_live_migration'):
            self.toy.receive(instance.uuid)
        return migrate_data

    def live_migration(self, instance, destination, migrate_data, started):
        with self._doing('live_migration'):
            if not self.toy.moving(instance.uuid):
                self.toy.start_migration(instance.uuid, destination, migrate_data.destination['address'])
            started()
            return VERDICTS[self.toy.wait_migration(instance.uuid)]

    def attach_live_migration(self, instance_uuid):
        with self._doing('attach_live_migration'):
            if not self.toy.moving(instance_uuid):
                return None
            return VERDICTS.get(self.toy.wait_migration(instance_uuid))

    def live_migration_abort(self, instance):
        with self._doing('live_migration_abort'):
            self.toy.abort_migration(instance.uuid)

    def live_migration_force_complete(self, instance):
        with self._doing('live_migration_force_complete'):
            self.toy.finish_migration(instance.uuid)

    def get_progress(self, instance_uuid):
        with self._doing('get_progress'):
            found = self.toy.progress(instance_uuid)
        if found is None:
            return {}
        total, remaining = found
        return {
            'memory_total': total,
            'memory_processed': total - remaining,
            'memory_remaining': remaining,
            'disk_total': 0,
            'disk_processed': 0,
            'disk_remaining': 0,
        }

    # --- after it

    def post_live_migration_at_source(self, instance, migrate_data):
        self._refuse_if_active(instance, 'post_live_migration_at_source')
        with self._doing('post_live_migration_at_source'):
            self.toy.remove(instance.uuid)

    def post_live_migration_at_destination(self, instance, migrate_data):
        if self.get_guest(instance.uuid).state not in ('running', 'paused'):
            raise exception.GuestNotFound(host=self.host, instance_uuid=instance.uuid)
        with self._doing('post_live_migration_at_destination'):
            self.toy.persist(instance.uuid)

    def rollback_live_migration_at_source(self, instance, migrate_data):
        # This hypervisor resumes by itself what it paused to cut over; one that does not is told to here.
        if not self.get_guest(instance.uuid).present:
            raise exception.GuestNotFound(host=self.host, instance_uuid=instance.uuid)

    def rollback_live_migration_at_destination(self, instance, migrate_data):
        self._refuse_if_active(instance, 'rollback_live_migration_at_destination')
        with self._doing('rollback_live_migration_at_destination'):
            self.toy.remove(instance.uuid)

    def _refuse_if_active(self, instance, action):
        if self.get_guest(instance.uuid).state in ('running', 'paused'):
            raise exception.GuestStillHere(host=self.host, instance_uuid=instance.uuid, action=action)
