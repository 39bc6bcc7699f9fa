# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.
"""The fence of the computes, watched from outside."""

import collections
import json

from migrator.objects import command
from migrator.testing.fence import Fence


def told(fence, epoch, refusal=None, seen=None, pending=None, arrives=True):
    """Have one call arrive at boot b and be answered; return what the fence says of it."""
    head = command.Command(
        migration_uuid='m', instance_uuid='i', step='live_migration', epoch=epoch, owner='o', reply_to='c', boot_id='b'
    )
    message = collections.namedtuple('Message', 'body')(json.dumps({'args': {'command': head.to_primitive()}}))
    pending = pending or object()
    if arrives:
        fence.arrived(message, pending)
    answer = command.Answer(refusal=refusal, seen=epoch if seen is None else seen, boot_id='b')
    return list(fence.answered(pending, answer.to_primitive()))


def test_an_older_epoch_that_is_taken_in_is_found():
    fence = Fence()
    assert told(fence, 2) == []
    assert told(fence, 1) == ['boot b took in epoch 1 of migration m, having seen 2']


def test_an_older_epoch_that_is_refused_is_right_and_so_is_one_that_came_before():
    fence, early = Fence(), object()
    assert told(fence, 2, pending=early) == []
    assert told(fence, 5) == []
    assert told(fence, 4, refusal='epoch', seen=5) == []
    # Its answer was late, or it came twice: it had arrived before 5 did.
    assert told(fence, 2, seen=5, pending=early, arrives=False) == []
