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
from collections.abc import Iterable, Iterator, Mapping
from urllib import parse

from migrator import exception


def default_path(cloud: str | None, region: str | None, environ: Mapping[str, str]) -> pathlib.Path:
    """Return the path for the name of a cloud, below ``$XDG_STATE_HOME`` or ``~/.local/state``.

    It is a link to the file of the cloud, so that the file is found without the cloud; see :func:`settled`.

    :param cloud: its name; None: the one that ``OS_CLOUD`` names, or else the host in ``OS_AUTH_URL``.
    :param region: None: the one that ``OS_REGION_NAME`` names, or the only one.
    """
    return _path(environ, name_of(cloud, environ) or 'cloud', region or environ.get('OS_REGION_NAME'))


def name_of(cloud: str | None, environ: Mapping[str, str]) -> str | None:
    """Return what names a cloud; None: nothing does, and it may be another one in the next directory."""
    return cloud or environ.get('OS_CLOUD') or parse.urlsplit(environ.get('OS_AUTH_URL', '')).netloc or None


def settled(
    endpoint: str, region: str | None, named: pathlib.Path, names: Iterable[pathlib.Path], environ: Mapping[str, str]
) -> pathlib.Path:
    """Return the file for the drains of a cloud, which is the same by whatever name the cloud is found.

    A file that an earlier version has written for a name stays there, and becomes the file of the cloud.

    :param endpoint: the URL of its Nova.
    :param region: its region.
    :param named: the path for the name by which it was found, which becomes a link.
    :param names: the paths for all names that it has for sure.
    :raises migrator.exception.ConfigurationError: there are several such files, or the link cannot be written.
    """
    at = parse.urlsplit(endpoint.lower())
    root = re.sub(r'/v2(\.[0-9]+)?(/.*)?$', '', at.path).rstrip('/')
    path = _path(environ, f'{at.netloc.rpartition("@")[2]}{root}', region)
    earlier = sorted(one for one in {named, *names} - {path} if one.is_file() and not one.is_symlink())
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if earlier and not os.path.lexists(path):
            with contextlib.suppress(FileExistsError):  # another process has just made it
                path.symlink_to(earlier[0].name)
        if named not in (path, *earlier):
            _link(named, path.name)
    except OSError as error:
        raise _refusal(path, error) from None
    files = sorted({path.resolve(), *(one.resolve() for one in earlier)})
    if len(files) > 1:
        found = ', '.join(map(str, files))
        detail = 'look at each (migrator-drain --state FILE list), end its drains, and move all but one away'
        raise exception.ConfigurationError(f'The drains of this cloud are in more than one file ({found}): {detail}.')
    return files[0]


def _path(environ: Mapping[str, str], *parts: str | None) -> pathlib.Path:
    file = '-'.join(re.sub(r'[^\w.-]', '_', part.rpartition('@')[2]) for part in parts if part)
    home = environ.get('XDG_STATE_HOME') or pathlib.Path('~/.local/state').expanduser()
    return pathlib.Path(home) / 'migrator' / f'{file}.sqlite'


def _link(path: pathlib.Path, target: str) -> None:
    """Let a path be a link, also if it is one to something else."""
    if path.is_symlink() and os.readlink(path) == target:
        return
    new = path.with_name(f'{path.name}.{os.getpid()}')
    new.unlink(missing_ok=True)  # of a process that was killed
    new.symlink_to(target)
    new.replace(path)


def prepare(path: pathlib.Path) -> None:
    """Create the file and its directory unless they exist, both for this user only.

    :raises migrator.exception.ConfigurationError: they cannot be created.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(opened(path, os.O_RDWR | os.O_CREAT))
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
            file = opened(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mine=True)
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


def opened(path: pathlib.Path, flags: int, mine: bool = False) -> int:
    """Return the descriptor of a regular file, which only this user can read if it is made here.

    :param flags: how to open it, such as ``os.O_RDWR | os.O_CREAT``.
    :param mine: whether it has to belong to this user.
    :raises OSError: it cannot be opened, or is something else.
    """
    # Without the first of these flags the opening of a pipe could wait for its other end.
    file = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
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
