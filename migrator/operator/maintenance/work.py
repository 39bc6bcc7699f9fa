# SPDX-License-Identifier: Apache-2.0

"""The work at the hosts of a maintenance by commands, each under a supervisor of its own.

A host that is ready is claimed with a uuid that is chosen here, and gets a directory of that name before. What goes on
is read from the maintenance and from these directories alone, so that any later call goes on where this one has ended,
however it has ended::

    DIRECTORY/MAINTENANCE/HOST/CLAIM/check       whether there is anything to do
    DIRECTORY/MAINTENANCE/HOST/CLAIM/run         the work
    DIRECTORY/MAINTENANCE/HOST/CLAIM/verify-1    whether the work has done what it should; and so on
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import pathlib
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib import parse
from uuid import UUID

from migrator import exception, executors
from migrator.drain.maintenance.turns import ENDS, MaintenanceStatus, TurnStatus
from migrator.objects import times
from migrator.operator.maintenance.supervisor import State, Work
from migrator.operator.watch import errors

#: The exit status of a command that had nothing to do.
NOTHING_TO_DO = 70
#: Seconds between two looks.
EVERY = 2.0
#: How many looks lie between two requests of a claim that was refused.
_LOOKS = 15
#: Seconds after which an attempt of ``verify`` is ended: the connection to a host that restarts may hang.
_ATTEMPT = 60.0
#: The greatest length of a reason, and the most processes that are named.
_LONGEST, _NAMED = 255, 5

Document = Mapping[str, Any]
#: Sends an action on a host: (action, its body).
Act = Callable[[str, dict[str, Any]], object]


@dataclasses.dataclass(frozen=True)
class Commands:
    """The commands for one host. ``{host}`` in a word stands for its name.

    :ivar run: the work.
    :ivar check: runs before it, and may end with :data:`NOTHING_TO_DO`.
    :ivar verify: is repeated after it until it succeeds.
    :ivar limit: seconds after which ``check`` and ``run`` are ended. An attempt of ``verify`` has at most a minute.
    :ivar verify_for: seconds for which ``verify`` is repeated.
    :ivar verify_every: seconds between two attempts of it.
    """

    run: str
    check: str | None = None
    verify: str | None = None
    limit: float = 3600.0
    verify_for: float = 3600.0
    verify_every: float = 10.0


def default_directory(environ: Mapping[str, str]) -> pathlib.Path:
    """Return the directory of all work, below ``$XDG_STATE_HOME`` or ``~/.local/state``."""
    home = environ.get('XDG_STATE_HOME') or pathlib.Path('~/.local/state').expanduser()
    return pathlib.Path(home) / 'migrator' / 'work'


class Worker:
    """What works at the hosts of one maintenance.

    :param uuid: the maintenance.
    :param act: sends an action on a host to the API.
    :param directory: of the work at all maintenances.
    :param threads: makes claims, and has the clock of the supervisors.
    :param say: shows a line to the user.
    """

    def __init__(
        self,
        uuid: str,
        commands: Commands,
        act: Act,
        directory: pathlib.Path,
        threads: executors.Threads,
        say: Callable[[str], object],
    ) -> None:
        self._commands = commands
        self._act = act
        self._root = _of_maintenance(directory, uuid)
        self._threads = threads
        self._say = say
        self._said: dict[str, str] = {}
        #: Host -> for how many looks no further ``begin`` is sent.
        self._rests: dict[str, int] = {}

    def look(self, maintenance: Document) -> bool:
        """Claim what is ready, and go on with what was claimed here; return whether the maintenance has ended."""
        said = maintenance['waits_for'] or maintenance['message'] or ''
        self.note('', f'The maintenance is {maintenance["status"]}. {said}'.rstrip())
        for host in maintenance['hosts']:
            try:
                self._advance(host, maintenance['status'] == MaintenanceStatus.RUNNING)
            except (exception.MigratorException, OSError) as error:  # the others go on; this is looked at again
                self.note(host['host'], exception.message_of(error))
        return maintenance['status'] in ENDS

    def _advance(self, host: Document, may_begin: bool) -> None:
        name, status = host['host'], host['status']
        if status == TurnStatus.READY:
            self._rests[name] = self._rests.get(name, 0) - 1
            if not may_begin or self._rests[name] > 0:
                return
            left = _living(self._root, name)
            if left:
                self.note(name, f'earlier work still runs: {pids(left)}. Wait for it, or end it')
                return
            claim = self._chosen(name)
            self._rests[name] = _LOOKS  # unless the request is accepted
            self._act('begin', {'host': name, 'claim': claim})
            self._rests[name] = 0
            self.note(name, f'claimed; its logs are in {_of_host(self._root, name) / claim}')
            self._go_on(name, claim)
        elif status == TurnStatus.WORKING and host['claim'] in {path.name for path in _claims(self._root, name)}:
            self._go_on(name, host['claim'])
        else:
            self.note(name, f'{status}. {host["reason"] or ""}'.strip())

    def _chosen(self, host: str) -> str:
        """Return a claim that was chosen and never used, such as by a call that was killed; or a new one."""
        for path in _claims(self._root, host):
            if not any(path.iterdir()):
                return path.name
        claim = self._threads.new_uuid()
        (_of_host(self._root, host) / claim).mkdir(mode=0o700, parents=True)
        return claim

    # --- one host ----------------------------------------------------------------------------------------------------

    def _go_on(self, host: str, claim: str) -> None:
        """Start the next command of a host, or report how its work has ended."""
        path = _of_host(self._root, host) / claim
        # A check that is given only now comes too late for work that was begun.
        was_begun = Work(path / 'run').state() is not State.NEW
        for stage, command in (('check', self._commands.check), ('run', self._commands.run)):
            work = Work(path / stage)
            # One that was given to an earlier call is waited for.
            if (command is None and work.state() is State.NEW) or (stage == 'check' and was_begun):
                continue
            if not self._has_ended(work, host, stage, command or '', self._commands.limit):
                return
            action, why = _judged(work, stage)
            if action:
                self._report(host, action, claim, why, work)
                return
        self._verify(host, claim, path)

    def _has_ended(self, work: Work, host: str, stage: str, command: str, limit: float) -> bool:
        """Return whether a command has ended, and start it unless it was begun."""
        state = work.state()
        if state is State.NEW:
            words = [word.replace('{host}', host) for word in shlex.split(command)]
            try:
                work.start(words, {'MIGRATOR_HOST': host}, limit)
            except exception.Conflict:
                return False  # another call for the same maintenance was faster
            self.note(host, f'{stage}: {shlex.join(words)}')
        return state in (State.ENDED, State.INTERRUPTED)

    def _verify(self, host: str, claim: str, path: pathlib.Path) -> None:
        command = self._commands.verify
        if command is None:
            self._report(host, 'done', claim)
            return
        limit = min(self._commands.limit, _ATTEMPT)
        number = max(_attempts(path), default=1)
        work = Work(path / f'verify-{number}')
        if not self._has_ended(work, host, f'verify-{number}', command, limit):
            return
        result, began = work.result(), Work(path / 'run').result()
        if result is not None and result.own_status == 0:
            self._report(host, 'done', claim)
            return
        now = self._threads.clock.now()
        ended = result.ended_at if result is not None else work.begun_at or now
        if began is not None and now - began.ended_at >= datetime.timedelta(seconds=self._commands.verify_for):
            said = result.text if result is not None else 'it was interrupted'
            why = f'verify has not succeeded for {times.span(self._commands.verify_for)}; at last: {said}.'
            self._report(host, 'fail', claim, why, work)
        elif not 0 <= (now - ended).total_seconds() < self._commands.verify_every:  # the clock may be set back
            again = Work(path / f'verify-{number + 1}')
            self._has_ended(again, host, f'verify-{number + 1}', command, limit)

    def _report(self, host: str, action: str, claim: str, why: str = '', work: Work | None = None) -> None:
        body = {'host': host, 'claim': claim}
        if action == 'fail' and work is not None:
            where = f' See {work.log}'
            why = why[: max(0, _LONGEST - len(where))] + where
            body['reason'] = why[:_LONGEST]
        self._act(action, body)
        self.note(host, f'{action}{f": {why}" if why else ""}')

    def note(self, host: str, line: str) -> None:
        """Show a line, unless it was the last one of its host."""
        if self._said.get(host) != line:
            self._said[host] = line
            at = times.moment(self._threads.clock.now())
            with contextlib.suppress(OSError):  # such as a full disk behind the output
                self._say(f'{at} {host}: {line}' if host else f'{at} {line}')


def follow(worker: Worker, read: Callable[[], dict[str, Any]], sleep: Callable[[float], None]) -> dict[str, Any]:
    """Work until a maintenance has ended, and return it.

    If the API is away for a while, work in progress goes on. At the first look that is an error.

    :param read: returns the maintenance.
    :raises migrator.operator.watch.errors.ApiRefused: the API refuses to show it.
    :raises migrator.operator.watch.errors.ApiUnreachable: the API does not reply to the first request.
    """
    maintenance = read()
    while not worker.look(maintenance):
        sleep(EVERY)
        try:
            maintenance = read()
        except errors.ApiUnreachable as error:
            worker.note('', f'{error.message} Trying again every {EVERY:g} s.')
    return maintenance


def living(directory: pathlib.Path, uuid: str, host: str) -> list[int]:
    """Return the processes that are left of the work at a host, such as after its supervisor was killed.

    :param directory: of the work at all maintenances.
    :param uuid: the maintenance.
    """
    return _living(_of_maintenance(directory, uuid), host)


def _living(root: pathlib.Path, host: str) -> list[int]:
    works = (path for claim in _claims(root, host) for path in claim.iterdir() if path.is_dir())
    return [pid for path in works for pid in Work(path).living()]


def pids(found: Sequence[int]) -> str:
    """Return some of the processes as text."""
    more = f' and {len(found) - _NAMED} more' if len(found) > _NAMED else ''
    return f'process {", ".join(map(str, found[:_NAMED]))}{more}'


def _of_maintenance(directory: pathlib.Path, uuid: str) -> pathlib.Path:
    return directory / str(UUID(uuid))


def _of_host(root: pathlib.Path, host: str) -> pathlib.Path:
    """Return the directory of a host, whatever characters its name has."""
    name = parse.quote(host, safe='')
    return root / (name if name.strip('.') else name.replace('.', '%2E'))


def _claims(root: pathlib.Path, host: str) -> list[pathlib.Path]:
    try:
        return sorted(path for path in _of_host(root, host).iterdir() if path.is_dir())
    except FileNotFoundError:
        return []


def _judged(work: Work, stage: str) -> tuple[str, str]:
    """Return what follows from a command that has ended, and why: ``skip``, ``fail`` or nothing."""
    result = work.result()
    if result is None:
        at = f', begun at {times.moment(work.begun_at)} UTC' if work.begun_at is not None else ''
        left = work.living()
        still = f' Of it still runs: {pids(left)}.' if left else ''
        return 'fail', f'{stage} was interrupted{at}.{still}'
    if result.own_status == NOTHING_TO_DO:
        return 'skip', ''
    return ('', '') if result.own_status == 0 else ('fail', f'{stage}: {result.text}.')


def _attempts(path: pathlib.Path) -> Iterator[int]:
    for one in path.iterdir():
        found = re.fullmatch('verify-([0-9]{1,6})', one.name)
        if found:
            yield int(found[1])
