# SPDX-License-Identifier: Apache-2.0

"""Whether a host is fenced: what was said and done, and that its nova-compute does not report.

The log of the drain keeps what the operator has said, each call of the fence command before it is made, and when the
host was declared down. From these entries a later command finds out where an earlier one was killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import os
import shlex
import signal
import subprocess
import sys
from typing import IO, TYPE_CHECKING, Any

from migrator import exception
from migrator.nova.foreground.session import Session
from migrator.objects import remedies
from migrator.objects.drain import Drain

if TYPE_CHECKING:  # imported where it is used, so that the help is fast
    from collections.abc import Mapping, Sequence

    from migrator.db.drains import Event
    from migrator.nova.evacuation import NovaEvacuations, Words

#: The kinds of the entries of a drain's log that only an evacuation has.
SAID, FENCE, DECLARED = 'evacuation', 'fence', 'declared'
#: The greatest length of what is recorded of a fence command, whose arguments may be secret.
_SHOWN = 200


@dataclasses.dataclass(frozen=True)
class Recorded:
    """What the log of an evacuation says.

    :ivar words: what the operator has said; None: it is an ordinary drain.
    :ivar fence: the call of a fence command since the host was declared down: its program, and how it ended, if it did.
    :ivar quiet_since: the times that Nova has shown of nova-compute since it was declared down; None: it was not.
    """

    words: Words | None
    fence: Mapping[str, Any] | None
    quiet_since: Mapping[str, str] | None

    @classmethod
    def of(cls, events: Sequence[Event]) -> Recorded:
        """Return what a log says."""
        from migrator.nova import evacuation

        newest = {event.kind: event for event in events}
        words = evacuation.Words.of(newest[SAID].payload['words']) if SAID in newest else None
        fence, declared = newest.get(FENCE), newest.get(DECLARED)
        if fence is not None and declared is not None:  # the newer one counts
            fence, declared = (fence, None) if fence.seq > declared.seq else (None, declared)
        return cls(
            words,
            None if fence is None else fence.payload,
            None if declared is None else declared.payload['quiet_since'],
        )

    @property
    def was_interrupted(self) -> bool:
        """Whether a fence command was begun, and it is not known how it ended."""
        return self.fence is not None and self.fence['status'] == 'begun'


def wait_quietly(asked: Session, host: str) -> None:
    """Wait until two looks have shown that nova-compute does not report.

    :raises migrator.nova.errors.HostReports: it does.
    """
    from migrator.nova import errors, evacuation

    nova, seconds = asked.cloud[0], asked.arguments.quiet_for
    before = evacuation.down(nova, host)
    sys.stderr.write(f'Looking for {seconds} s whether nova-compute at {host} reports ...\n')
    asked.threads.sleep(seconds)
    was, now = (evacuation.times(one) for one in (before, evacuation.down(nova, host)))
    if was != now:
        at = ' and '.join(sorted({*now.values()} - {*was.values()}))
        reason = (
            f'its nova-compute has reported, or its record was changed otherwise, at {at}. Fence the host, then type '
            'the same command again.'
        )
        raise errors.HostReports(host=host, reason=reason)


def declare(asked: Session, uuid: str, is_new: bool) -> None:
    """Have the host fenced if that is wanted, declare it down, and record the time that Nova shows then.

    :param is_new: whether the host was quiet a moment ago.
    """
    from migrator.nova import evacuation

    given, drains, nova = asked.arguments, asked.database.drains, asked.cloud[0]
    drains.adopt(asked.threads.new_uuid(), uuid)
    known, current = Recorded.of(drains.read_log(uuid)), drains.get(uuid)
    services = evacuation.down(nova, current.host)
    if evacuation.why_not_quiet(services, known.quiet_since) is None:
        return
    if not is_new:
        wait_quietly(asked, current.host)
    if given.fence_command:
        current = _fence(asked, current)
        wait_quietly(asked, current.host)  # a command that has ended well may have cut off another host
    for service in services:
        if not service.forced_down:
            nova.force_down(service.id)
    asked.mover.disable(current)
    quiet_since = evacuation.times(evacuation.down(nova, current.host))
    declared = {
        'quiet_since': quiet_since,
        'by': getpass.getuser(),
        'reason': f'{current.host} is declared forced down',
    }
    drains.write(current, {}, [], [(DECLARED, declared)])


def _fence(asked: Session, current: Drain) -> Drain:
    """Run the fence command, and return the drain as written.

    :raises migrator.exception.Invalid: it did not end with 0; nothing is declared.
    """
    words = [word.replace('{host}', current.host) for word in shlex.split(asked.arguments.fence_command)]
    program, drains, limit = words[0][:_SHOWN], asked.database.drains, asked.arguments.fence_timeout
    log = asked.path.with_name(f'{asked.path.name}.{current.uuid}.fence.log')
    begun = {'status': 'begun', 'program': program, 'by': getpass.getuser()}
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 'ab') as output:
        current = drains.write(current, {}, [], [(FENCE, begun)])
        sys.stderr.write(f'Fencing {current.host} with {program}, for at most {limit} s ...\n')
        how = _run(words, output, limit, current.host)
    ended = {'status': 'ended', 'program': program, 'reason': how or 'exit status 0'}
    current = drains.write(current, {}, [], [(FENCE, ended)])
    if how is not None:
        raise exception.Invalid(
            f'The fence command {program} failed: {how}. Its output is in {log}. Nothing was declared or '
            f'evacuated. Type the same command again, or fence the host yourself. {how_to_go_on(asked, current)}'
        )
    return current


def _run(words: Sequence[str], output: IO[bytes], limit: float, host: str) -> str | None:
    """Run a command in a session of its own, without a shell; return how it failed, or None.

    If this process is interrupted, the command is killed.

    :param output: gets its output.
    """
    try:
        process = subprocess.Popen(  # noqa: S603 -- the operator has typed it
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            env={**os.environ, 'MIGRATOR_HOST': host},
        )  # fmt: skip
    except OSError as error:
        return f'it cannot be run ({error.strerror})'
    try:
        status = process.wait(limit)
    except subprocess.TimeoutExpired:
        return f'it did not end within {limit} s, and was killed'
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return None if status == 0 else f'exit status {status}'


def engine_of(asked: Session, current: Drain) -> NovaEvacuations | None:
    """Return the engine of an evacuation; None: it is an ordinary drain.

    :raises migrator.exception.Invalid: it is not known whether the host is fenced.
    """
    from migrator.nova import evacuation

    known = Recorded.of(asked.database.drains.read_log(current.uuid))
    if known.words is None:
        return None
    if known.quiet_since is None and current.cancel_requested_at is None:
        reason = f'{current.host} was not declared down yet'
        if known.fence is not None and known.was_interrupted:
            reason = f'the fence command {known.fence["program"]} was interrupted, and may have cut off {current.host}'
        raise exception.Invalid(f'Evacuation {current.uuid} does not go on: {reason}. {how_to_go_on(asked, current)}')
    return asked.make_engine(evacuation.NovaEvacuations, words=known.words, quiet_since=known.quiet_since)


def refuse(asked: Session, drain: Drain, action: str) -> None:
    """Refuse to restore or retry an evacuation. The old host may still have copies.

    :raises migrator.exception.Invalid: the drain is an evacuation.
    """
    if Recorded.of(asked.database.drains.read_log(drain.uuid)).words is None:
        return
    if action == 'restore':
        back = remedies.offer(remedies.Kind.MOVE_LIVE, host=shlex.quote(drain.host))
        do = f'{when_to_return(asked, drain.host)} {back}'
    else:
        do = how_to_go_on(asked, drain)
    raise exception.Invalid(f'Drain {drain.uuid} is an evacuation, and has no {action}. {do}')


def how_to_go_on(asked: Session, current: Drain) -> str:
    """Return how an evacuation goes on, as a sentence."""
    words = Recorded.of(asked.database.drains.read_log(current.uuid)).words
    return offers(asked, current.host, words)[0] or f'Look at {current.host} first: its nova-compute may report.'


def offers(asked: Session, host: str, words: Words | None) -> list[str]:
    """Return the commands that evacuate a host, with the options so far; empty ones if it may report."""
    from migrator.nova.guests import look_at, service_of

    look = look_at(service_of(asked.cloud[0], host))
    options = f' {words}' if words is not None and any(dataclasses.asdict(words).values()) else ''
    names = {'drain': asked.command, 'host': shlex.quote(host), 'options': options}
    return [
        remedies.offer(kind, look, **names) for kind in (remedies.Kind.EVACUATE_HOST, remedies.Kind.FENCE_AND_EVACUATE)
    ]


def when_to_return(asked: Session, host: str) -> str:
    """Return when the nova-compute of a host that was evacuated may be started, as sentences."""
    from migrator.nova import evacuation

    guests = sorted({row.instance_uuid for row in evacuation.unended(asked.cloud[0], host)})
    if not guests:
        return remedies.offer(remedies.Kind.RETURN_HOST, host=shlex.quote(host))
    return (
        f'Do not start nova-compute at {host}: it would destroy these guests and their disks there, although their '
        f'evacuations have not ended: {", ".join(guests)}. Look first where they are, and copy their disks.'
    )
