# SPDX-License-Identifier: Apache-2.0

"""Finding out whether another host has a guest, before it is started or powered off.

The database may be wrong about where a guest is, after an operator has moved it by hand. A host that reports the guest
refutes the start. A host that does not answer refutes nothing, unless the guest was last known to be there: then the
migration waits for it.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Collection

from migrator.conductor.guests import differences, lists
from migrator.conductor.migration import hosts, waiting
from migrator.conductor.migration.context import MigrationContext
from migrator.objects import COMPUTE_BINARY, remedies
from migrator.objects.reasons import Reason, StuckKind, WaitKind
from migrator.saga.saga import Failed, Parked, Stuck


def copies(
    m: MigrationContext,
    but: Collection[str | None],
    whole: bool,
    after: datetime.datetime | None = None,
    has_left: bool = False,
) -> Parked | lists.Copies:
    """Ask the hosts that may have the guest of a migration, and return which have it.

    :param but: the hosts whose copies do not count.
    :param whole: whether to ask all hosts, and not only those that were last known to have the guest.
    :param after: all hosts are asked after this time of the database; None: after now.
    :param has_left: whether the host that ran the guest has answered without it, so that it is at another one.
    :returns: Parked if no host has the guest, and it may be at one that does not answer.
    """
    uuid, ours = m.row.instance_uuid, {host for host in but if host is not None}
    if (waits := _still_waits(m)) is not None:
        return waits
    known = m.tools.database.differences.known(uuid)
    known = dataclasses.replace(known, is_missing=known.is_missing or has_left)
    named = known.may_run.keys() - ours
    found = lists.copies(m.tools.lists.of(named), known, uuid, ours) if named else lists.NONE
    if (whole or known.is_missing or known.seen.keys() - ours) and not found.has and not found.awaited:
        # An older round could have missed a guest that has moved since it was found absent.
        after = after or m.tools.database.services.now()
        everyone = m.tools.lists.of_all(after)
        found = lists.copies(everyone, known, uuid, ours)
        if found.has:
            differences.note(m.tools.database, everyone, uuid)
    if found.awaited and not found.has:
        awaited = sorted(found.awaited)
        why = ', and '.join(dict.fromkeys(found.awaited.values()))
        return _park(m, Reason.of(WaitKind.ELSEWHERE, *awaited, why=why))
    return found


def _still_waits(m: MigrationContext) -> Parked | None:
    """Return Parked while a host that is awaited does not report: no host is asked again before."""
    if m.row.wait_kind != WaitKind.ELSEWHERE or not m.row.wait_hosts:
        return None
    services = m.tools.database.services.list(COMPUTE_BINARY, [*m.row.wait_hosts])
    reason = m.row.wait
    return _park(m, reason) if reason is not None and any(one.may_run_unlisted for one in services) else None


def _park(m: MigrationContext, reason: Reason) -> Parked:
    waiting.note_waiting(m, reason)
    m.ledger.wake_by(m.tools.threads.clock.monotonic() + hosts.POLL_AGAIN)
    return Parked(reason, hosts=reason.hosts)


#: What an operator can do about a guest that another host has.
_REMEDY = (
    f'Nothing was started. If that is the right copy, {remedies.offer(remedies.Kind.RECONCILE_IF_RIGHT)}: the database '
    'and Placement follow it. If not, shut it off and undefine it there, and keep its disks if they are shared.'
)


def refuse(
    m: MigrationContext, but: Collection[str | None], whole: bool, after: datetime.datetime | None = None
) -> Failed | Parked | lists.Copies:
    """Return as :func:`copies`; but Failed if a host has the guest."""
    found = copies(m, but, whole, after)
    if isinstance(found, lists.Copies) and found.has:
        return Failed(f'{shown(found)}, although the database has it on {m.guest.host}. {_REMEDY}')
    return found


def refuse_start(
    m: MigrationContext, host: str | None, whole: bool = True, has_left: bool = False
) -> Stuck | Parked | lists.Copies:
    """Return as :func:`copies`, without the hosts of the migration; but Stuck if a host has the guest.

    :param host: where the guest would be started.
    """
    found = copies(m, m.row.hosts, whole, has_left=has_left)
    if isinstance(found, lists.Copies) and found.has:
        return Stuck(Reason.of(StuckKind.OTHER_COPY, host, there=shown(found), destination=m.destination))
    return found


def shown(found: lists.Copies) -> str:
    """Return which hosts have the guest, as a part of a sentence."""
    return ' and '.join(f'{host} has the guest ({state})' for host, state in found.has.items())
