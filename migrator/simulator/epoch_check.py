# SPDX-License-Identifier: Apache-2.0
"""Watches the fence of the computes from outside: nothing of a lower tenure or epoch than one seen may be taken in."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from migrator.testing.bus import Message, Pending


@dataclasses.dataclass(frozen=True)
class _Head:
    """What a command says of itself."""

    migration_uuid: str
    instance_uuid: str
    boot_id: str
    tenure: int
    epoch: int


class EpochCheck:
    """What the boots of the computes have been heard to have seen, and what was on its way to them when.

    It speaks up only when it is sure: a message is measured by what its boot had told before it arrived.
    """

    def __init__(self) -> None:
        #: (boot, migration) -> the highest tenure of which that boot has told, and the highest epoch in it.
        self._seen: dict[tuple[str, str], tuple[int, int]] = {}
        #: (boot, instance) -> the highest tenure of which that boot has told.
        self._tenures: dict[tuple[str, str], int] = {}
        #: A call that has arrived, and may have arrived twice -> its heads, each with the tenure of the instance and
        #: the tenure and epoch of the migration that were known at its first arrival.
        self._calls: dict[Pending, list[tuple[_Head, int, tuple[int, int]]]] = {}

    def arrived(self, message: Message, pending: Pending | None) -> None:
        """Take in that a message is about to be handled by a compute."""
        if pending is not None and pending not in self._calls:
            self._calls[pending] = [
                (
                    head,
                    self._tenures.get((head.boot_id, head.instance_uuid), 0),
                    self._seen.get((head.boot_id, head.migration_uuid), (0, 0)),
                )
                for head in _heads(json.loads(message.body)['args'])
            ]

    def answered(self, pending: Pending, result: Any) -> Iterator[str]:
        """Take in what a compute has answered, and return what it should not have."""
        answers = [_data(one) for one in (result if isinstance(result, list) else [result])]
        for head, highest, (tenure, epoch) in self._calls.get(pending, ()):
            uuid, boot = head.migration_uuid, head.boot_id
            for answer in answers:
                if answer is None or answer.get('migration_uuid', uuid) != uuid or answer.get('boot_id') != boot:
                    continue
                if answer.get('refusal') is None:
                    if 0 < head.tenure < highest:
                        yield f'boot {boot} took in tenure {head.tenure} of migration {uuid}, having seen {highest}'
                    elif head.tenure <= tenure and head.epoch < epoch:
                        yield f'boot {boot} took in epoch {head.epoch} of migration {uuid}, having seen {epoch}'
                if answer.get('refusal') != 'tenure':
                    seen = (head.tenure, int(answer.get('seen', answer.get('epoch', 0))))
                    self._seen[(boot, uuid)] = max(seen, self._seen.get((boot, uuid), (0, 0)))
                told = int(answer.get('seen_tenure', answer.get('tenure', 0)))
                key = (boot, head.instance_uuid)
                self._tenures[key] = max(told, self._tenures.get(key, 0))


def _heads(args: dict[str, Any]) -> list[_Head]:
    commands = [args.get('command'), *(args.get('commands') or [])]
    names = [field.name for field in dataclasses.fields(_Head)]
    return [_Head(**{name: data[name] for name in names}) for one in commands if (data := _data(one)) is not None]


def _data(primitive: Any) -> dict[str, Any] | None:
    """Return the fields of an object as it travels; None if it is none."""
    data = primitive.get('data') if isinstance(primitive, dict) else None
    return data if isinstance(data, dict) else None
