# SPDX-License-Identifier: Apache-2.0

"""A check that compute services refuse commands with an outdated tenure or epoch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from migrator.testing.bus import Message, Pending


@dataclasses.dataclass(frozen=True)
class _Head:
    """The head of a command."""

    migration_uuid: str
    instance_uuid: str
    boot_id: str
    tenure: int
    epoch: int


class EpochCheck:
    """A check of the tenures and epochs that boots of compute services have reported.

    It has no false alarms: a call is compared only with what its boot had reported before the call arrived.
    """

    def __init__(self) -> None:
        #: (boot, migration) -> the highest tenure that the boot has reported, and the highest epoch in that tenure.
        self._seen: dict[tuple[str, str], tuple[int, int]] = {}
        #: (boot, instance) -> the highest tenure that the boot has reported.
        self._tenures: dict[tuple[str, str], int] = {}
        #: A call that has arrived -> its heads. Each has the tenure of its instance and the tenure and epoch of its
        #: migration that were known when the call first arrived. A call may arrive twice.
        self._calls: dict[Pending, list[tuple[_Head, int, tuple[int, int]]]] = {}

    def arrived(self, message: Message, pending: Pending | None) -> None:
        """Note that a compute service is about to handle a call."""
        if pending is not None and pending not in self._calls:
            self._calls[pending] = [
                (
                    head,
                    self._tenures.get((head.boot_id, head.instance_uuid), 0),
                    self._seen.get((head.boot_id, head.migration_uuid), (0, 0)),
                )
                for head in _heads(message.document['args'])
            ]

    def answered(self, pending: Pending, result: Any) -> Iterator[str]:
        """Note a compute service's reply to a call, and yield what the service should have refused."""
        answers = [_data(one) for one in (result if isinstance(result, list) else [result])]
        for head, highest, (tenure, epoch) in self._calls.get(pending, ()):
            uuid, boot = head.migration_uuid, head.boot_id
            for answer in answers:
                if answer is None or answer.get('migration_uuid', uuid) != uuid or answer.get('boot_id') != boot:
                    continue
                if answer.get('refusal') is None:
                    if 0 < head.tenure < highest:
                        yield f'boot {boot} accepted tenure {head.tenure} of migration {uuid} after tenure {highest}'
                    elif head.tenure <= tenure and head.epoch < epoch:
                        yield f'boot {boot} accepted epoch {head.epoch} of migration {uuid} after epoch {epoch}'
                if answer.get('refusal') != 'tenure':
                    seen = (head.tenure, int(answer.get('seen', answer.get('epoch', 0))))
                    self._seen[(boot, uuid)] = max(seen, self._seen.get((boot, uuid), (0, 0)))
                reported = int(answer.get('seen_tenure', answer.get('tenure', 0)))
                key = (boot, head.instance_uuid)
                self._tenures[key] = max(reported, self._tenures.get(key, 0))


_HEAD = [field.name for field in dataclasses.fields(_Head)]


def _heads(args: dict[str, Any]) -> list[_Head]:
    commands = [args.get('command'), *(args.get('commands') or [])]
    return [_Head(**{name: data[name] for name in _HEAD}) for one in commands if (data := _data(one)) is not None]


def _data(primitive: Any) -> dict[str, Any] | None:
    """Return the fields of a serialized object, or None if the value is not one."""
    data = primitive.get('data') if isinstance(primitive, dict) else None
    return data if isinstance(data, dict) else None
