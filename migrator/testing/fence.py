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
"""Watches the fence of the computes from outside: nothing of an epoch lower than one seen may be taken in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from migrator.testing import bus as buses

#: What a message says of one migration: (its uuid, the epoch, the boot that is meant).
_Head = tuple[str, int, str]


class Fence:
    """What the boots of the computes have been heard to have seen, and what was on its way to them when.

    It speaks up only when it is sure: a message is measured by what its boot had told before it arrived.
    """

    def __init__(self) -> None:
        #: (boot, migration) -> the highest epoch of which that boot has told.
        self._seen: dict[tuple[str, str], int] = {}
        #: A call that has arrived, and may have arrived twice -> its heads, and the epochs known at its first arrival.
        self._calls: dict[buses.Pending, list[tuple[_Head, int]]] = {}

    def arrived(self, message: buses.Message, pending: buses.Pending | None) -> None:
        """Take in that a message is about to be handled by a compute."""
        if pending is not None and pending not in self._calls:
            heads = _heads(json.loads(message.body)['args'])
            self._calls[pending] = [(head, self._seen.get((head[2], head[0]), 0)) for head in heads]

    def answered(self, pending: buses.Pending, result: Any) -> Iterator[str]:
        """Take in what a compute has answered, and return what it should not have."""
        answers = [_data(one) for one in (result if isinstance(result, list) else [result])]
        for (uuid, epoch, boot), known in self._calls.get(pending, ()):
            for answer in answers:
                if answer is None or answer.get('migration_uuid', uuid) != uuid or answer.get('boot_id') != boot:
                    continue
                if answer.get('refusal') is None and epoch < known:
                    yield f'boot {boot} took in epoch {epoch} of migration {uuid}, having seen {known}'
                seen = int(answer.get('seen', answer.get('epoch', 0)))
                self._seen[(boot, uuid)] = max(seen, self._seen.get((boot, uuid), 0))


def _heads(args: dict[str, Any]) -> list[_Head]:
    commands = [args.get('command'), *(args.get('commands') or [])]
    found = [data for one in commands if (data := _data(one)) is not None]
    return [(data['migration_uuid'], data['epoch'], data['boot_id']) for data in found]


def _data(primitive: Any) -> dict[str, Any] | None:
    """Return the fields of an object as it travels; None if it is none."""
    data = primitive.get('data') if isinstance(primitive, dict) else None
    return data if isinstance(data, dict) else None
