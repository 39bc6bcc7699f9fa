# SPDX-License-Identifier: Apache-2.0

"""The state of ``migrator-drain``: a database in a file, and a lock for each drain."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import re
import stat
from collections.abc import Iterator, Mapping
from urllib import parse

from migrator import exception


def default_path(cloud: str | None, region: str | None, environ: Mapping[str, str]) -> pathlib.Path:
    """Return the file for the drains of a cloud, below ``$XDG_STATE_HOME`` or ``~/.local/state``.

    :param cloud: its name; None: the one that ``OS_CLOUD`` names, or else the host in ``OS_AUTH_URL``.
    :param region: None: the one that ``OS_REGION_NAME`` names, or the only one.
    """
    name = cloud or environ.get('OS_CLOUD') or parse.urlsplit(environ.get('OS_AUTH_URL', '')).netloc or 'cloud'
    parts = [name, region or environ.get('OS_REGION_NAME')]
    file = '-'.join(re.sub(r'[^\w.-]', '_', part.rpartition('@')[2]) for part in parts if part)
    home = environ.get('XDG_STATE_HOME') or pathlib.Path('~/.local/state').expanduser()
    return pathlib.Path(home) / 'migrator' / f'{file}.sqlite'


def prepare(path: pathlib.Path) -> None:
    """Create the file and its directory unless they exist, both for this user only.

    :raises migrator.exception.ConfigurationError: they cannot be created.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(_opened(path, 0))
    except OSError as error:
        raise _refusal(path, error) from None


@contextlib.contextmanager
def locked(path: pathlib.Path) -> Iterator[int | None]:
    """Hold a lock file for the block.

    The lock ends with its process, however that ends.

    :returns: yields None; or the pid of the process that holds it already.
    :raises migrator.exception.ConfigurationError: there is something else than a lock file of this user.
    """
    while True:
        try:
            # Its directory may be one in which others can make files, such as a link to a file of this user.
            file = _opened(path, os.O_NOFOLLOW, mine=True)
        except OSError as error:
            raise _refusal(path, error) from None
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield _pid(file)
                return
            if not _is_at(file, path):
                continue  # the process that held it has removed it meanwhile
            os.truncate(file, 0)
            os.write(file, str(os.getpid()).encode())
            try:
                yield None
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            os.close(file)


def holder(path: pathlib.Path) -> int | None:
    """Return the pid of the process that holds a lock file, or None."""
    if not path.exists():
        return None
    with locked(path) as pid:
        return pid


def _opened(path: pathlib.Path, flags: int, mine: bool = False) -> int:
    """Return a regular file, which is created if it is missing, opened to be read and written.

    :param mine: whether it has to belong to this user.
    :raises OSError: it cannot be opened, or is something else.
    """
    # Without the last flag the opening of a pipe could wait for its other end.
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC | flags, 0o600)
    found = os.fstat(file)
    if stat.S_ISREG(found.st_mode) and (found.st_uid == os.geteuid() or not mine):
        return file
    os.close(file)
    what = 'It belongs to another user' if stat.S_ISREG(found.st_mode) else 'It is no regular file'
    raise OSError(errno.EINVAL, what)


def _refusal(path: pathlib.Path, error: OSError) -> exception.ConfigurationError:
    reason = 'It is a symbolic link' if error.errno == errno.ELOOP else error.strerror or str(error)
    return exception.ConfigurationError(option='--state', value=str(path), detail=f'{reason}. Name another file.')


def _pid(file: int) -> int:
    """Return the pid in a lock file; 0 if its process has not written it yet."""
    return int(os.pread(file, 20, 0) or 0)


def _is_at(file: int, path: pathlib.Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
