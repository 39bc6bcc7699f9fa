# SPDX-License-Identifier: Apache-2.0

"""The machines of compute hosts: which one has a name, and which was refused.

A host is known by its name. Its machine may report an identity, which is stored with its service. The first one that is
reported counts. A machine without an identity is not compared.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from oslo_db.exception import DBDuplicateEntry

from migrator import exception
from migrator.db import models
from migrator.db.sql import columns
from migrator.db.sql.engine import Engine, retried
from migrator.db.sql.statements import Prepared
from migrator.objects import COMPUTE_BINARY, base, protocol

_T = models.SERVICES
#: The greatest length of an identity.
_LONGEST = 255
_ITS_SERVICE = (_T.c.host == sa.bindparam('of'), _T.c.binary == COMPUTE_BINARY)
_KNOWN = Prepared(
    sa.select(_T.c.host, _T.c.identity, _T.c.refused_at).where(
        _T.c.binary == COMPUTE_BINARY,
        sa.or_(_T.c.host == sa.bindparam('of'), _T.c.identity == sa.bindparam('identity')),
    )
)
_NOT_REFUSED: dict[str, Any] = {'refused_at': None, 'refused_host': None, 'refused_identity': None}
_CLAIM = Prepared(sa.update(_T).where(*_ITS_SERVICE).values(identity=sa.bindparam('its_identity'), **_NOT_REFUSED))


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
    facts = {'host': report.host, 'identity': identity}
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


_HAS_ANOTHER_NAME = (
    'this machine (identity {identity}) is registered as {other}. If it was renamed, give it that name again '
    '([DEFAULT] host), or delete the service of {other}. If these are two machines with one identity, such as a clone, '
    'give one of them its own (with libvirt: host_uuid in libvirtd.conf)'
)
_HAS_ANOTHER_MACHINE = (
    'that is the name of another machine (identity {known}; this one has {identity}). Give this machine a name of its '
    'own ([DEFAULT] host)'
)


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
