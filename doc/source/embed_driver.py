# SPDX-License-Identifier: Apache-2.0

"""A driver for a toy hypervisor; `toyhv` ships with migrator, and stands for the binding of yours."""

import time

from migrator import SimpleDriver, exception
from migrator.objects import Guest, GuestState
from migrator.testing import toyhv

#: The hypervisor's states, and migrator's.
STATES = {
    toyhv.RUNNING: GuestState.RUNNING,
    toyhv.PAUSED: GuestState.PAUSED,
    toyhv.STOPPED: GuestState.SHUTDOWN,
    toyhv.RECEIVING: GuestState.WAITING,
}


class ToyDriver(SimpleDriver):
    """The driver of one host.

    :param toy: the binding's object for it. Its calls may block the thread that makes them.
    """

    settle_seconds = 0  # this hypervisor has the migration when start_migration returns, or never

    def __init__(self, toy):
        facts = toy.facts()
        super().__init__({'VCPU': facts['cpus'], 'MEMORY_MB': facts['memory_mb'], 'DISK_GB': facts['disk_gb']})
        self.toy = toy

    def guests(self):
        moving = self.toy.moving()  # before the states, which must not be older than the end of a job
        domains = self.toy.domains()
        return [Guest(instance_uuid=uuid, state=STATES[domains[uuid]], job=uuid in moving) for uuid in domains]

    def receive(self, instance):
        self.toy.receive(instance.uuid)
        return {'address': self.toy.facts()['address']}

    def migrate(self, instance, destination, facts, report):
        try:
            self.toy.start_migration(instance.uuid, destination, facts['address'])
        except toyhv.Error as error:  # it has not begun
            raise exception.DriverError(host=self.host, phase='migrate', reason=str(error)) from error
        while (progress := self.toy.progress(instance.uuid)) is not None:
            report(*progress)  # the bytes in total, and those that remain
            time.sleep(0.1)
        if self.toy.outcome(instance.uuid) != toyhv.COMPLETED:
            raise toyhv.Error(f'the migration has {self.toy.outcome(instance.uuid)}')

    def abort(self, instance_uuid):
        self.toy.abort_migration(instance_uuid)

    def force_complete(self, instance_uuid):
        self.toy.finish_migration(instance_uuid)

    def remove(self, instance_uuid):
        self.toy.remove(instance_uuid)

    # --- evacuation: optional

    def definition(self, instance_uuid):
        return self.toy.definition(instance_uuid)

    def start_guest(self, instance, definition, state):
        state = next(ours for ours, theirs in STATES.items() if theirs == state)
        self.toy.create(instance.uuid, definition, state)  # fails if this host does not see the disk

    def stop_guest(self, instance_uuid):
        self.toy.kill(instance_uuid)
