# SPDX-License-Identifier: Apache-2.0

"""Files that many tests need and that take long to make: made once in a test process, and copied."""

from __future__ import annotations

import functools
import pathlib
import tempfile

from migrator import executors
from migrator.db.schema import sync
from migrator.db.sql.engine import Engine


def database(directory: pathlib.Path) -> pathlib.Path:
    """Write an empty database of this release's schema into a directory, and return its file."""
    file = directory / 'migrator.sqlite'
    file.write_bytes(_empty_database())
    return file


@functools.cache
def _empty_database() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        file = pathlib.Path(directory, 'migrator.sqlite')
        engine = Engine(f'sqlite:///{file}', executors.NativeThreads())
        sync.sync(engine)
        engine.dispose()
        return file.read_bytes()
