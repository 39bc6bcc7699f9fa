# SPDX-License-Identifier: Apache-2.0

"""``migrator-drain evacuate``: rebuilds the guests of a dead host elsewhere.

It is a drain with another engine, so ``show``, ``watch``, ``pause``, ``resume`` and ``cancel`` work as for any drain.
"""

from __future__ import annotations

import argparse
import dataclasses
import getpass
import shlex
import sys
from typing import TYPE_CHECKING, Any

from migrator import exception
from migrator.nova.foreground import fenced, state
from migrator.nova.foreground.session import Session
from migrator.objects import base
from migrator.objects.drain import Drain, DrainStatus, MemberStatus, check_drain_move, check_member_move
from migrator.operator import request_fields
from migrator.operator.cli import command, drain

if TYPE_CHECKING:  # imported where it is used, so that the help is fast
    from migrator.nova.evacuation import Words
    from migrator.nova.foreground.loop import Interrupts

#: Nova's own service_down_time, in seconds, and the default limit of a fence command.
QUIET, FENCE_TIMEOUT = 60, 120
#: By default nova-compute reports every ten seconds.
LEAST_QUIET = 15
_PLAN_COLUMNS = ('GUEST', 'INSTANCE', 'STATUS', 'LOSES', 'ROOM AT', 'IN THE WAY', 'REMEDY')
_END_COLUMNS = ('GUEST', 'INSTANCE', 'EVACUATION', 'RUNS ON', 'NOVA SHOWS', 'REASON')


def evacuate(asked: Session) -> int:
    """Show what each guest of a host would lose; or evacuate them, if the operator says that it is fenced."""
    from migrator.nova import errors

    try:
        return _evacuate(asked)
    except errors.HostReports as error:  # the host is reachable, which is what is wrong
        raise exception.Invalid(str(error)) from error


def _evacuate(asked: Session) -> int:
    from migrator.nova import evacuation
    from migrator.nova.foreground import loop

    given, drains = asked.arguments, asked.database.drains
    words = evacuation.Words(given.disks_are_shared, given.rebuild_from_image, given.start)
    mine = next((one for one in drains.list(in_progress=True) if one.host == given.host), None)
    known = fenced.Recorded.of(drains.read_log(mine.uuid)) if mine is not None else None
    is_only_shown = not (given.fenced or given.fence_command)
    if mine is not None and known is not None and known.words is None:
        if not is_only_shown:
            evacuation.down(asked.cloud[0], mine.host)
            _take_over(asked, mine)
        mine = known = None
    if mine is not None and known is not None:
        if known.words != words:
            said = f'is in progress with other options ({known.words}, not {words})'
            remedy = f'Use {known.words}, or cancel it first: {asked.command} cancel {mine.uuid}'
            raise exception.Invalid(f'Evacuation {mine.uuid} of {mine.host} {said}. {remedy}')
    new = mine or drain.wanted(asked, given.host)
    if mine is None:
        drains.check(new, asked.known(new))
    if is_only_shown:
        return _plan(asked, new, words, is_only_shown)
    if mine is None:
        evacuation.down(asked.cloud[0], new.host)
        _plan(asked, new, words, is_only_shown=False)
        fenced.wait_quietly(asked, new.host)
        entry = {'words': dataclasses.asdict(words), 'by': getpass.getuser(), 'reason': _said(given)}
        drains.accept(new, has_service=False, events=[(fenced.SAID, entry)])
    with state.locked(asked.lock_of(new.uuid)) as pid:
        if pid is not None:
            sys.stderr.write(f'{loop.runs_elsewhere(new, pid)}\nTo see it: {asked.command} watch {new.uuid}\n')
            return command.WRONG
        try:
            fenced.declare(asked, new.uuid, is_new=mine is None)
        except KeyboardInterrupt:
            sys.stderr.write(f'{fenced.how_to_go_on(asked, new)}\n')
            raise
    if drains.get(new.uuid).paused:
        drains.request(new.uuid, 'resume', getpass.getuser())
    with loop.Interrupts() as interrupts:
        return run(asked, new.uuid, interrupts)


def run(asked: Session, uuid: str, interrupts: Interrupts) -> int:
    """Run a drain until it ends; at the end of an evacuation show what runs where. Return the exit status."""
    from migrator.nova.foreground import loop

    status, drains = loop.run(asked, uuid, interrupts), asked.database.drains
    ended = drains.get(uuid)
    if not ended.ended or fenced.Recorded.of(drains.read_log(uuid)).words is None:
        return status
    return max(status, _report(asked, ended))


def _take_over(asked: Session, mine: Drain) -> None:
    """End a drain of the host, whose migrations do not end any more.

    :raises migrator.exception.Invalid: another process runs it.
    """
    drains = asked.database.drains
    with state.locked(asked.lock_of(mine.uuid)) as pid:
        if pid is not None:
            what = f'Process {pid} runs drain {mine.uuid} of {mine.host}'
            raise exception.Invalid(f'{what}. End it first: press Ctrl-C twice where it was started, or kill {pid}.')
        drains.adopt(asked.threads.new_uuid(), mine.uuid)
        if mine.status == DrainStatus.ACCEPTED:
            drains.write(drains.get(mine.uuid), {'status': DrainStatus.RUNNING.value}, [], [])
        reason = f'An evacuation of {mine.host} was requested.'
        left = [one for one in drains.read_members(mine.uuid) if not one.ended]
        for one in left:
            check_member_move(mine, one.status, MemberStatus.CANCELLED.value)
        members = [one.replace(status=MemberStatus.CANCELLED.value, reason=reason) for one in left]
        ended = {'status': DrainStatus.CANCELLED.value, 'message': reason, 'waits_for': None, 'ended_at': drains.now()}
        check_drain_move(drains.get(mine.uuid), DrainStatus.CANCELLED.value)
        drains.write(drains.get(mine.uuid), ended, members, [('status', {'status': 'cancelled', 'message': reason})])


def _said(given: argparse.Namespace) -> str:
    return f'{given.host}: {"it is reported as fenced" if given.fenced else "a fence command is requested"}'


# --- the plan --------------------------------------------------------------------------------------------------------


def _plan(asked: Session, new: Drain, words: Words, is_only_shown: bool) -> int:
    """Show the guests of the host, with what each loses; return 1 if one cannot be evacuated."""
    from migrator.nova import evacuation, plan

    nova, placement = asked.cloud
    found = plan.plan(nova, placement, [new], asked.threads.clock, evacuation.obstacles(nova, new.host, words))[0]
    servers = {server.uuid: server for server in nova.servers(new.host)}
    for guest in found['guests']:
        server = servers.get(guest['instance_uuid'])
        guest['status'] = server.status if server is not None else None
        guest['loses'] = evacuation.loses(server, words) if server is not None and guest['can_move'] else None
        del guest['expected_seconds'], guest['migration_type']
    del found['expected_seconds']
    rows = [
        (one['name'], one['instance_uuid'], one['status'], one['loses'], one['destination'], *_in_the_way(one))
        for one in found['guests']
    ]
    lines = [command.table(_PLAN_COLUMNS, rows)]
    lines += [f'{one["name"]} ({one["instance_uuid"]}): {one["reason"]} {one["remedy"]}' for one in found['copies']]
    lines += found['not_judged']
    can, cannot = found['can_move'], found['cannot_move']
    in_error = [one['name'] for one in found['guests'] if one['status'] == 'ERROR' and one['can_move']]
    lines += [f'Nova starts what it shows in ERROR in any case: {", ".join(in_error)}.'] if in_error else []
    lines += [f'{base.count(can, "guest")} of {new.host} can be evacuated, {cannot} cannot. {_after(asked, words)}']
    if is_only_shown:
        found['reports'] = _why_alive(asked, new.host)
        lines += [found['reports']] if found['reports'] else _how_to_go_on(asked, new.host, words)
        asked.answer(found, '\n'.join(lines))
    elif not asked.arguments.json:
        print('\n'.join(lines), flush=True)
    return command.WRONG if cannot or found['copies'] or found.get('reports') else command.RIGHT


def _how_to_go_on(asked: Session, host: str, words: Words) -> list[str]:
    from migrator.nova import evacuation

    lines = ['Nothing was changed. Find out first whether the host is dead, or only nova-compute: look at its power.']
    if all(service.forced_down for service in evacuation.records(asked.cloud[0], host)):
        lines += [f'{host} is shown as down because it is declared forced down. Its guests may run.']
    return [*lines, *filter(None, fenced.offers(asked, host, words))]


def _why_alive(asked: Session, host: str) -> str | None:
    """Return that nova-compute reports, in words; None: Nova shows it as down."""
    from migrator.nova import errors, evacuation

    try:
        evacuation.down(asked.cloud[0], host)
    except errors.HostReports as error:
        return str(error)
    return None


def _in_the_way(guest: dict[str, Any]) -> tuple[str | None, str | None]:
    found = guest['obstacle'] or {'reason': None, 'remedy': None}
    return found['reason'], found['remedy']


def _after(asked: Session, words: Words) -> str:
    from migrator.nova import evacuation

    leaves_off = asked.cloud[0].microversion >= evacuation.LEAVES_OFF and not words.start
    if leaves_off:
        return 'The evacuated guests are left shut off at their new hosts; with --start, those that ran are started.'
    return 'The evacuated guests that ran are started at their new hosts.'


# --- the end ---------------------------------------------------------------------------------------------------------


def _report(asked: Session, ended: Drain) -> int:
    """Show what runs where, the wrong allocations, and when the host may be declared up."""
    from migrator.nova.foreground import allocations

    nova, members = asked.cloud[0], asked.database.drains.read_members(ended.uuid)
    guests = []
    for member in members:
        server = nova.server(member.instance_uuid)
        is_there = server is not None and server.status == 'ACTIVE' and server.host != ended.host
        guests.append(
            {
                'name': member.name,
                'instance_uuid': member.instance_uuid,
                'evacuation': member.status,
                'runs_on': server.host if server is not None and is_there else None,
                'shown': f'{server.status} on {server.host}' if server is not None else 'deleted',
                'reason': member.reason,
            }
        )
    found = allocations.look(asked)
    may_return = fenced.when_to_return(asked, ended.host)
    lines = [command.table(_END_COLUMNS, [tuple(one.values()) for one in guests]), *found.lines, may_return]
    asked.answer({'guests': guests, 'audit': found.document, 'host': may_return}, '\n'.join(lines))
    left = any(member.status not in (MemberStatus.MOVED, MemberStatus.GONE) for member in members)
    return command.WRONG if left or found.is_wrong else command.RIGHT


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``evacuate``."""
    parser.add_argument('host', metavar='HOST', type=command.name, help='the dead host')
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        '--fenced',
        action='store_true',
        help='the host has no power, or no network to storage and guests: declare it forced down, and evacuate',
    )
    help_ = 'run this to fence the host, then evacuate; {host} is replaced; no shell; exit status 0 means fenced'
    how.add_argument('--fence-command', metavar='CMD', type=_command_line, help=help_)
    help_ = f'the time within which the fence command has to end; default {FENCE_TIMEOUT}'
    parser.add_argument(
        '--fence-timeout', type=command.at_least(1), default=FENCE_TIMEOUT, metavar='SECONDS', help=help_
    )
    help_ = (
        'seconds for which nova-compute must not have reported before the host is fenced and declared down; at least '
        f'{LEAST_QUIET}, default {QUIET}; longer than report_interval of nova-compute'
    )
    parser.add_argument('--quiet-for', type=command.at_least(LEAST_QUIET), default=QUIET, metavar='SECONDS', help=help_)
    disks = parser.add_mutually_exclusive_group()
    help_ = 'all hosts have the disks of guests whose root disk is no volume'
    disks.add_argument('--disks-are-shared', action='store_true', help=help_)
    help_ = 'guests whose root disk is no volume begin again from their images, and lose their disks'
    disks.add_argument('--rebuild-from-image', action='store_true', help=help_)
    help_ = 'start those that ran; without it Nova leaves them shut off (from microversion 2.95 on)'
    parser.add_argument('--start', action='store_true', help=help_)
    # Nova evacuates a guest that is locked, too.
    request_fields.add(parser, without=['host', 'locked', 'include_stopped', 'spread'])


def _command_line(text: str) -> str:
    try:
        if not shlex.split(text):
            raise ValueError('it is empty')
    except ValueError as error:
        raise argparse.ArgumentTypeError(f'{text!r} is no command line: {error}') from None
    return text
