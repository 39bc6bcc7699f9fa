# SPDX-License-Identifier: Apache-2.0

"""The result of a drain, the guests that it has left, and what to do next, in words.

``migrator-manage``, ``migrator-drain`` and ``openstack host drain`` print the same lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from migrator.objects import base, remedies
from migrator.objects.drain import DRAIN_ENDS, NOT_MOVED, Direction, DrainStatus, MemberStatus, Tally

Document = Mapping[str, Any]
#: The most guests that wait for one reason which are named.
_NAMED = 3


def has_ended(drain: Document) -> bool:
    """Return whether a drain has ended."""
    return drain['status'] in DRAIN_ENDS


def result(drain: Document) -> str:
    """Return the status of a drain, and how many of its guests have moved or are left."""
    tally = Tally.of(drain['direction'], drain['guests'])
    done, not_done = ('moved', 'left') if drain['direction'] == Direction.AWAY else ('back', 'not back')
    if not has_ended(drain):
        return f'{drain["status"]}: {tally.done} of {tally.total} {done}'
    left = f'{tally.left} of {tally.total} {not_done}' if tally.left else f'{tally.done} {done}'
    return f'{drain["status"]}: {left}'


def guests(drain: Document, typed: Callable[[str], str] = str) -> list[str]:
    """Return a line for the guests that are left or wait for one reason, and the commands that help.

    Each command has a line of its own.

    :param typed: returns a command as it can be typed here.
    """
    if drain['retried_by'] is not None:
        return []
    lines: dict[tuple[str, ...], list[str]] = {}
    for one in drain['members']:
        what = _what(drain, one)
        if what is not None:
            # The reason may have words of a user, and so any command.
            lines.setdefault((what, *map(typed, _commands(one) if _needs(drain, one) else ())), []).append(
                base.printable(f'{one["name"]} ({one["instance_uuid"]})')
            )
    return [
        line
        for (what, *commands), names in lines.items()
        for line in (f'{_few(drain, names)}: {base.printable(what)}', *(f'    {one}' for one in commands))
    ]


def _few(drain: Document, names: Sequence[str]) -> str:
    """Return the names of some guests. Those of a drain in progress are also in its table."""
    shown = names if has_ended(drain) else names[:_NAMED]
    return ', '.join(shown) + (f' and {len(names) - len(shown)} more' if len(shown) < len(names) else '')


def _what(drain: Document, member: Document) -> str | None:
    """Return what is said of a guest, or None."""
    is_back = drain['direction'] == Direction.BACK
    migration = member['migration'] or {}
    reason = migration.get('stuck_reason') or member['reason']
    if member['status'] == MemberStatus.MOVED or (member['status'] == MemberStatus.GONE and not is_back):
        return None
    if reason == NOT_MOVED or not (reason or has_ended(drain)):
        return None
    if not _needs(drain, member):
        return f'{member["status"]} in this drain, but on {member["host"]} now. Nothing is left to do for it.'
    return f'{member["status"]}. {_without_commands(reason or "", member)}'.rstrip()


def _needs(drain: Document, member: Document) -> bool:
    """Return whether a guest still has to move, as far as is known. It may have moved since the end."""
    if not has_ended(drain) or member['host'] is None or member['status'] == MemberStatus.GONE:
        return True
    return bool((member['host'] == drain['host']) == (drain['direction'] == Direction.AWAY))


def _commands(member: Document) -> list[str]:
    return remedies.commands_in(member['remedy'] or '')


def _without_commands(reason: str, member: Document) -> str:
    """Return a reason without the commands at its end, which are printed below it."""
    remedy, commands = member['remedy'] or '', _commands(member)
    if not commands or not reason.endswith(remedy):
        return reason
    lead, _, rest = remedy.partition(commands[0])
    is_at_end = rest.rpartition(commands[-1])[2].strip(' .') == ''
    return reason.removesuffix(remedy) + lead.rstrip() if is_at_end else reason


def checks(drain: Document) -> list[str]:
    """Return a line for each check. What was found before a retry has changed since."""
    found = drain['checks'] if drain['retried_by'] is None else ()
    return [base.printable(f'{one["what"]}: {", ".join(one["left"]) or "none"}') for one in found]


def advice(drain: Document, command: str, how_to_retry: str | None = None) -> Iterator[str]:
    """Yield what to do about a drain that has ended.

    :param command: the beginning of each command about drains.
    :param how_to_retry: how one that has left guests is tried again, as a sentence; None: by ``retry``.
    """
    uuid, newer, left = drain['uuid'], drain['retried_by'], Tally.of(drain['direction'], drain['guests']).left
    if newer is not None:
        yield f'It was retried: drain {newer} has its guests. To see them: {command} show {newer}'
        return
    remains = any(check['left'] for check in drain['checks'])
    if drain['host_disabled_by_drain'] and (left or remains):  # else the message says it
        yield f'{drain["host"]} stays disabled until you restore the drain or enable the host.'
    if drain['direction'] == Direction.BACK and left:
        yield f'To bring back the others once nothing is in the way: {command} restore {uuid}'
    elif left or remains:
        yield how_to_retry or f'To try again: {command} retry {uuid}'


def message(drain: Document) -> str | None:
    """Return the message of a drain, unless the lines about its guests and checks have all of it."""
    text: str | None = drain['message']
    if not has_ended(drain) or drain['status'] == DrainStatus.CANCELLED:  # only the message says that it is enabled
        return text
    shown = drain['retried_by'] or guests(drain) or any(check['left'] for check in drain['checks'])
    return None if shown else text


def waits_for(drain: Document) -> str | None:
    """Return what a drain waits for, unless a line about its guests says it."""
    reasons = [one['reason'] for one in drain['members'] if one['reason']]
    text: str | None = drain['waits_for']
    return None if text is None or any(reason in text for reason in reasons) else text
