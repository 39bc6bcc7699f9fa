# SPDX-License-Identifier: Apache-2.0

"""Mutants of migrator/compute."""

from tests.mutants.mutant import Mutant

INHERITED = 'migrator/compute/inherited_jobs.py'
LIVE = 'migrator/compute/steps.py'
QUEUE = 'migrator/compute/live_migration_queue.py'
EVACUATION = 'migrator/compute/evacuation.py'
REGISTRATION = 'migrator/compute/registration.py'
RUNNER = 'migrator/compute/step_runner.py'
WORK = 'migrator/compute/work.py'

MUTANTS = (
    Mutant(
        'opens-before-registration-is-applied',
        REGISTRATION,
        '                self._apply(assignments)\n',
        '                self._runner.starting = False; self._apply(assignments)\n',
        'A host accepts a late command before it knows the epoch in which its migrations are now run.',
    ),
    Mutant(
        'refused-machine-listens',
        REGISTRATION,
        '            self._listener.pause()',
        '            self._listener.is_paused = True',
        'A machine that was refused takes the messages of the one that has its name.',
    ),
    Mutant(
        'command-for-an-earlier-boot-accepted',
        RUNNER,
        'if command.boot_id != self.boot_id:',
        'if not command.boot_id:',
        'A restarted host carries out a command that was meant for its earlier boot.',
    ),
    Mutant(
        'command-of-a-lower-tenure-accepted',
        RUNNER,
        'if 0 < tenure < guest.tenure or',
        'if',
        'A late command of an earlier migration of the guest is carried out beside the next one.',
    ),
    Mutant(
        'command-of-an-equal-tenure-of-another-migration-accepted',
        RUNNER,
        '0 < tenure == guest.tenure and command.migration_uuid != guest.holder',
        '0 < tenure == guest.tenure and not guest.holder',
        'After the database has lost its last commits two migrations of one guest act on it.',
    ),
    Mutant(
        'call-does-not-wait-for-another-migrations-work',
        RUNNER,
        'guest.calls or others - {migration_uuid}:',
        'guest.calls:',
        'An abort of an ended migration aborts the next migration of the guest.',
    ),
    Mutant(
        'work-does-not-wait-for-another-migrations-call',
        WORK,
        'or first.begun or any(migration != first.uuid for _, migration in self.calls)',
        'or first.begun',
        'A force-complete that hangs in the driver pauses the next migration of the guest.',
    ),
    Mutant(
        'command-of-a-lower-epoch-accepted',
        RUNNER,
        'if command.epoch < record.epoch:',
        'if command.epoch < 0:',
        'A late command of a conductor that has lost its lease is carried out.',
    ),
    Mutant(
        'command-of-another-owner-accepted',
        RUNNER,
        'record.owner not in (None, command.owner):',
        'record.owner is None:',
        'Two conductors that believe to own a migration in the same epoch both have their commands carried out.',
    ),
    Mutant(
        'rollback-does-not-cancel-what-is-queued',
        WORK,
        'for other in cancelled:\n            other.cancelled = True',
        'for other in cancelled:\n            other.cancelled = other.cancelled',
        'A preparation that is rolled back goes on to its end, and the rollback waits for it.',
    ),
    Mutant(
        'live-migration-made-twice-in-one-boot',
        WORK,
        'if work.step == LIVE_MIGRATION:\n            return False',
        'if work.step == LIVE_MIGRATION:\n            return work.outcome is not None',
        'A source that has ended a job begins another one while the migration is being decided.',
    ),
    Mutant(
        'late-acknowledgement-forgets-a-newer-report',
        RUNNER,
        'if work is not None and epoch >= work.epoch:',
        'if work is not None:',
        'The report of a step is lost before the owner has taken it in, and its frozen data with it.',
    ),
    Mutant(
        'queue-submits-without-its-lock',
        QUEUE,
        'with self._lock:\n            if self._closed:',
        'if True:\n            if self._closed:',
        'A move that starts at once leaves its entry in the queue for ever, and an abort cancels nothing.',
    ),
    Mutant(
        'cancelled-future-leaks',
        QUEUE,
        'del self._waiting[migration_uuid]\n            return True',
        'self._waiting[migration_uuid] = future\n            return True',
        'An aborted move stays in the queue, which grows without end.',
    ),
    Mutant(
        'post-at-source-does-not-observe',
        LIVE,
        'if guest.job or guest.state in IN_USE:',
        'if guest.job:',
        'The cleanup of the source removes a guest that runs there.',
    ),
    Mutant(
        'rollback-at-destination-does-not-observe',
        LIVE,
        'if guest.present and guest.state != GuestState.WAITING:\n            raise exception.GuestStillHere(',
        'if guest.job:\n            raise exception.GuestStillHere(',
        'The cleanup of the destination removes a guest that has arrived and runs there.',
    ),
    Mutant(
        'evacuated-copy-ended-without-another-that-runs',
        EVACUATION,
        'and runs_at in (None, self.host):',
        'and runs_at == self.host:',
        'A source that was never dead ends its copy of a guest, although no other host is known to run the guest.',
    ),
    Mutant(
        'rollback-of-an-evacuation-does-not-observe',
        EVACUATION,
        'if guest.job or guest.state not in (GuestState.ABSENT, GuestState.WAITING, GuestState.SHUTDOWN):',
        'if guest.job:',
        'A guest in cut-over is removed by the rollback of an evacuation.',
    ),
    Mutant(
        'rollback-of-an-evacuation-does-not-cancel',
        EVACUATION,
        '@step(cancels=True)',
        '@step()',
        'A destination that is given up still starts the guest, and the next one may start it too.',
    ),
    Mutant(
        'source-restored-under-a-running-job',
        LIVE,
        'if guest.job:\n            self.driver.live_migration_abort(instance)',
        'if guest.job and not guest.present:\n            self.driver.live_migration_abort(instance)',
        'The guest is resumed at the source while its job still moves it, so it may run twice.',
    ),
    Mutant(
        'slot-freed-while-the-job-runs',
        LIVE,
        'threads.sleep(ASK_AGAIN)',
        'return None',
        'One failed question to the hypervisor frees the slot, and more jobs run than the limit allows.',
    ),
    Mutant(
        'inherited-job-takes-no-slot',
        INHERITED,
        'self._queue.attach(self._outlast, job)',
        'self._threads.start(self._outlast, job, name="outlast")',
        'After a restart of the service more jobs run than the limit allows.',
    ),
)
