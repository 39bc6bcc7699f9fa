# SPDX-License-Identifier: Apache-2.0

"""The fields of a drain's request, from which its schema, its arguments and its documents are made."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections.abc import Iterable
from typing import Any

from migrator import exception
from migrator.objects import base
from migrator.objects.drain import MOST, Direction, Drain, DrainOrder, DrainStatus, Locked, Member, MemberStatus


class Kind(enum.Enum):
    """What a field holds."""

    HOST = 'a host'
    HOSTS = 'hosts'
    TEXT = 'a text'
    CHOICE = 'one of some words'
    NUMBER = 'a whole number'
    NUMBERS = 'uuids of guests, each with a whole number'
    MOMENT = 'a time'
    FLAG = 'true or false'
    SPAN = 'seconds'
    WINDOW = 'a time of each day'
    AMOUNTS = 'resource classes, each with a whole number'
    GROUPS = 'names of groups, each with hosts'
    OF_DRAIN = 'fields of the request of a drain'


@dataclasses.dataclass(frozen=True)
class Field:
    """One field.

    :ivar name: in a body, in a document, and in its class.
    :ivar help: what it means; ``{guest}`` stands for what the command calls a guest, ``{before}`` for what it has
        before the name of each option.
    :ivar option: the option of a command, if it is not the name; ``{guest}`` as above.
    :ivar least: the least number; the greatest is ``MOST``, which also bounds how many hosts or guests are named.
    :ivar choices: the words of a choice.
    :ivar of: the class that has the default.
    """

    name: str
    kind: Kind
    help: str
    option: str | None = None
    least: int = 1
    choices: tuple[str, ...] = ()
    of: type[base.Versioned] = Drain

    @property
    def default(self) -> object:
        """The value if the request does not have the field; None: it has no simple one."""
        found = {one.name: one.default for one in dataclasses.fields(self.of)}.get(self.name)
        return None if found is dataclasses.MISSING else found

    @property
    def may_be_null(self) -> bool:
        """Whether null stands for the default."""
        return self.name not in ('host', 'hosts', 'reason') and self.default is None

    def option_for(self, guest: str) -> str:
        """Return the option of a command.

        :param guest: what the command calls a guest.
        """
        return (self.option or self.name).format(guest=guest).replace('_', '-')


#: Numbers have a bound, so that no database refuses them.
LEAST, GREATEST = -MOST, MOST
FIELDS = (
    Field('host', Kind.HOST, 'the host to empty'),
    Field('reason', Kind.TEXT, 'why the host is disabled; the list of services shows it'),
    Field(
        'order',
        Kind.CHOICE,
        'which {guest}s leave first; default requested',
        choices=tuple(one.value for one in DrainOrder),
    ),
    Field(
        'priorities',
        Kind.NUMBERS,
        'with --{before}order priority: {guest}s with a greater number leave sooner, others have 0; may be repeated',
        option='{guest}-priority',
        least=LEAST,
    ),
    Field(
        'priority',
        Kind.NUMBER,
        'each step counts as ten minutes of waiting when drains compete for slots (not on a stock Nova); default 0',
        least=LEAST,
    ),
    Field('parallel', Kind.NUMBER, 'at most N {guest}s move at a time; default: slots of the host, 1 on a stock Nova'),
    Field('max_attempts', Kind.NUMBER, 'the greatest number of migrations of one {guest}; default 3'),
    Field('destinations', Kind.HOSTS, 'a host that may receive {guest}s; may be repeated; default: any', 'destination'),
    Field('deadline', Kind.MOMENT, 'when to stop requesting migrations: a time in UTC, or a span from now such as 90m'),
    Field(
        'include_stopped',
        Kind.FLAG,
        'also move {guest}s that are shut off, by cold migrations that the drain confirms',
    ),
    Field(
        'spread',
        Kind.FLAG,
        'on a stock Nova: name the destination of each {guest}, the host with the fewest on their way; default: its '
        'scheduler chooses',
    ),
    Field(
        'locked',
        Kind.CHOICE,
        'what becomes of {guest}s that are locked: stay, the default, or move, which only an administrator may choose',
        choices=tuple(one.value for one in Locked),
    ),
)
NAMES = tuple(field.name for field in FIELDS)


def moved(members: Iterable[Member]) -> list[Member]:
    """Return the guests that a drain has moved.

    The drain of a retry has them too, so that its restore is whole.
    """
    # The mark is of a migration that the earlier drain has requested.
    return [one.replace(mark=None) for one in members if one.status == MemberStatus.MOVED]


def again(drain: Drain, members: Iterable[Member], now: datetime.datetime) -> dict[str, Any]:
    """Return the same request as a drain that has ended, for the guests that it did not move.

    A deadline that has passed is left out.

    :returns: the fields of the new :class:`~migrator.objects.drain.Drain`, but those of its requester.
    :raises migrator.exception.InvalidDrainState: the drain has not ended, was a restore, or has moved every guest
        and emptied the host.
    """
    left = [one.instance_uuid for one in members if one.status not in (MemberStatus.MOVED, MemberStatus.GONE)]
    do = None
    if not drain.ended:
        do = drain.how_it_ends
    elif drain.direction == Direction.BACK and left:
        do = 'it was a restore: to bring back the other guests, restore it again'
    elif drain.direction == Direction.BACK:
        do = 'it was a restore, and has left no guest: to empty the host again, start a new drain'
    elif not left and drain.status != DrainStatus.INCOMPLETE:
        do = 'all of its guests have left the host'
    if do is not None:
        raise exception.InvalidDrainState(action='retry', drain=drain.uuid, status=drain.shown_status, do=do)
    # Where only allocations or cleanups were left, the host is checked again.
    found = {name: getattr(drain, name) for name in NAMES} | {'only_guests': left or None, 'retry_of': drain.uuid}
    found['priorities'] = {uuid: n for uuid, n in (drain.priorities or {}).items() if uuid in left} or None
    if drain.deadline is not None and drain.deadline <= now:
        found['deadline'] = None
    return found
