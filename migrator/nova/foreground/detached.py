# SPDX-License-Identifier: Apache-2.0

"""A drain that a process of its own runs, without a terminal."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import subprocess
import sys

from migrator import exception
from migrator.nova.foreground.session import PROG, Session
from migrator.operator.cli import command

#: Seconds between two looks at whether the process runs the drain, and how many there are.
_AGAIN, _LOOKS = 0.1, 300
#: Characters of its log that are shown if it ends before.
_SHOWN = 2000


@dataclasses.dataclass(frozen=True)
class Begun:
    """The process that runs a drain.

    :ivar log: the file that it writes its events to.
    """

    pid: int
    log: pathlib.Path


class NotBegun(exception.MigratorException):
    """No process runs the drain yet. The message says what to do."""


def run(asked: Session, uuid: str) -> int:
    """Let another process run a drain, and return once it does.

    :returns: 0; 1 if it has ended before it ran the drain.
    """
    try:
        begun = begin(asked, uuid)
    except NotBegun as error:
        sys.stderr.write(f'{PROG}: {error.message}\n')
        return command.WRONG
    found = asked.database.drains.get(uuid)
    lines = [f'Process {begun.pid} runs drain {uuid} of {found.host}, and writes to {begun.log}.']
    if asked.connect is None and (ends := asked.where.lasts_until) is not None:
        lines.append(
            f'Its credentials cannot be renewed, and end at {command.moment(ends)} UTC. Then the drain waits: end the '
            f'process (kill {begun.pid}), and resume the drain with new credentials.'
        )
    lines += [f'To see it:   {asked.command} watch {uuid}', f'To pause it: {asked.command} pause {uuid}']
    asked.answer({'drain': uuid, 'pid': begun.pid, 'log': str(begun.log)}, '\n'.join(lines))
    return command.RIGHT


def begin(asked: Session, uuid: str) -> Begun:
    """Let another process run a drain, and return once it does.

    That process has a session of its own, so that no terminal ends it, and writes its events to a log beside the state.

    :raises NotBegun: it has ended before it ran the drain, or does not run it yet.
    """
    path = asked.path.with_name(f'{asked.path.name}.{uuid}.log')
    argv = [sys.executable, '-m', 'migrator.cmd.drain', *asked.options, 'resume', uuid]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        log = os.open(path, flags, 0o600)
        try:
            began = os.fstat(log).st_size
            process = subprocess.Popen(  # noqa: S603 -- no shell
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        finally:
            os.close(log)
    except OSError as error:
        raise NotBegun(
            f'no process can run the drain and write to {path}: {error.strerror or error}. Correct that, and try '
            f'again: {asked.command} resume {uuid}'
        ) from None
    for _ in range(_LOOKS):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_AGAIN)
        with path.open('rb') as file:
            file.seek(began)
            text = file.read(_SHOWN).decode(errors='replace')
        # The process writes this once it has the drain and the cloud. One that had little to do may have ended.
        if f'Drain {uuid} of' in text or process.returncode == command.RIGHT:
            return Begun(process.pid, path)
        if process.returncode is not None:
            again = f'{asked.command} resume {uuid} --detach'
            wrote = f'It wrote to {path}:\n{text.rstrip()}'
            raise NotBegun(f'the process that runs the drain has ended. {wrote}\nTo try again: {again}')
    raise NotBegun(f'process {process.pid} does not run drain {uuid} yet. Look at {path}.')
