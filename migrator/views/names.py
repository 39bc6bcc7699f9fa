# SPDX-License-Identifier: Apache-2.0

"""What a user means who names a drain, a migration or a guest by other words than its whole uuid.

Tried in this order: the whole uuid, the id, the name, and a beginning of the uuid of at least four characters. The name
of a drain is its host, and that of a migration its guest, of which the one in progress counts, or else the newest. If
two fit, none is taken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TypeVar

from migrator import exception
from migrator.db.api import Database
from migrator.objects import Instance, Migration
from migrator.objects.drain import Drain

T = TypeVar('T')

#: The largest id that the column holds. For a larger one each database has its own error.
_LARGEST_ID = 2**31 - 1


class AmbiguousError(exception.Invalid):
    """A name fits several things, so that nothing is done.

    :param what: what they are, such as ``drains``.
    :param found: each in words.
    """

    def __init__(self, text: str, what: str, found: Sequence[str]) -> None:
        super().__init__(f'{text!r} fits several {what}: {"; ".join(found)}. Give the whole uuid.')


def drain(database: Database, text: str, whole: bool = False) -> Drain:
    """Return a drain by its uuid, its host, or the beginning of its uuid.

    :param whole: only by its whole uuid.
    :raises migrator.exception.DrainNotFound: nothing fits.
    :raises AmbiguousError: two fit.
    """
    try:
        return database.drains.get(text)
    except exception.DrainNotFound:
        found = []
        if not whole:
            found = database.drains.list(text, in_progress=True, limit=1) or database.drains.list(text, limit=1)
            found = found or [database.drains.get(uuid) for uuid in database.beginnings('drains', text)]
        if not found:
            raise
    return _only(found, text, 'drains', [f'{one.uuid} of {one.host} ({one.shown_status})' for one in found])


def migration(database: Database, text: str, whole: bool = False) -> Migration:
    """Return a migration by its uuid, its id, its guest, or the beginning of its uuid.

    :param whole: only by its whole uuid or its id.
    :raises migrator.exception.MigrationNotFound: nothing fits.
    :raises AmbiguousError: two fit.
    """
    with contextlib.suppress(exception.MigrationNotFound):
        if not (text.isdecimal() and text.isascii()):
            return database.migrations.get(text)
        # Python converts no text of thousands of digits.
        if len(text) <= 10 and int(text) <= _LARGEST_ID:
            return database.migrations.get_by_id(int(text))
    found = _of_guests(database, text)
    if whole:
        what = f': it is a guest, whose migration is {found[0].uuid}' if found else ''
        raise exception.MigrationNotFound(f'Migration {text} could not be found{what}.')
    found = found or [database.migrations.get(uuid) for uuid in database.beginnings('migrations', text)]
    if not found:
        raise exception.MigrationNotFound(migration_id=text)
    return _only(
        found, text, 'migrations', [f'{one.uuid} of guest {one.instance_uuid} ({one.status})' for one in found]
    )


def _of_guests(database: Database, text: str) -> list[Migration]:
    """Return the migration in progress, or else the newest, of each guest with this uuid or name."""
    guests = {text, *(one.uuid for one in database.instances.list({'name': text}))}
    found = []
    for guest in sorted(guests):
        mine = {'instance_uuid': guest}
        found += database.migrations.list(mine, in_progress=True, limit=1) or database.migrations.list(mine, limit=1)
    return found


def guest(database: Database, text: str) -> Instance:
    """Return an instance by its uuid, its name, or the beginning of its uuid.

    :raises migrator.exception.InstanceNotFound: nothing fits.
    :raises AmbiguousError: two fit.
    """
    try:
        return database.instances.get(text)
    except exception.InstanceNotFound:
        found = database.instances.list({'name': text})
        found = found or [database.instances.get(uuid) for uuid in database.beginnings('instances', text)]
        if not found:
            raise
    return _only(found, text, 'guests', [f'{one.uuid} ({one.name}) on {one.host}' for one in found])


def _only(found: Sequence[T], text: str, what: str, shown: Sequence[str]) -> T:
    if len(found) > 1:
        raise AmbiguousError(text, what, shown)
    return found[0]
