# SPDX-License-Identifier: Apache-2.0

"""The verbs of ``migrator-drain``. Some are those of ``migrator-manage drain``, with another database."""

from __future__ import annotations

import argparse
import getpass
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from migrator import exception
from migrator.nova.foreground import allocations, detached, doctor, evacuation, fenced
from migrator.nova.foreground.session import Session
from migrator.objects.drain import Drain
from migrator.operator import request_fields
from migrator.operator.cli import command, drain
from migrator.operator.cli.command import Asked, Verb
from migrator.operator.watch import commands

if TYPE_CHECKING:  # imported where it is used, so that the help is fast
    from migrator.nova.foreground import loop


def show_plan(asked: Session) -> int:
    """Show which guests of hosts can move, where they would go, and what is in the way."""
    from migrator.nova import plan

    nova, placement = asked.cloud
    drains = [_checked(asked, host) for host in dict.fromkeys(asked.arguments.hosts)]
    return drain.answer_plans(asked, plan.plan(nova, placement, drains, asked.threads.clock))


def start(asked: Session) -> int:
    """Begin to empty a host, and run the drain until it ends."""
    from migrator.nova.foreground import loop

    new = _checked(asked, asked.arguments.host)  # Ctrl-C ends the command here: there is no drain yet
    doctor.warn(asked, new.host)
    with loop.Interrupts() as interrupts:
        asked.database.drains.accept(new, has_service=False)
        return _run(asked, new.uuid, interrupts)


def _run(asked: Session, uuid: str, interrupts: loop.Interrupts) -> int:
    """Run a drain until it ends, or let another process run it."""
    from migrator.nova.foreground import loop

    return detached.run(asked, uuid) if asked.arguments.detach else loop.run(asked, uuid, interrupts)


def show(asked: Session) -> int:
    """Show a drain with its guests. An evacuation is not retried, but typed again."""

    def how(one: Drain) -> str:
        if fenced.Recorded.of(asked.database.drains.read_log(one.uuid)).words is not None:
            return fenced.how_to_go_on(asked, one)
        return f'To try again: {asked.command} retry {one.uuid}'

    return drain.show(asked, how)


def retry(asked: Session) -> int:
    """Begin a new drain for the guests that one has left, and run it until it ends."""
    from migrator.nova.foreground import loop

    fenced.refuse(asked, drain.find(asked), 'retry')
    new, moved = drain.again(asked)
    asked.cloud  # noqa: B018 -- an error in its name comes before anything is written
    with loop.Interrupts() as interrupts:
        asked.database.drains.accept(new, has_service=False, moved=moved)
        return _run(asked, new.uuid, interrupts)


def _checked(asked: Session, host: str) -> Drain:
    new = drain.wanted(asked, host)
    asked.database.drains.check(new, asked.known(new))
    return new


def watch(asked: Session) -> int:
    """Show a drain until it ends."""
    found = asked.database.drains.get(_uuid_of(asked))
    if not found.ended:
        sys.stderr.write(f'{_runner(asked, found)}\n')
    return commands.watch(asked, asked.get, 'Drain', found.uuid)


def resume(asked: Session) -> int:
    """Run a drain that was paused, or whose process was killed, until it ends."""
    from migrator.nova.foreground import loop

    uuid, drains = _uuid_of(asked), asked.database.drains
    with loop.Interrupts() as interrupts:
        found = drains.get(uuid)
        if found.paused or found.ended:  # a drain that has ended cannot be resumed, and the error says so
            drains.request(uuid, 'resume', getpass.getuser())
        if asked.arguments.detach:
            return detached.run(asked, uuid)
        return evacuation.run(asked, uuid, interrupts)


def _run_after(action: str) -> Callable[[Session], int]:
    def act(asked: Session) -> int:
        from migrator.nova.foreground import loop

        uuid = _uuid_of(asked)
        asked.cloud  # noqa: B018 -- an error in its name comes before anything is written
        if action == 'restore':
            fenced.refuse(asked, asked.database.drains.get(uuid), 'restore')
        with loop.Interrupts() as interrupts:
            asked.database.drains.request(
                uuid, action, getpass.getuser(), getattr(asked.arguments, 'abort_running', False)
            )
            return _run(asked, uuid, interrupts)

    return act


def pause(asked: Session) -> int:
    """Let the process that runs a drain request no further migrations."""
    drains, uuid = asked.database.drains, _uuid_of(asked)
    drains.request(uuid, 'pause', getpass.getuser())
    found = drains.get(uuid)
    asked.answer(drain.document(asked, found), f'Drain {uuid}: paused. {_runner(asked, found)}')
    return command.RIGHT


def _serve(asked: Session) -> int:
    from migrator.nova.foreground import serve

    return serve.serve(asked)


def _runner(asked: Session, found: Drain) -> str:
    """Return which process runs a drain, in words, or the command that goes on with it."""
    from migrator.nova.foreground import loop

    pid = asked.runner(found.uuid)
    if pid is not None:
        return loop.runs_elsewhere(found, pid)
    return f'No process runs it. To go on: {asked.command} resume {found.uuid}'


def _uuid_of(asked: Session) -> str:
    """Return the uuid that was given, or that of the only drain in progress.

    :raises migrator.exception.Invalid: none was given, and there is not exactly one in progress.
    """
    if asked.arguments.drain is not None:
        found = drain.find(asked)
        command.say_what(asked.arguments.drain, f'drain {found.uuid} of {found.host}')
        return found.uuid
    going = asked.database.drains.list(in_progress=True)
    if len(going) == 1:
        return going[0].uuid
    named = '; '.join(f'{one.uuid} of {one.host}' for one in going)
    what = f'{len(going)} drains are in progress: {named}. Name one.' if going else 'No drain is in progress.'
    raise exception.Invalid(f'{what} All drains: {asked.command} list')


def _detach(parser: argparse.ArgumentParser) -> None:
    help_ = 'return once a process of its own runs the drain, which goes on when this terminal is closed'
    parser.add_argument('--detach', action='store_true', help=help_)


def _maybe_uuid(parser: argparse.ArgumentParser) -> None:
    help_ = f'{drain.NAMES}; default: the only one in progress'
    parser.add_argument('drain', metavar='DRAIN', type=command.name, nargs='?', help=help_)


def _cancel_arguments(parser: argparse.ArgumentParser) -> None:
    _maybe_uuid(parser)
    parser.add_argument('--abort-running', action='store_true', help='also abort the migrations that already run')
    _detach(parser)


def _which_arguments(parser: argparse.ArgumentParser) -> None:
    drain.which(parser)
    _detach(parser)


def _start_arguments(parser: argparse.ArgumentParser) -> None:
    request_fields.add(parser)
    _detach(parser)


def _resume_arguments(parser: argparse.ArgumentParser) -> None:
    _maybe_uuid(parser)
    _detach(parser)


def _serve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--port', type=command.at_least(0, 65535), default=0, help='the port on 127.0.0.1; default: a free one'
    )


def _own(run: Callable[[Session], int]) -> Callable[[Asked], int]:
    def of(asked: Asked) -> int:
        assert isinstance(asked, Session)
        return run(asked)

    return of


_OF_MANAGE = {verb.name: verb for verb in drain.VERBS}
#: The verbs.
VERBS: tuple[Verb, ...] = (
    Verb('doctor', 'check the cloud before a drain', _own(doctor.examine)),
    Verb('plan', _OF_MANAGE['plan'].help, _own(show_plan), _OF_MANAGE['plan'].arguments),
    Verb('start', 'empty a host', _own(start), _start_arguments),
    _OF_MANAGE['list'],
    Verb('show', _OF_MANAGE['show'].help, _own(show), _OF_MANAGE['show'].arguments),
    Verb('watch', 'show a drain until it ends', _own(watch), _maybe_uuid),
    Verb('pause', _OF_MANAGE['pause'].help, _own(pause), _maybe_uuid),
    Verb(
        'resume', 'go on with a drain after a pause, or after its process was killed', _own(resume), _resume_arguments
    ),
    Verb('cancel', _OF_MANAGE['cancel'].help, _own(_run_after('cancel')), _cancel_arguments),
    Verb('restore', _OF_MANAGE['restore'].help, _own(_run_after('restore')), _which_arguments),
    Verb('retry', _OF_MANAGE['retry'].help, _own(retry), _which_arguments),
    Verb(
        'evacuate',
        'show what each guest of a dead host would lose; with --fenced or --fence-command, evacuate them',
        _own(evacuation.evacuate),
        evacuation.arguments,
    ),
    Verb('serve', 'serve a page with the drains to a browser on this machine', _own(_serve), _serve_arguments),
    _OF_MANAGE['report'],
    _OF_MANAGE['purge'],
    _OF_MANAGE['calibration'],
    Verb('audit', 'show which allocations are wrong', _own(allocations.audit), allocations.audit_arguments),
    Verb('heal', 'correct wrong allocations, each in one write', _own(allocations.heal), allocations.heal_arguments),
)
