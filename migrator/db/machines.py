# SPDX-License-Identifier: Apache-2.0

"""The machines of compute hosts: which one has a name, which was refused, and which was replaced.

A host is known by its name. Its machine may report an identity, which is stored with its service. The first one that is
reported counts. A machine without an identity is not compared.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from oslo_db.exception import DBDuplicateEntry
from sqlalchemy import orm

from migrator import exception
from migrator.db import models
from migrator.db.sql import columns
from migrator.db.sql.engine import Engine, retried
from migrator.db.sql.statements import Prepared
from migrator.objects import COMPUTE_BINARY, Service, base, protocol
from migrator.objects.times import moment


class ReplacedMachine(models.Base):
    """A machine of a compute host that an operator has declared off, because another one takes its place."""

    __tablename__ = 'replaced_machines'

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=True)
    host: orm.Mapped[str] = orm.mapped_column(columns.Text(255), index=True)
    #: None: it has reported none.
    identity: orm.Mapped[str | None] = orm.mapped_column(columns.Text(255))
    declared_off_at: orm.Mapped[datetime.datetime] = orm.mapped_column(default=columns.now())
    declared_off_by: orm.Mapped[str] = orm.mapped_column(columns.Text(255))
    #: The uuids of the guests that the host had then.
    guests: orm.Mapped[list[Any]] = orm.mapped_column()


_R: Any = ReplacedMachine.__table__
_T, _M, _I = models.SERVICES, models.MIGRATIONS, models.INSTANCES
#: Seconds within which a refused machine has asked again, with a margin.
_ASKS_AGAIN = 20.0
#: The greatest length of an identity.
_LONGEST = 255
_ITS_SERVICE = (_T.c.host == sa.bindparam('of'), _T.c.binary == COMPUTE_BINARY)
_KNOWN = Prepared(
    sa.select(_T.c.host, _T.c.identity, _T.c.refused_at).where(
        _T.c.binary == COMPUTE_BINARY,
        sa.or_(_T.c.host == sa.bindparam('of'), _T.c.identity == sa.bindparam('identity')),
    )
)
#: The machine with an identity, if it was replaced and the service of its host was not deleted since.
_WAS_REPLACED = Prepared(
    sa.select(_R.c.host, _R.c.declared_off_at, _R.c.declared_off_by)
    .join(_T, sa.and_(_T.c.host == _R.c.host, _T.c.binary == COMPUTE_BINARY))
    .where(_R.c.identity == sa.bindparam('identity'))
    .limit(1)
)
_LOCK = sa.select(_T).where(*_ITS_SERVICE).with_for_update()
_AT_HOST = sa.or_(_M.c.source_compute == sa.bindparam('of'), _M.c.dest_compute == sa.bindparam('of'))
_NOT_REFUSED: dict[str, Any] = {'refused_at': None, 'refused_host': None, 'refused_identity': None}
_CLAIM = Prepared(sa.update(_T).where(*_ITS_SERVICE).values(identity=sa.bindparam('its_identity'), **_NOT_REFUSED))
_HAS_ANOTHER_NAME = (
    'this machine (identity {identity}) is registered as {other}. If it was renamed, give it that name again '
    '([DEFAULT] host). Do not evacuate its guests: they run. If these are two machines with one identity, such as a '
    'clone, give one of them its own (with libvirt: host_uuid in libvirtd.conf or virtqemud.conf)'
)
_HAS_ANOTHER_MACHINE = (
    'that is the name of another machine (identity {known}; this one has {identity}). Give this machine a name of its '
    'own ([DEFAULT] host). If it has replaced the other one, see "The machine was replaced" in the documentation'
)
_WAS_DECLARED_OFF = (
    'this machine (identity {identity}) was replaced as {old}, and {by} declared at {since} that it is off. Look which '
    'of its guests another host runs, and stop those here at once. Keep the others. If the replacement was a mistake, '
    'give the machine a new identity (with libvirt: host_uuid in libvirtd.conf or virtqemud.conf)'
)


def compare(session: Any, report: protocol.HostReport) -> bool:
    """Compare the machine of a report with what is known, within the transaction that registers the host.

    :returns: whether :func:`claim` has something to write.
    :raises migrator.exception.MachineRefused: another machine has the name, or this machine has another one.
    """
    if report.identity is None:
        return False
    identity = base.text(report.identity, _LONGEST)
    rows = {row.host: row for row in session.execute(_KNOWN, {'of': report.host, 'identity': identity})}
    own = rows.pop(report.host, None)
    facts: dict[str, Any] = {'host': report.host, 'identity': identity}
    for off in session.execute(_WAS_REPLACED, {'identity': identity}):
        facts['shown_at'] = report.host if own is not None else off.host
        since = f'{moment(off.declared_off_at)} UTC'
        raise exception.MachineRefused(
            reason=_WAS_DECLARED_OFF.format(old=off.host, by=off.declared_off_by, since=since, **facts), **facts
        )
    for other in rows:
        # It is shown where an operator looks for that name, if it is known.
        facts['shown_at'] = report.host if own is not None else other
        raise exception.MachineRefused(reason=_HAS_ANOTHER_NAME.format(other=other, **facts), **facts)
    if own is None:
        return True
    if own.identity not in (None, identity):
        facts['shown_at'] = report.host
        raise exception.MachineRefused(reason=_HAS_ANOTHER_MACHINE.format(known=own.identity, **facts), **facts)
    return own.identity is None or own.refused_at is not None


def claim(session: Any, report: protocol.HostReport) -> None:
    """Write the identity of a host's machine, and forget what was refused because of it.

    :raises migrator.exception.MachineRefused: another host registers with the same identity at this moment.
    """
    try:
        session.execute(_CLAIM, {'of': report.host, 'its_identity': report.identity})
    except DBDuplicateEntry:
        reason = f'another host registers with its identity {report.identity} at this moment'
        raise exception.MachineRefused(
            host=report.host, identity=report.identity, reason=reason, shown_at=None
        ) from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replacement:
    """The record of a machine that was replaced.

    :ivar identity: its identity; None: it has reported none.
    :ivar declared_off_by: the operator who has declared that it is off.
    :ivar guests: the uuids of the guests that the host had then.
    """

    host: str
    identity: str | None
    declared_off_at: datetime.datetime
    declared_off_by: str
    guests: Sequence[str]


class Machines:
    """What is stored of the machines of compute hosts."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @retried
    def record_refusal(self, refused: exception.MachineRefused) -> bool:
        """Record that a machine was refused, with the service that it was compared with.

        :returns: whether another machine, or none, was recorded there before.
        """
        facts = refused.kwargs
        its_service = (_T.c.host == facts['shown_at'], _T.c.binary == COMPUTE_BINARY)
        values = {'refused_host': facts['host'], 'refused_identity': facts['identity']}
        with self._engine.writer() as session:
            before = session.execute(sa.select(_T.c.refused_host, _T.c.refused_identity).where(*its_service)).first()
            # The service itself has reported nothing.
            kept = {'updated_at': _T.c.updated_at}
            session.execute(sa.update(_T).where(*its_service).values(refused_at=columns.now(), **values, **kept))
        return before is not None and tuple(before) != (facts['host'], facts['identity'])

    @retried
    def replace(self, host: str, declared_off_by: str, down_time: float) -> Replacement:
        """Record that the machine of a host is off, and that the next one that registers takes its place.

        No guest, no allocation and no row of another table is changed. The old machine is refused if it returns.

        :param declared_off_by: the operator who declares it.
        :param down_time: seconds without a report after which a service counts as down.
        :raises migrator.exception.ComputeHostNotFound: the host has no compute service.
        :raises migrator.exception.MachineNotReplaced: the service reports, a migration of the host is in progress, or
            the machine was replaced already. Nothing was changed.
        """
        with self._engine.writer() as session:
            row = session.execute(_LOCK, {'of': host}).one_or_none()
            if row is None:
                raise exception.ComputeHostNotFound(host=host)
            now = columns.aware(session.execute(sa.select(columns.now())).scalar_one())
            why = _why_not(session, models.of_row(Service, row), now, down_time)
            if why is not None:
                raise exception.MachineNotReplaced(host=host, reason=why)
            guests = session.execute(sa.select(_I.c.uuid).where(_I.c.host == host).order_by(_I.c.id)).scalars()
            off = Replacement(
                host=host, identity=row.identity, declared_off_at=now, declared_off_by=declared_off_by,
                guests=[*guests],
            )  # fmt: skip
            session.execute(sa.insert(_R).values(dataclasses.asdict(off)))
            # Without a boot_id no late heartbeat of the old machine counts.
            cleared = {'identity': None, 'boot_id': None, 'last_seen_up': None, **_NOT_REFUSED}
            session.execute(sa.update(_T).where(_T.c.id == row.id).values(**cleared))
            return off

    def replacements(self, host: str | None = None) -> dict[str, list[Replacement]]:
        """Return host -> its machines that were replaced, the newest first.

        :param host: only those of this host.
        """
        query = sa.select(_R).order_by(_R.c.id.desc())
        found: dict[str, list[Replacement]] = collections.defaultdict(list)
        with self._engine.reader() as session:
            for row in session.execute(query if host is None else query.where(_R.c.host == host)):
                found[row.host].append(models.of_row(Replacement, row))
        return dict(found)

    def is_on(self, service: Service, instance_uuid: str) -> bool:
        """Return whether the machine that has a guest is on, although its host is down.

        It runs under another name, or was replaced and is on again. It was refused since an operator or a conductor
        declared the host down, or in the seconds before.
        """
        if service.refused_at is None:
            return False
        if service.down_since is not None and (service.down_since - service.refused_at).total_seconds() > _ASKS_AGAIN:
            return False
        return service.refused_identity == service.identity or any(
            one.identity == service.refused_identity and instance_uuid in one.guests
            for one in self.replacements(service.host).get(service.host, ())
        )

    def had_guest(self, host: str, instance_uuid: str) -> bool:
        """Return whether a machine of a host that was replaced had a guest."""
        return any(instance_uuid in one.guests for one in self.replacements(host).get(host, ()))

    @retried
    def forget(self, host: str) -> None:
        """Forget the machines of a host whose service was deleted."""
        with self._engine.writer() as session:
            session.execute(sa.delete(_R).where(_R.c.host == host))


def _why_not(session: Any, service: Service, now: datetime.datetime, down_time: float) -> str | None:
    """Return why the machine of a service cannot be replaced now, or None if it can."""
    # A service that is forced down may still report. One that is up may be unable to, while no conductor listens.
    if service.is_up(now, 0) or (service.last_seen_up is not None and not service.is_unreachable(now, down_time)):
        return (
            'its compute service has reported lately, or no conductor has noticed yet that it is down: see service list'
        )
    is_fresh = service.refused_at is not None and (now - service.refused_at).total_seconds() <= _ASKS_AGAIN
    if service.refused_at is not None and is_fresh and service.refused_identity == service.identity:
        since = f'{moment(service.refused_at)} UTC'
        return f'it is on, and was refused as {service.refused_host} at {since}: switch it off first'
    if service.boot_id is None and session.execute(sa.select(_R.c.id).where(_R.c.host == service.host)).first():
        return 'it was replaced already, and no machine has registered since: start the compute service of the new one'
    moving = sa.select(_M.c.uuid).where(models.IN_PROGRESS, _AT_HOST).order_by(_M.c.id)
    uuids = session.execute(moving, {'of': service.host}).scalars().all()
    if uuids:
        return f'migration {uuids[0]} is in progress there, {len(uuids)} in all: let it end, or abort it'
    return None
