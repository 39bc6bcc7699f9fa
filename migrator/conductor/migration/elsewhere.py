# SPDX-License-Identifier: Apache-2.0

"""Finding out whether another host has a guest, before it is started or powered off.

The database may be wrong about where a guest is, after an operator has moved it by hand. A host that reports the guest
refutes the start. A host that does not answer refutes nothing, unless the guest was last known to be there: then the
migration waits for it.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping

from migrator.conductor.guests import lists
from migrator.conductor.migration import hosts, waiting
from migrator.conductor.migration.context import MigrationContext
from migrator.objects.reasons import Reason, WaitKind
from migrator.saga.saga import Failed, Parked


def refuse_a_second_copy(
    m: MigrationContext, but: Collection[str | None], whole: bool, after: datetime.datetime | None = None
) -> Failed | Parked | lists.Copies:
    """Ask the hosts that may have the guest of a migration, and return which were asked in vain.

    :param but: the hosts whose copies do not count.
    :param whole: whether to ask all hosts, and not only those that were last known to have the guest.
    :param after: all hosts are asked after this time of the database; None: at any time.
    :returns: Failed if a host has the guest; Parked if the guest may be at a host that does not answer.
    """
    uuid, ours = m.row.instance_uuid, {host for host in but if host is not None}
    known = m.tools.database.differences.known(uuid)
    named = known.may_run.keys() - ours
    found = lists.copies(m.tools.lists.of(named), known, uuid, ours) if named else lists.NONE
    if whole and not found.has and not found.awaited:
        found = lists.copies(m.tools.lists.of_all(after), known, uuid, ours)
    if found.has:
        return Failed(f'{_shown(found.has)}, although the database has it on {m.guest.host}. {_REMEDY}')
    if found.awaited:
        awaited = sorted(found.awaited)
        why = ', and '.join(dict.fromkeys(found.awaited.values()))
        pause = Reason.of(WaitKind.ELSEWHERE, *awaited, why=why)
        waiting.note_waiting(m, pause)
        m.ledger.wake_by(m.tools.threads.clock.monotonic() + hosts.POLL_AGAIN)
        return Parked(pause, hosts=tuple(awaited))
    return found


#: What an operator can do about a guest that another host has.
_REMEDY = (
    'Nothing was started. "migrator-manage instance reconcile" lets the database and Placement follow a guest that '
    'runs there; a copy that is left over has to be removed there.'
)


def _shown(has: Mapping[str, str]) -> str:
    return ' and '.join(f'{host} has the guest ({state})' for host, state in has.items())
