# SPDX-License-Identifier: Apache-2.0

"""The hypervisor of the tests of a stock nova: a guest is a file, and a live migration takes its time.

nova-compute runs it, as the option ``compute_driver`` says. A guest is the file ``$MIGRATOR_TEST_GUESTS/HOST/UUID``,
which contains its power state. It outlives nova-compute, as QEMU does, and a move ends with one rename. Its disk is a
file as well, with a line for each time that one was made: ``disks/UUID`` if it is on shared storage, and
``disks/UUID.HOST`` if not. Each server's metadata decides how its moves go, and where its disk is:

``disk``
    ``shared`` for shared storage; the host's own without it
``move_seconds``
    how long the copying takes; 1 second without it
``move_fails``
    where the move fails: ``check``, ``pre``, ``live`` or ``post``; a cold migration: ``live``, ``post`` or ``confirm``
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import queue
import time
from collections.abc import Iterator, MutableMapping

from nova import exception
from nova.virt import fake

GUESTS = pathlib.Path(os.environ['MIGRATOR_TEST_GUESTS'])
#: Seconds between two reports of a move's progress.
STEP = 0.5


class Guest:
    """One guest of a host, as FakeDriver handles it."""

    def __init__(self, file: pathlib.Path) -> None:
        self._file = file
        self.name = self.uuid = file.name

    @property
    def state(self) -> int:
        """The power state."""
        return int(self._file.read_text())

    @state.setter
    def state(self, state: int) -> None:
        self._file.write_text(str(state))


class Guests(MutableMapping):
    """The guests of a host by UUID: its folder. FakeDriver has a dictionary in its memory."""

    def __init__(self, host: str) -> None:
        self.folder = GUESTS / host
        self.folder.mkdir(parents=True, exist_ok=True)

    def __getitem__(self, uuid: str) -> Guest:
        if not (self.folder / uuid).exists():
            raise KeyError(uuid)
        return Guest(self.folder / uuid)

    def __setitem__(self, uuid: str, guest: Guest) -> None:
        (self.folder / uuid).write_text(str(guest.state))

    def __delitem__(self, uuid: str) -> None:
        (self.folder / uuid).unlink()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(file.name for file in self.folder.iterdir()))

    def __len__(self) -> int:
        return sum(1 for _ in self.folder.iterdir())


def disk_of(instance, host: str) -> pathlib.Path:
    """Return the file with the disk of a guest, as a host sees it."""
    folder = GUESTS.parent / 'disks'
    folder.mkdir(exist_ok=True)
    return folder / (instance.uuid if instance.metadata.get('disk') == 'shared' else f'{instance.uuid}.{host}')


class Driver(fake.FakeDriverWithoutFakeNodes):
    """FakeDriver with guests in files, and with moves that take time, can be aborted, and fail on request."""

    vcpus, memory_mb, local_gb = 64, 65536, 4096

    def __init__(self, virtapi, read_only=False):
        super().__init__(virtapi, read_only)
        self._moves: dict[str, queue.SimpleQueue[str]] = {}

    def init_host(self, host):
        super().init_host(host)
        self.instances = Guests(host)

    def get_host_uptime(self):
        return ' 00:00:00 up 1 day,  0:00,  0 users,  load average: 0.00, 0.00, 0.00'

    # --- the disk ----------------------------------------------------------------------------------------------------

    def instance_on_disk(self, instance):
        return disk_of(instance, self.instances.folder.name).exists()

    def check_instance_shared_storage_local(self, context, instance):
        return {'filename': disk_of(instance, self.instances.folder.name).name}

    def check_instance_shared_storage_remote(self, context, data):
        return '.' not in data['filename']

    def check_instance_shared_storage_cleanup(self, context, data):
        pass

    def spawn(self, context, instance, *args, **kwargs):
        disk = disk_of(instance, self.instances.folder.name)
        if not disk.exists():
            disk.write_text(f'{time.time_ns()}\n')
        return super().spawn(context, instance, *args, **kwargs)

    def cleanup(self, context, instance, *args, destroy_disks=True, **kwargs):
        self._remove_disk(instance, destroy_disks)
        return super().cleanup(context, instance, *args, destroy_disks=destroy_disks, **kwargs)

    def destroy(self, context, instance, network_info, block_device_info=None, destroy_disks=True, **kwargs):
        self._remove_disk(instance, destroy_disks)
        return super().destroy(context, instance, network_info, block_device_info, destroy_disks, **kwargs)

    def _remove_disk(self, instance, destroy_disks):
        if destroy_disks:
            disk_of(instance, self.instances.folder.name).unlink(missing_ok=True)

    # --- the source --------------------------------------------------------------------------------------------------

    def live_migration(
        self, context, instance, dest, post_method, recover_method, block_migration=False, migrate_data=None
    ):
        self._moves[instance.uuid] = queue.SimpleQueue()
        try:
            end = self._copy(instance, migrate_data.migration)
        finally:
            del self._moves[instance.uuid]
        if end == 'completed':
            here, there = disk_of(instance, self.instances.folder.name), disk_of(instance, dest)
            if here != there:
                there.write_text(here.read_text())
            (self.instances.folder / instance.uuid).rename(Guests(dest).folder / instance.uuid)
            post_method(context, instance, dest, block_migration, migrate_data)
        else:
            recover_method(context, instance, dest, migrate_data, migration_status=end)

    def _copy(self, instance, migration):
        """Take the time that it takes, and return the status that the migration ends with."""
        began, total = time.monotonic(), instance.flavor.memory_mb << 20
        seconds = float(instance.metadata.get('move_seconds', 1))
        fails = instance.metadata.get('move_fails') == 'live'
        while (gone := time.monotonic() - began) < seconds:
            if fails and gone > seconds / 2:
                return 'failed'
            migration.memory_total, migration.memory_processed = total, int(total * gone / seconds)
            migration.memory_remaining = total - migration.memory_processed
            migration.disk_total = migration.disk_processed = migration.disk_remaining = 0
            migration.save()
            with contextlib.suppress(queue.Empty):
                return self._moves[instance.uuid].get(timeout=min(STEP, seconds - gone))
        return 'failed' if fails else 'completed'

    def live_migration_abort(self, instance):
        self._end(instance, 'cancelled')

    def live_migration_force_complete(self, instance):
        self._end(instance, 'completed')

    def _end(self, instance, status):
        if instance.uuid not in self._moves:
            raise exception.InstanceNotRunning(instance_id=instance.uuid)
        self._moves[instance.uuid].put(status)

    # --- cold migrations ---------------------------------------------------------------------------------------------

    def migrate_disk_and_power_off(self, context, instance, *args, **kwargs):
        time.sleep(float(instance.metadata.get('move_seconds', 1)))
        self._fail_cold(instance, 'live')
        return super().migrate_disk_and_power_off(context, instance, *args, **kwargs)

    def finish_migration(self, context, migration, instance, *args, **kwargs):
        self._fail_cold(instance, 'post')
        here, there = (disk_of(instance, host) for host in (migration.source_compute, migration.dest_compute))
        if here != there:
            there.write_text(here.read_text())
        return super().finish_migration(context, migration, instance, *args, **kwargs)

    def confirm_migration(self, context, migration, instance, network_info):
        self._fail_cold(instance, 'confirm')
        return super().confirm_migration(context, migration, instance, network_info)

    def _fail_cold(self, instance, where):
        if instance.metadata.get('move_fails') == where:
            raise exception.InstancePowerOffFailure(reason=f'move_fails is {where}')

    # --- the destination ---------------------------------------------------------------------------------------------

    def check_can_live_migrate_destination(self, context, instance, *args, **kwargs):
        if instance.metadata.get('move_fails') == 'check':
            raise exception.MigrationPreCheckError(reason='move_fails is check')
        return super().check_can_live_migrate_destination(context, instance, *args, **kwargs)

    def pre_live_migration(self, context, instance, *args):
        if instance.metadata.get('move_fails') == 'pre':
            raise exception.DestinationDiskExists(path='move_fails is pre')
        return args[-1]

    def post_live_migration_at_destination(self, context, instance, *args, **kwargs):
        # The guest has arrived already, by the rename.
        if instance.metadata.get('move_fails') == 'post':
            raise exception.VirtualInterfaceCreateException
