# SPDX-License-Identifier: Apache-2.0

"""Rows that the tests of databases write."""

import uuid

from migrator import context
from migrator.db.migrations import Write
from migrator.objects import Flavor, Instance, Migration

CONTEXT = context.RequestContext(user_id='ada', project_id='blue', overwrite=False)


def instance(database):
    return database.instances.create(
        Instance(
            uuid=str(uuid.uuid4()), name='vm', project_id='blue', user_id='ada', host='source', node='source',
            flavor=Flavor(name='m1'),
        )
    )  # fmt: skip


def migration(guest):
    return Migration(
        uuid=str(uuid.uuid4()), instance_uuid=guest.uuid, project_id='blue', user_id='ada', source_compute='source',
        source_node='source',
    )  # fmt: skip


def accepted(database):
    one = migration(instance(database))
    database.migrations.accept(CONTEXT, one, 'live-migration')
    return database.migrations.get(one.uuid)


def owner(database, lease=60.0):
    one = str(uuid.uuid4())
    database.conductors.register(one, f'conductor-{one}', lease)
    return one


def ended(database, guest):
    """Have a guest migrated to an end."""
    one = migration(guest)
    database.migrations.accept(CONTEXT, one, 'live-migration')
    taken = database.takeovers.adopt([one.uuid], owner(database)).owned[0].migration
    database.migrations.commit(taken, Write(fields={'status': 'failed'}))
    return one.uuid
