# SPDX-License-Identifier: Apache-2.0

"""The check of the epochs that compute services accept."""

import collections

from migrator.objects import protocol
from migrator.simulator.monitoring.epoch_check import EpochCheck


def violations(epochs, epoch, refusal=None, seen=None, pending=None, arrives=True):
    """Deliver one call to boot b and its reply; return the violations that the check finds."""
    head = protocol.Command(
        migration_uuid='m', instance_uuid='i', step='live_migration', epoch=epoch, owner='o', reply_to='c', boot_id='b'
    )
    message = collections.namedtuple('Message', 'document')({'args': {'command': head.to_primitive()}})
    pending = pending or object()
    if arrives:
        epochs.arrived(message, pending)
    answer = protocol.Answer(refusal=refusal, seen=epoch if seen is None else seen, boot_id='b')
    return list(epochs.answered(pending, answer.to_primitive()))


def test_accepted_older_epoch_is_violation():
    epochs = EpochCheck()
    assert violations(epochs, 2) == []
    assert violations(epochs, 1) == ['boot b accepted epoch 1 of migration m after epoch 2']


def test_refused_older_epoch_and_earlier_call_are_no_violations():
    epochs, early = EpochCheck(), object()
    assert violations(epochs, 2, pending=early) == []
    assert violations(epochs, 5) == []
    assert violations(epochs, 4, refusal='epoch', seen=5) == []
    # The reply was late, or the call came twice. It had first arrived before epoch 5.
    assert violations(epochs, 2, seen=5, pending=early, arrives=False) == []
