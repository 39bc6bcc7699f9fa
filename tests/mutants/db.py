# SPDX-License-Identifier: Apache-2.0

"""Mutants of migrator/db."""

from tests.mutants.mutant import Mutant

CLEANUPS = 'migrator/db/cleanups.py'
MIGRATIONS = 'migrator/db/migrations.py'
TAKEOVERS = 'migrator/db/conductors.py'
SERVICES = 'migrator/db/services.py'
REQUESTS = 'migrator/db/actions.py'
MACHINES = 'migrator/db/machines.py'

MUTANTS = (
    Mutant(
        'an-evacuation-ends-a-task-of-ours',
        MIGRATIONS,
        'sa.or_(_I.c.task_state.is_(None), _I.c.task_state.not_in(OWN_TASKS))',
        'sa.true()',
        'A guest is started anew while a reconcile writes its host and its allocation.',
    ),
    Mutant(
        'cleanup-beside-the-next-migration',
        'migrator/db/cleanups.py',
        'if session.execute(query).first() is not None:',
        'if cleanup is None:',
        'A cleanup aborts the job of the next migration of the guest, or resumes its copy at the source.',
    ),
    Mutant(
        'commit-without-epoch-check',
        MIGRATIONS,
        "_T.c.owner == sa.bindparam('me'), _T.c.epoch == sa.bindparam('my_epoch'))",
        "_T.c.owner == sa.bindparam('me'))",
        'An owner that does not know of the restart of a host commits a decision made on older answers.',
    ),
    Mutant(
        'abort-at-the-end-gets-no-verdict',
        MIGRATIONS,
        'if known.abort_requested_at is None and (known.outcome is None or ends):',
        'if known.abort_requested_at is None and known.outcome is None:',
        'An abort that was accepted with 202 just before the end is lost, and its action never ends.',
    ),
    Mutant(
        'migration-taken-from-a-living-owner',
        TAKEOVERS,
        'expanding=True)), _IN_PROGRESS, _NO_LIVING_OWNER)',
        'expanding=True)), _IN_PROGRESS)',
        'Two living conductors run the same migration, each taking it from the other.',
    ),
    Mutant(
        'takeover-keeps-the-epoch',
        TAKEOVERS,
        'epoch=_T.c.epoch + 1)',
        'epoch=sa.case((_T.c.epoch > 0, _T.c.epoch), else_=1))',
        'After a takeover the hosts still accept the late commands of the conductor that has lost its lease.',
    ),
    Mutant(
        'restart-of-a-host-keeps-the-epoch',
        MIGRATIONS,
        '.where(*_NAMES_HOST).values(epoch=_T.c.epoch + 1)',
        '.where(*_NAMES_HOST).values(epoch=_T.c.epoch)',
        'The owner decides on what the earlier boot of a host reported, although the host has restarted.',
    ),
    Mutant(
        'another-machine-has-the-name-of-a-host',
        MACHINES,
        'if own.identity not in (None, identity):',
        'if own.identity is None and not identity:',
        'A second machine takes the name of a host, and its guests count as missing or are lost.',
    ),
    Mutant(
        'machine-has-two-names',
        MACHINES,
        'for other in rows:',
        'for other in sorted(rows)[1:]:',
        'A renamed machine is two hosts, and its resources are there twice in Placement.',
    ),
    Mutant(
        'dead-boot-replaces-the-living-one',
        MIGRATIONS,
        "if report.replaces != '' and known not in (report.replaces, report.boot_id):",
        'if known is None and report.replaces is not None:',
        'The late registration of a dead boot makes the living compute service refuse every command.',
    ),
    Mutant(
        'planned-stop-answers-for-an-earlier-boot',
        MIGRATIONS,
        '.where(*open_, same_boot, _T.c.uuid.in_(sent))',
        '.where(*open_, same_boot)',
        'A migration that an earlier boot may have begun is undone without asking where the guest is.',
    ),
    Mutant(
        'accepts-an-instance-that-has-a-task',
        MIGRATIONS,
        '_TAKE_ANY.where(_I.c.task_state.is_(None))',
        '_TAKE_ANY',
        'A live migration is accepted for an instance that is being deleted or rebuilt.',
    ),
    Mutant(
        'lease-compare-inverted',
        'migrator/db/models.py',
        'return sa.exists().where(CONDUCTORS.c.id == owner, CONDUCTORS.c.lease_until > columns.now())',
        'return sa.exists().where(CONDUCTORS.c.id == owner, CONDUCTORS.c.lease_until < columns.now())',
        'Migrations of living conductors are taken over, and those of dead ones never are.',
    ),
    Mutant(
        'cleanup-taken-from-a-living-owner',
        CLEANUPS,
        'owner, row.epoch, (_T.c.epoch == row.epoch, free))',
        'owner, row.epoch, (_T.c.epoch == row.epoch,))',
        'Every conductor runs the same deferred cleanup and cancels what the others have begun.',
    ),
    Mutant(
        'heartbeat-of-an-earlier-boot-counts',
        SERVICES,
        "_T.c.boot_id.in_(sa.bindparam('boots', expanding=True)),",
        "_T.c.boot_id.in_(sa.bindparam('boots', expanding=True)) | (_T.c.boot_id != ''),",
        'A host stays up in the list although its registered boot is dead, and nothing calls the living one back.',
    ),
    Mutant(
        'abort-accepted-in-any-status',
        REQUESTS,
        '_M.c.status.in_(list(statuses)), request.is_(None))',
        'request.is_(None))',
        'DELETE answers 202 for a migration that has ended or can no longer be aborted.',
    ),
)
