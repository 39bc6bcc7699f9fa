# SPDX-License-Identifier: Apache-2.0

"""The check of the migrations that drains request: whose they are, and how many (I25)."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from typing import Any

from migrator.objects import MigrationStatus
from migrator.objects.drain import MemberStatus
from migrator.objects.migration import AbortCause
from migrator.simulator.world import World


class DrainRequests:
    """The marks that the members of drains have had, and the migrations that were requested with them."""

    def __init__(self) -> None:
        #: Mark -> the drain and the instance that had it first.
        self._marks: dict[str, tuple[str, str]] = {}
        #: (drain, instance) -> the status at the last look, and whether the drain had ended then.
        self._before: dict[tuple[str, str], tuple[str, bool]] = {}
        #: (drain, instance) -> the migrations that do not count any more: the guest has left since, or came back.
        self._earlier: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
        #: The migrations whose source did not answer, or was stopped. A look sees the logs of recent ones alone.
        self._not_tried: set[str] = set()
        self._seen: tuple[Mapping[str, Any], ...] = ()

    def look(self, world: World) -> Iterator[str]:
        """Note the marks since the last look, and yield which requests are wrong.

        - A mark belongs to one member. Each migration of a drain was requested with a mark of the drain's member.
        - A migration of a drain in progress is that of a member that moves.
        - A member gets no more than ``max_attempts`` migrations, unless its guest has left and come back, or the drain
          was restored meanwhile. Each restore has attempts of its own. A migration does not count whose source did not
          answer, or was stopped.
        """
        now = (world.drains, world.members, world.drained)
        if all(one is other for one, other in zip(now, self._seen, strict=False)) and self._seen:
            return
        self._seen = now
        requested: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
        for uuid, migration in world.drained.items():
            if not _was_tried(world, uuid):
                self._not_tried.add(uuid)
            requested[migration.drain or '', migration.instance_uuid].append(uuid)
            if migration.status in (MigrationStatus.COMPLETED, MigrationStatus.CONFIRMED):
                # The guest has left with it, and with those before it.
                self._earlier[migration.drain or '', migration.instance_uuid].update(
                    requested[migration.drain or '', migration.instance_uuid]
                )
        moving = {
            member.mark: (drain, member.instance_uuid)
            for drain, members in world.members.items()
            for member in members
            if member.status == MemberStatus.MOVING
        }
        for drain_uuid, members in world.members.items():
            drain = world.drains.get(drain_uuid)
            if drain is None:  # migrator-manage has purged it, whose writes are seen with the next ones of a service
                continue
            for member in members:
                key = (drain_uuid, member.instance_uuid)
                yield from self._note_mark(key, member.mark)
                status, had_ended = self._before.get(key, (member.status, drain.ended))
                came_back = status == MemberStatus.GONE and member.status != MemberStatus.GONE
                # A restore begins when the drain, or the restore before it, has ended.
                if came_back or (had_ended and not drain.ended):
                    self._earlier[key].update(requested[key])
                self._before[key] = member.status, drain.ended
                count = len(set(requested[key]) - self._earlier[key] - self._not_tried)
                if count > drain.max_attempts:
                    yield f'drain {drain_uuid} has requested {count} migrations of {member.instance_uuid}'
        for key, uuids in requested.items():
            for uuid in uuids:
                if world.drained[uuid].in_progress and moving.get(uuid) != key:
                    yield f'migration {uuid} of drain {key[0]} is in progress, but no member moves with it'
                if self._marks.get(uuid) != key:
                    yield f'migration {uuid} of drain {key[0]} was requested without a mark of its member {key[1]}'

    def _note_mark(self, key: tuple[str, str], mark: str | None) -> Iterator[str]:
        if mark is not None and self._marks.setdefault(mark, key) != key:
            yield f'the mark {mark} of member {key[1]} of drain {key[0]} is one of another member'


def _was_tried(world: World, uuid: str) -> bool:
    """Return whether the source of a migration has answered, and was not stopped."""
    unanswered = any(record.facts.unanswered for record in world.step_log.get(uuid, ()))
    return not unanswered and world.drained[uuid].abort_cause != AbortCause.HOST_STOP
