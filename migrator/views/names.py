# SPDX-License-Identifier: Apache-2.0

"""What a user means who names a drain, a migration or a guest by other words than its whole uuid.

It is the whole uuid, or the id; or else the name; or else a beginning of the uuid of at least four characters. The name
of a drain is its host, and that of a migration its guest, of which the one in progress counts, or else the newest.

Tenants choose the names of their guests. If a name fits one guest and a beginning another, neither is taken. Operators
choose the names of hosts, so a drain is found by its host, whatever uuids begin so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import TypeVar
from uuid import UUID

from oslo_utils import uuidutils

from migrator import exception
from migrator.db.api import Database
from migrator.db.sql import beginnings
from migrator.drain.maintenance import errors
from migrator.drain.maintenance.turns import Maintenance
from migrator.objects import COMPUTE_BINARY, Instance, Migration, base
from migrator.objects.drain import Drain

T = TypeVar('T')

#: The largest id that the column holds. For a larger one each database has its own error.
_LARGEST_ID = 2**31 - 1
#: How many drains are read for the names of their hosts.
_NEWEST = 1000


class AmbiguousError(exception.Invalid):
    """A name fits several things, so that nothing is done.

    :param what: what they are, such as ``drains``.
    :param found: each in words.
    """

    def __init__(self, text: str, what: str, found: Sequence[str]) -> None:
        super().__init__(f'{text!r} fits several {what}: {"; ".join(found)}. Give the whole uuid.')


def check_host(database: Database, host: str) -> None:
    """Raise if no row of the database names a host.

    :raises migrator.exception.ComputeHostNotFound: no service has it, and no other row.
    """
    if database.knows_host(host):
        return
    known = _hosts(database)
    if not known:  # as in migrator-drain, whose hosts are those of Nova
        raise exception.ComputeHostNotFound(f'Nothing is recorded of host {host}.')
    raise base.no_host(host, known)


def _hosts(database: Database) -> set[str]:
    return {one.host for one in database.services.list(COMPUTE_BINARY)}


def drain(database: Database, text: str, whole: bool = False) -> Drain:
    """Return a drain by its uuid, its host, or the beginning of its uuid.

    :param whole: only by its whole uuid.
    :raises migrator.exception.DrainNotFound: nothing fits.
    :raises AmbiguousError: two begin so.
    """
    text = _usual(text)
    try:
        return database.drains.get(text)
    except exception.DrainNotFound:
        if whole:
            raise
    of_host = database.drains.list(text, in_progress=True, limit=1) or database.drains.list(text, limit=1)
    found = of_host or [database.drains.get(uuid) for uuid in database.beginnings('drains', text)]
    if not found:
        raise exception.DrainNotFound(_no_drain(database, text), drain=text)
    shown = [f'{one.uuid} of {one.host} ({one.shown_status})' for one in found]
    return _only(found, text, 'drains', shown)


def maintenance(database: Database, text: str, whole: bool = False) -> Maintenance:
    """Return a maintenance by its uuid, one of its hosts, or the beginning of its uuid.

    :param whole: only by its whole uuid.
    :raises migrator.drain.maintenance.errors.MaintenanceNotFound: nothing fits.
    :raises AmbiguousError: two begin so.
    """
    text, rows = _usual(text), database.maintenances
    try:
        return rows.get(text)
    except errors.MaintenanceNotFound:
        if whole:
            raise
    of_host = rows.list(text, in_progress=True, limit=1) or rows.list(text, limit=1)
    found = of_host or [rows.get(uuid) for uuid in database.beginnings('maintenances', text)]
    if not found:
        short = f'Host {text} has no maintenance.' if text in _hosts(database) else _too_short('Maintenance', text)
        raise errors.MaintenanceNotFound(short, maintenance=text)
    return _only(found, text, 'maintenances', [f'{one.uuid} ({one.shown_status})' for one in found])


def _no_drain(database: Database, text: str) -> str | None:
    hosts = _hosts(database)
    if text in hosts:
        return f'Host {text} has no drain.'
    near = base.nearest(text, sorted(hosts | {one.host for one in database.drains.list(limit=_NEWEST)}))
    return f'Drain {text} could not be found{near}' if near else _too_short('Drain', text)


def _too_short(what: str, text: str) -> str | None:
    """Return an error about a beginning of a uuid that has too few characters, or None."""
    if beginnings.is_too_short(text):
        return f'{what} {text} could not be found: give at least {beginnings.LEAST} characters of its uuid.'
    return None


def migration(database: Database, text: str, whole: bool = False, hint: bool = False) -> Migration:
    """Return a migration by its uuid, its id, its guest, or the beginning of its uuid.

    :param whole: only by its whole uuid or its id.
    :param hint: with ``whole``, whether the error may name the migrations that fit otherwise.
    :raises migrator.exception.MigrationNotFound: nothing fits.
    :raises AmbiguousError: two fit.
    """
    text = _usual(text)
    with contextlib.suppress(exception.MigrationNotFound):
        if not (text.isdecimal() and text.isascii()):
            return database.migrations.get(text)
        # Python converts no text of thousands of digits.
        if len(text) <= 10 and int(text) <= _LARGEST_ID:
            return database.migrations.get_by_id(int(text))
    if whole and not hint:
        raise exception.MigrationNotFound(migration_id=text)
    begun = [] if whole else [database.migrations.get(uuid) for uuid in database.beginnings('migrations', text)]
    guests = _guests(database, text)
    found = {one.uuid: one for one in [*_newest_of(database, {text, *guests}), *begun]}
    if whole and found:
        named = ' and '.join(found)
        raise exception.MigrationNotFound(
            f'Migration {text} could not be found: it is a guest, whose migration is {named}.'
        )
    if not found and guests:
        shown = ' and '.join(f'{base.printable(one.name)} ({uuid})' for uuid, one in sorted(guests.items()))
        raise exception.MigrationNotFound(f'Guest {shown} has no migration.')
    if not found:
        short = None if text.isdecimal() else _too_short('Migration', text)
        raise exception.MigrationNotFound(short, migration_id=text)
    return _only([*found.values()], text, 'migrations', _shown(database, [*found.values()]))


def _guests(database: Database, text: str) -> dict[str, Instance]:
    """Return the guests with this uuid or name."""
    # A user may call a guest like the uuid of another one.
    which = {'uuid' if uuidutils.is_uuid_like(text) else 'name': text}
    return {one.uuid: one for one in database.instances.list(which)}


def _newest_of(database: Database, guests: Collection[str]) -> list[Migration]:
    """Return the migration in progress, or else the newest, of each guest."""
    found = []
    for guest in sorted(guests):
        mine = {'instance_uuid': guest}
        found += database.migrations.list(mine, in_progress=True, limit=1) or database.migrations.list(mine, limit=1)
    return found


def _shown(database: Database, found: Sequence[Migration]) -> list[str]:
    return [f'{one.uuid} of guest {named(database, one.instance_uuid)} ({one.status})' for one in found]


def named(database: Database, guest: str) -> str:
    """Return a guest in words: its name and its uuid, or the uuid alone once it is deleted."""
    instance = database.instances.find(guest)
    return guest if instance is None else f'{base.printable(instance.name)} ({guest})'


def guest(database: Database, text: str) -> Instance:
    """Return an instance by its uuid, its name, or the beginning of its uuid.

    :raises migrator.exception.InstanceNotFound: nothing fits.
    :raises AmbiguousError: two fit.
    """
    text = _usual(text)
    try:
        return database.instances.get(text)
    except exception.InstanceNotFound:
        begun = [database.instances.get(uuid) for uuid in database.beginnings('instances', text)]
        found = {one.uuid: one for one in [*database.instances.list({'name': text}), *begun]}
        if not found:
            raise exception.InstanceNotFound(_too_short('Instance', text), instance_uuid=text) from None
    shown = [f'{base.printable(one.name)} ({one.uuid}) on {one.host}' for one in found.values()]
    return _only([*found.values()], text, 'guests', shown)


def _usual(text: str) -> str:
    """Return a uuid in its usual spelling, and any other text as it is."""
    return str(UUID(text)) if uuidutils.is_uuid_like(text) else text


def _only(found: Sequence[T], text: str, what: str, shown: Sequence[str]) -> T:
    if len(found) > 1:
        raise AmbiguousError(text, what, shown)
    return found[0]
