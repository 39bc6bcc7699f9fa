# SPDX-License-Identifier: Apache-2.0

"""What this host has begun, in files of its own, so that a later life of the compute service knows of it.

Two kinds: ``incoming``, everything that was made here to receive a guest, written before it is made; and ``outgoing``,
that libvirt is asked to move a guest. They say what to clean and what to look at twice, and never where a guest is:
that is libvirt's word.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from typing import Any

INCOMING = 'incoming'
OUTGOING = 'outgoing'


class Records:
    """The records of one host.

    :param directory: of this host alone: on storage that hosts share each needs one of its own name.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = pathlib.Path(directory)

    def prepare(self) -> None:
        """Make the directory.

        :raises OSError: it cannot be made, or written to.
        """
        for kind in (INCOMING, OUTGOING):
            (self._directory / kind).mkdir(mode=0o700, parents=True, exist_ok=True)

    def read(self, kind: str, instance_uuid: str) -> dict[str, Any] | None:
        """Return what was written of a guest; None: nothing."""
        try:
            text = self._path(kind, instance_uuid).read_text(encoding='utf-8')
        except FileNotFoundError:
            return None
        found: dict[str, Any] = json.loads(text)
        return found

    def list(self, kind: str) -> list[str]:
        """Return the guests of which something is written."""
        return sorted(path.stem for path in (self._directory / kind).glob('*.json'))

    def write(self, kind: str, instance_uuid: str, facts: dict[str, Any]) -> None:
        """Write down facts of a guest, in place of earlier ones; when it returns they will survive a loss of power."""
        path = self._path(kind, instance_uuid)
        draft = path.with_suffix('.draft')
        with draft.open('w', encoding='utf-8') as file:
            json.dump(facts, file)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
        self._sync(path.parent)

    def remove(self, kind: str, instance_uuid: str) -> None:
        """Forget what was written of a guest."""
        path = self._path(kind, instance_uuid)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            self._sync(path.parent)

    def _path(self, kind: str, instance_uuid: str) -> pathlib.Path:
        if '/' in instance_uuid:
            raise ValueError(f'instance_uuid is {instance_uuid!r}: a uuid would do')
        return self._directory / kind / f'{instance_uuid}.json'

    @staticmethod
    def _sync(directory: pathlib.Path) -> None:
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
