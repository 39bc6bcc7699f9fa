# SPDX-License-Identifier: Apache-2.0

"""What a user means who names a drain, a migration or a guest by other words than its whole uuid.

It is the whole uuid, or the id; or else the name, or a beginning of the uuid of at least four characters. The name of a
drain is its host, and that of a migration its guest, of which the one in progress counts, or else the newest. If two
fit, none is taken: users choose the names of their guests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TypeVar
from uuid import UUID

from oslo_utils import uuidutils

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
    text = _usual(text)
    try:
        return database.drains.get(text)
    except exception.DrainNotFound:
        found = {}
        if not whole:
            of_host = database.drains.list(text, in_progress=True, limit=1) or database.drains.list(text, limit=1)
            begun = [database.drains.get(uuid) for uuid in database.beginnings('drains', text)]
            found = {one.uuid: one for one in [*of_host, *begun]}
        if not found:
            raise
    shown = [f'{one.uuid} of {one.host} ({one.shown_status})' for one in found.values()]
    return _only([*found.values()], text, 'drains', shown)


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
    found = {}
    if not whole or hint:
        begun = [] if whole else [database.migrations.get(uuid) for uuid in database.beginnings('migrations', text)]
        found = {one.uuid: one for one in [*_of_guests(database, text), *begun]}
    if whole and found:
        named = ' and '.join(found)
        raise exception.MigrationNotFound(
            f'Migration {text} could not be found: it is a guest, whose migration is {named}.'
        )
    if not found:
        raise exception.MigrationNotFound(migration_id=text)
    shown = [f'{one.uuid} of guest {one.instance_uuid} ({one.status})' for one in found.values()]
    return _only([*found.values()], text, 'migrations', shown)


def _of_guests(database: Database, text: str) -> list[Migration]:
    """Return the migration in progress, or else the newest, of each guest with this uuid or name."""
    # A user may call a guest like the uuid of another one.
    named = [] if uuidutils.is_uuid_like(text) else database.instances.list({'name': text})
    found = []
    for guest in sorted({text, *(one.uuid for one in named)}):
        mine = {'instance_uuid': guest}
        found += database.migrations.list(mine, in_progress=True, limit=1) or database.migrations.list(mine, limit=1)
    return found


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
            raise
    shown = [f'{one.uuid} ({one.name}) on {one.host}' for one in found.values()]
    return _only([*found.values()], text, 'guests', shown)


def _usual(text: str) -> str:
    """Return a uuid in its usual spelling, and any other text as it is."""
    return str(UUID(text)) if uuidutils.is_uuid_like(text) else text


def _only(found: Sequence[T], text: str, what: str, shown: Sequence[str]) -> T:
    if len(found) > 1:
        raise AmbiguousError(text, what, shown)
    return found[0]
