# SPDX-License-Identifier: Apache-2.0

"""The figures of a long run: lines of JSON, to which each piece of the run adds its own."""

from __future__ import annotations

import json
import pathlib
import threading
import time
from typing import Any

#: The file in the directory of a run.
NAME = 'figures.jsonl'


class Journal:
    """The file to which one piece appends what it has done and measured.

    :param directory: of the run; it is made if it is not there.
    :param after: the number of a piece; this one gets a higher number.
    """

    def __init__(self, directory: pathlib.Path, after: int = 0) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._file = directory / NAME
        self.piece = max((record['piece'] for record in read(directory)), default=after) + 1
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def write(self, kind: str, **fields: Any) -> None:
        """Append one line.

        :param kind: ``piece``, ``fault``, ``takeover``, ``drain``, ``rss``, ``minute``, ``audit``, ``finding`` or
            ``end``.
        """
        record = {'piece': self.piece, 'kind': kind, 'at': round(time.monotonic() - self._began, 1), **fields}
        with self._lock, self._file.open('a', encoding='utf-8') as file:
            file.write(json.dumps(record) + '\n')


def read(directory: pathlib.Path) -> list[dict[str, Any]]:
    """Return every line of a run. A last line that was cut off is left out."""
    file = directory / NAME
    found = []
    for line in file.read_text(encoding='utf-8').splitlines() if file.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
