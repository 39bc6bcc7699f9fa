# SPDX-License-Identifier: Apache-2.0

"""Mutants of migrator/conductor."""

from tests.mutants.mutant import Mutant

ABANDON = 'migrator/conductor/migration/abandon.py'
ALLOCATIONS = 'migrator/conductor/migration/allocations.py'
CLEANUPS = 'migrator/conductor/cleanups.py'
DESTINATIONS = 'migrator/conductor/migration/destinations.py'
CALLS = 'migrator/conductor/compute_client.py'
COLD_MIGRATE = 'migrator/conductor/tasks/cold_migrate.py'
LIVE_MIGRATE = 'migrator/conductor/tasks/live_migrate.py'
HOSTS = 'migrator/conductor/migration/hosts.py'
CONTEXT = 'migrator/conductor/migration/context.py'
REPLIES = 'migrator/conductor/migration/replies.py'
PERIODICS = 'migrator/conductor/periodics.py'
TAKEOVER = 'migrator/conductor/takeover.py'
RUNNER = 'migrator/conductor/runner.py'
SETTLE_TABLE = 'migrator/conductor/migration/settle_table.py'
SETTLE = 'migrator/conductor/migration/settle.py'

MUTANTS = (
    Mutant(
        'a-wait-has-no-end',
        'migrator/conductor/migration/waiting.py',
        'math.inf if endless else PATIENCE * m.tools.options.service_down_time',
        'math.inf',
        'A migration that gets no further is never stuck, and the operator does not learn what to do.',
    ),
    Mutant(
        'a-copy-is-stuck',
        'migrator/conductor/migration/waiting.py',
        'math.inf if endless else PATIENCE * m.tools.options.service_down_time',
        'PATIENCE * m.tools.options.service_down_time',
        'A copy of a large guest is reported as stuck.',
    ),
    Mutant(
        'what-is-here-is-taken-up-beside-itself',
        'migrator/conductor/runner.py',
        'known = subject.row.uuid in self._runs',
        'known = False',
        'A sweep and a request at one moment run a saga twice in one conductor.',
    ),
    Mutant(
        'the-next-migration-does-not-wait-for-a-cleanup',
        LIVE_MIGRATE,
        'pause = cleanups.run_at_source(m)',
        'pause = None',
        'A cleanup of an earlier migration stays pending at the source of the next one.',
    ),
    Mutant(
        'a-guest-leaves-a-host-that-is-forced-down',
        'migrator/conductor/migration/destinations.py',
        'if place.is_source_dead and not migration.is_evacuation:',
        'if place.is_source_dead and migration.is_evacuation:',
        'A live migration from a dead host keeps its server from being evacuated for a minute.',
    ),
    Mutant(
        'a-drain-requests-migrations-of-a-dead-host',
        'migrator/conductor/drains/engine.py',
        'if guest.host in self.forced_down:',
        'if guest.host is None:',
        'A drain of a dead host uses up the attempts of its guests, and delays their evacuation.',
    ),
    Mutant(
        'a-named-host-may-be-disabled',
        DESTINATIONS,
        'if place.service.disabled and not migration.allows_disabled:',
        'if place.service.disabled and migration.requested_host is None:',
        'A guest moves to a host that its operator has disabled, because a request names the host.',
    ),
    Mutant(
        'unsure-outlives-an-epoch',
        REPLIES,
        'self.settling, self.unsure, self.must_poll = fresh.settling, fresh.unsure, fresh.must_poll',
        'self.settling, self.must_poll = fresh.settling, fresh.must_poll',
        'After a host has restarted, a step that may have been done is sent again without asking.',
    ),
    Mutant(
        'must-ask-outlives-an-epoch',
        REPLIES,
        'self.settling, self.unsure, self.must_poll = fresh.settling, fresh.unsure, fresh.must_poll',
        'self.settling, self.unsure = fresh.settling, fresh.unsure',
        'After a host has restarted, the hosts are not asked before the migration goes on.',
    ),
    Mutant(
        'settling-outlives-an-epoch',
        REPLIES,
        'self.settling, self.unsure, self.must_poll = fresh.settling, fresh.unsure, fresh.must_poll',
        'self.unsure, self.must_poll = fresh.unsure, fresh.must_poll',
        'After a host has restarted, the owner believes its events without asking the hosts in the new epoch.',
    ),
    Mutant(
        'retry-limit-off-by-one',
        CONTEXT,
        'return retries < 0 or self.attempt <= retries',
        'return retries < 0 or self.attempt < retries',
        'A migration fails although a candidate and a retry are left.',
    ),
    Mutant(
        'host-is-down-by-the-word-of-one-conductor',
        CONTEXT,
        'else bool(service.down_since)',
        'else True',
        'A host whose heartbeats arrive counts as down because one conductor cannot reach it.',
    ),
    Mutant(
        'running-step-outlives-a-restart',
        REPLIES,
        'del self.reports[host, step]',
        'self.received_at = self._clock.monotonic()',
        'The owner waits for ever for a step that its restarted host knows nothing of.',
    ),
    Mutant(
        'late-time-out-overrules-a-newer-answer',
        CALLS,
        'if self._answered.get(host, -math.inf) > asked:',
        'if self._answered.get(host, -math.inf) > math.inf:',
        'A host that answers counts as unreachable because an earlier call to it has timed out.',
    ),
    Mutant(
        'one-call-too-many-to-a-host',
        CALLS,
        'if self._calls[host] >= CALLS_PER_HOST:',
        'if self._calls[host] > CALLS_PER_HOST:',
        'A host that hangs holds more threads of the conductor than its limit of calls allows.',
    ),
    Mutant(
        'answer-of-a-higher-epoch-counts',
        HOSTS,
        'if observation.refusal is not None or observation.epoch > m.row.epoch:',
        'if observation.refusal is not None:',
        'An owner decides on an answer that was given to a newer owner.',
    ),
    Mutant(
        'older-report-counts-for-a-newer-intent',
        HOSTS,
        'return found if found is not None and found.epoch >= record.epoch else None',
        'return found',
        'A step that had to be done again counts as done by a report from before.',
    ),
    Mutant(
        'first-answers-of-an-older-epoch-count',
        HOSTS,
        'if m.row.epoch != epoch:',
        'if m.row.epoch < epoch:',
        'A host that was not asked in the newest epoch still accepts late commands of the older one.',
    ),
    Mutant(
        'unrestored-source-is-deferred',
        HOSTS,
        'if step in (*steps.RESTORING, steps.AFTER_REVERT) else',
        'if step == steps.AFTER_REVERT else',
        'A migration ends as failed while its guest stays paused at the source.',
    ),
    Mutant(
        'busy-host-counts-as-down',
        HOSTS,
        'm.replies.unpolled.add(host)\n        return settle_table.Host(settle_table.Observed.MISSING)',
        'm.replies.unpolled.add(host)\n        return _unreachable(m, host)',
        'A host counts as down because the conductor had no free call slot for it.',
    ),
    Mutant(
        'report-of-an-earlier-boot-ends-the-job',
        HOSTS,
        'return report is not None and report.boot_id == observation.boot_id and report.state',
        'return report is not None and report.state',
        'A move that waits in the queue of a restarted source counts as ended, and is undone.',
    ),
    Mutant(
        'sent-command-decided-against-in-its-own-epoch',
        HOSTS,
        '        m.replies.settling = False\n',
        '        m.replies.settling = m.replies.settling\n',
        'A decision is made against a command that a host may still accept.',
    ),
    Mutant(
        'source-restored-without-a-verdict',
        SETTLE_TABLE,
        "source.verdict in ('failed', 'aborted'):",
        "source.verdict != 'completed':",
        'The guest is resumed at the source although it may run at the destination, which is down.',
    ),
    Mutant(
        'source-restored-before-destination-is-cleaned',
        LIVE_MIGRATE,
        "undo=rollback_live_migration_at_source, undo_after='pre_live_migration', no_effect",
        'undo=rollback_live_migration_at_source, no_effect',
        'The guest is resumed at the source while the destination can still run it.',
    ),
    Mutant(
        'cancelled-at-a-later-boot-counts-as-not-begun',
        SETTLE,
        'return report.facts.cancelled and report.boot_id == sent_to',
        'return report.facts.cancelled',
        'A guest that an earlier boot of the source has begun to migrate is not restored after an abort.',
    ),
    Mutant(
        'move-retried-without-the-guard',
        ALLOCATIONS,
        'm.commit([dataclasses.replace(record, input=input_, tries=record.tries + (not counted))])',
        'm.step_log.put([dataclasses.replace(record, input=input_, tries=record.tries + (not counted))])',
        'A conductor that has lost its lease moves the allocation of a migration that has ended.',
    ),
    Mutant(
        'orphan-consumer-blocks-the-move',
        ALLOCATIONS,
        'new = allocations.ORPHAN_GENERATION if new is None else None',
        'new = None',
        'A migration waits for ever after Placement was killed in the middle of an earlier write.',
    ),
    Mutant(
        'deleted-instance-gets-its-allocation-back',
        ALLOCATIONS,
        'if m.is_deleted():\n                return _bury(strategy, reading)\n            match',
        'if m.ended:\n                return _bury(strategy, reading)\n            match',
        'The rollback gives an allocation to an instance that was deleted meanwhile.',
    ),
    Mutant(
        'guest-on-its-way-counts-as-gone',
        CLEANUPS,
        'if instance is not None and instance.task_state is not None:',
        "if instance is not None and instance.task_state == 'deleting':",
        'A deferred cleanup is dropped, or blocked as a lost guest, while the guest is being migrated.',
    ),
    Mutant(
        'older-report-ends-a-cleanup',
        CLEANUPS,
        'if same_step and cleanup.epoch == report.epoch and cleanup.owner == tools.owner:',
        'if same_step and cleanup.owner == tools.owner:',
        'A deferred cleanup counts as done by a report from before it was deferred.',
    ),
    Mutant(
        'abandon-does-not-hold-cleanups',
        ABANDON,
        'm.writes.cleanups_held = (\n',
        '_held = (\n',
        'A deferred cleanup removes the guest that an operator has just said to be there.',
    ),
    Mutant(
        'abandon-does-not-outbid-cleanups',
        ABANDON,
        '    _outbid_cleanups(m)\n',
        '    m.hosts.sort()\n',
        'A cleanup command that is still on its way is carried out after the operator has decided otherwise.',
    ),
    Mutant(
        'abandon-removes-the-last-copy',
        ABANDON,
        'there.observed in _COPY | {Observed.DOWN}:',
        'there.observed is Observed.DOWN:',
        'The only copy of a guest is removed because an operator was mistaken about its host.',
    ),
    Mutant(
        'two-runs-of-one-migration',
        RUNNER,
        'if not run.running:',
        'if run.woken:',
        'Two threads of a conductor run one migration at once and send its commands twice.',
    ),
    Mutant(
        'takeover-does-not-ask-anew',
        TAKEOVER,
        'subject.replies.must_poll = set(subject.row.hosts_to_poll)',
        'subject.replies.must_poll = set()',
        'A new owner goes on without asking the hosts what the last owner has begun.',
    ),
    Mutant(
        'restart-queues-a-decided-migration',
        TAKEOVER,
        'and migration.outcome is None\n',
        'and migration.source_compute is not None\n',
        'A restarted source moves a guest whose migration is being undone.',
    ),
    Mutant(
        'abort-depends-on-its-wake-up',
        PERIODICS,
        'elif (epoch, requests) != (row.epoch, tuple(getattr(row, name) is not None for name in REQUESTS)):',
        'elif epoch != row.epoch:',
        'An abort that was accepted with 202 is not carried out if its wake-up message is lost.',
    ),
    Mutant(
        'host-with-a-pending-cleanup-is-chosen',
        DESTINATIONS,
        'if place.has_cleanup:',
        'if place.has_cleanup and named:',
        'A late cleanup removes a guest that has come back to the host.',
    ),
    Mutant(
        'a-guest-that-runs-again-is-started-elsewhere',
        COLD_MIGRATE,
        'if source.observed not in (Observed.SHUT_OFF, Observed.DOWN):',
        'if source.observed is Observed.ABSENT:',
        'A guest that was started at its source after the power-off is started at the destination, too.',
    ),
    Mutant(
        'a-confirmation-does-not-wait-for-the-guest',
        COLD_MIGRATE,
        'if found.observed is not Observed.RUNS:\n        helps',
        'if found.observed is None:\n        helps',
        'The source removes its copy of a guest that its destination does not report, which may be the last one.',
    ),
    Mutant(
        'a-destination-that-is-down-counts-as-fenced',
        COLD_MIGRATE,
        'if destination.observed is Observed.DOWN and not destination.forced_down:',
        'if False:',
        'The revert of a migration tries to end the guest at a host that may run it and does not answer.',
    ),
    Mutant(
        'a-late-start-is-not-refused',
        SETTLE,
        '        # The host refuses what is still on its way from now on.\n        m.raise_epoch()',
        '        # The host refuses what is still on its way from now on.\n        m.replies.settling = True',
        'A start that is still on its way to the destination is carried out after the guest is restored at its source.',
    ),
    Mutant(
        'a-shut-off-guest-loses-its-state',
        COLD_MIGRATE,
        "m.writes.instance['vm_state'] = _vm_state(m)",
        "m.writes.instance['vm_state'] = 'active'",
        'An instance that was stopped is shown as active after its cold migration.',
    ),
    Mutant(
        'other-words-are-news',
        'migrator/conductor/migration/waiting.py',
        'return m.row.stuck is None or m.row.stuck.key != reason.key',
        'return m.row.stuck is None or m.row.stuck != reason',
        'A migration becomes stuck again each time that an error has another text, and its log grows without end.',
    ),
    Mutant(
        'other-wait-keeps-its-words',
        'migrator/conductor/migration/waiting.py',
        'if shown is not None and not shown.equals(pause.why) and (shown.kind in _AWAY',
        'if shown is not None and not shown.equals(pause.why) and (shown.kind in ()',
        'A migration goes on after an outage, and its row says for ever that Placement is away.',
    ),
    Mutant(
        'evacuation-asks-no-other-host',
        'migrator/conductor/tasks/evacuate.py',
        'return elsewhere.refuse_a_second_copy(m, [m.source], whole=True, after=declared)',
        'return elsewhere.refuse_a_second_copy(m, [m.source], whole=False, after=declared)',
        'A guest that was moved by hand is started on a third host when its host in the database dies.',
    ),
    Mutant(
        'silence-of-a-host-on-record-counts-as-an-answer',
        'migrator/conductor/migration/elsewhere.py',
        'if found.awaited:',
        'if found.awaited and not whole:',
        'A guest that was last seen on a host is started elsewhere because that host does not answer.',
    ),
    Mutant(
        'round-from-before-the-declaration',
        'migrator/conductor/guests/lists.py',
        '<= FRESH and (after is None or found.began > after):',
        '<= FRESH:',
        'A list that was made before the source was declared down decides that no other host has the guest.',
    ),
    Mutant(
        'copy-that-runs-is-explained-by-a-cleanup',
        'migrator/conductor/guests/lists.py',
        'if host not in known.explained or guest.state in RUNS:',
        'if host not in known.explained:',
        'A guest that runs where a cleanup is pending is started on another host too.',
    ),
    Mutant(
        'difference-vanishes-with-its-host',
        'migrator/conductor/guests/differences.py',
        'kept = {uuid for uuid, one in shown.items() if uuid not in busy or rows.get(uuid) == one.host}',
        'kept = {uuid for uuid, one in shown.items() if uuid not in busy}',
        'An evacuation waits for a host that was last seen with the guest, and goes on when a comparison forgets it.',
    ),
)
