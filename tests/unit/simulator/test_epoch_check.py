# SPDX-License-Identifier: Apache-2.0
"""The fence of the computes, watched from outside."""

import collections
import json

from migrator.objects import protocol
from migrator.simulator.epoch_check import EpochCheck


def told(fence, epoch, refusal=None, seen=None, pending=None, arrives=True):
    """Have one call arrive at boot b and be answered; return what the fence says of it."""
    head = protocol.Command(
        migration_uuid='m', instance_uuid='i', step='live_migration', epoch=epoch, owner='o', reply_to='c', boot_id='b'
    )
    message = collections.namedtuple('Message', 'body')(json.dumps({'args': {'command': head.to_primitive()}}))
    pending = pending or object()
    if arrives:
        fence.arrived(message, pending)
    answer = protocol.Answer(refusal=refusal, seen=epoch if seen is None else seen, boot_id='b')
    return list(fence.answered(pending, answer.to_primitive()))


def test_an_older_epoch_that_is_taken_in_is_found():
    fence = EpochCheck()
    assert told(fence, 2) == []
    assert told(fence, 1) == ['boot b took in epoch 1 of migration m, having seen 2']


def test_an_older_epoch_that_is_refused_is_right_and_so_is_one_that_came_before():
    fence, early = EpochCheck(), object()
    assert told(fence, 2, pending=early) == []
    assert told(fence, 5) == []
    assert told(fence, 4, refusal='epoch', seen=5) == []
    # Its answer was late, or it came twice: it had arrived before 5 did.
    assert told(fence, 2, seen=5, pending=early, arrives=False) == []
