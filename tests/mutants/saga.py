# SPDX-License-Identifier: Apache-2.0

"""Mutants of migrator/saga."""

from tests.mutants.mutant import Mutant

EXECUTOR = 'migrator/saga/executor.py'
SAGA = 'migrator/saga/saga.py'

MUTANTS = (
    Mutant(
        'step-begun-before-its-intent-is-committed',
        EXECUTOR,
        'self._flush([self._record(step, DO, StepState.INTENT, input_=intent)])',
        'self.subject.step_log.put([self._record(step, DO, StepState.INTENT, input_=intent)])',
        'A conductor that dies after a step leaves an effect that no log row names, so it is never undone.',
    ),
    Mutant(
        'check-of-an-earlier-owner-counts-as-not-begun',
        SAGA,
        'if record is not None and not step_log.has_begun(record):',
        'if record is None:',
        'After a takeover the check at the destination counts as not begun, and what it left there stays.',
    ),
    Mutant(
        'pivot-sent-again-without-asking',
        EXECUTOR,
        'if subject.abort_reason is None and not sent:',
        'if subject.abort_reason is None:',
        'A migration command is sent once more without asking the hosts whether the guest has moved already.',
    ),
    Mutant(
        'undo-in-the-order-of-doing',
        SAGA,
        'for step in reversed(self.started(step_log, attempt)):',
        'for step in self.started(step_log, attempt):',
        'The allocation is given back before the destination is cleaned, so a guest there has no allocation.',
    ),
    Mutant(
        'unfinished-check-is-not-undone',
        SAGA,
        'if record is not None or before_done:',
        'if record is not None:',
        'What a check that never answered has created at the destination is never removed.',
    ),
)
