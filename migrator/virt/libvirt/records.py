# SPDX-License-Identifier: Apache-2.0

"""Records of the work that this host has begun, in files for later boots of the compute service.

============ ==================================================================================================
``incoming`` everything that is made here to receive a guest, written before it is made
``outgoing`` a guest that is being moved away: by a request to libvirt, or after it was powered off
``arrived``  what was made here for a guest that was powered off to be moved, and has arrived; a revert of the same
             migration removes it
============ ==================================================================================================

The records say what to clean up and what to check twice. They never say where a guest is. Only libvirt reports that.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from typing import Any

INCOMING = 'incoming'
OUTGOING = 'outgoing'
ARRIVED = 'arrived'


class Records:
    """The records of one host.

    :param directory: used by this host only. On shared storage each host needs a directory of its own.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = pathlib.Path(directory)

    def prepare(self) -> None:
        """Create the directories.

        :raises OSError: a directory cannot be created, or is not writable.
        """
        for kind in (INCOMING, OUTGOING, ARRIVED):
            (self._directory / kind).mkdir(mode=0o700, parents=True, exist_ok=True)

    def read(self, kind: str, instance_uuid: str) -> dict[str, Any] | None:
        """Return the record of a guest, or None if there is none."""
        try:
            text = self._path(kind, instance_uuid).read_text(encoding='utf-8')
        except FileNotFoundError:
            return None
        found: dict[str, Any] = json.loads(text)
        return found

    def list(self, kind: str) -> list[str]:
        """Return the uuids of the guests that have a record of one kind."""
        return sorted(path.stem for path in (self._directory / kind).glob('*.json'))

    def write(self, kind: str, instance_uuid: str, facts: dict[str, Any]) -> None:
        """Write the record of a guest, and replace an earlier one.

        When this returns, the record survives a loss of power.
        """
        path = self._path(kind, instance_uuid)
        draft = path.with_suffix('.draft')
        with draft.open('w', encoding='utf-8') as file:
            json.dump(facts, file)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
        sync(path.parent)

    def remove(self, kind: str, instance_uuid: str) -> None:
        """Remove the record of a guest, if there is one."""
        path = self._path(kind, instance_uuid)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            sync(path.parent)

    def _path(self, kind: str, instance_uuid: str) -> pathlib.Path:
        if '/' in instance_uuid:
            raise ValueError(f'instance_uuid is {instance_uuid!r}: it must be a uuid')
        return self._directory / kind / f'{instance_uuid}.json'


def sync(directory: str | os.PathLike[str]) -> None:
    """Make the names in a directory survive a loss of power.

    :raises OSError: the directory cannot be written.
    """
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
