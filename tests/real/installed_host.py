# SPDX-License-Identifier: Apache-2.0

"""A compute host in an environment that has migrator alone: a live migration, an abort and a stop.

Usage: installed_host.py native|patched

It prints the class of the executor whose thread has run the migration.
"""

import sys

if sys.argv[1] == 'patched':
    import eventlet

    eventlet.monkey_patch()
else:
    from oslo_service import backend

    backend.init_backend(backend.BackendType.THREADING)

import threading
import time

from oslo_config import cfg

import migrator
from migrator import context
from migrator.objects import Command, Guest, GuestState

GUESTS = [f'00000000-0000-4000-8000-00000000000{number}' for number in (1, 2)]


class Driver(migrator.SimpleDriver):
    """A hypervisor with two guests, whose first migration ends when the host was stopped."""

    def __init__(self):
        super().__init__({'VCPU': 4})
        self.threads_seen, self.gate, self.left = [], threading.Event(), set()

    def guests(self):
        return [Guest(instance_uuid=uuid, state=GuestState.RUNNING) for uuid in GUESTS if uuid not in self.left]

    def migrate(self, instance, destination, facts, report):
        self.threads_seen.append(threading.current_thread())
        report(1, 1)
        assert self.gate.wait(60)
        self.left.add(instance.uuid)

    def receive(self, instance):
        raise AssertionError('this host is the source')

    abort = force_complete = remove = receive


class Conductor:
    """The conductor and the broker, which accept everything."""

    def compute_started(self, report):
        return []

    def accept(self, *_args, **_more):
        return self

    compute_heartbeat = compute_stopping = step_ended = serve = stop = accept


def main() -> int:
    """Migrate one guest, abort the other one in the queue, and stop."""
    conf = cfg.ConfigOpts()
    conf([], project='importer')
    driver, conductor = Driver(), Conductor()
    host = migrator.Host(conf, driver, host='alpha', client=conductor, events=conductor)

    def send(step, number, **arguments):
        uuid = GUESTS[number]
        command = Command(migration_uuid=uuid[::-1], instance_uuid=uuid, step=step, epoch=1, owner='one',
                          reply_to='one', boot_id=host.manager.boot_id)  # fmt: skip
        instance = migrator.Instance(uuid=uuid, name='vm', project_id='p', user_id='u', host='alpha', node='alpha',
                                     flavor=migrator.Flavor(name='small'))  # fmt: skip
        return getattr(host.manager, step)(context.admin_context(), command=command, instance=instance, **arguments)

    def until(predicate):
        while not predicate():
            time.sleep(0.01)

    with host:
        data = {'destination': 'beta', 'migrate_data': migrator.LiveMigrateData()}
        until(lambda: send('live_migration', 0, **data).refusal is None)
        assert send('live_migration', 1, **data).refusal is None
        until(lambda: driver.threads_seen)
        assert send('live_migration_abort', 1).report.result['cancelled']
    driver.gate.set()
    (thread,) = driver.threads_seen
    executor = thread.executor_ref()
    print(f'{type(executor).__mro__[1].__module__.partition(".")[0]}.{type(executor).__mro__[1].__name__}')
    del executor
    until(lambda: not thread.is_alive())
    assert driver.left == {GUESTS[0]}
    return 0


if __name__ == '__main__':
    sys.exit(main())
