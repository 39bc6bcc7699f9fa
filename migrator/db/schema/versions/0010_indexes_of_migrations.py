# SPDX-License-Identifier: Apache-2.0

"""Indexes for lists and for what is in progress, so that no cost grows with the history."""

import sqlalchemy as sa
from alembic import op

from migrator.db import models

revision = '0010'
down_revision = '0009'
branch_labels = None
depends_on = None

_NEWEST = ['created_at', 'id']


def upgrade() -> None:
    """Add indexes, and a column that the database computes. The release before reads and writes as it did."""
    # SQLite can add a computed column only if it does not store it. PostgreSQL can store it only, and MariaDB's index
    # of one that is not stored is maintained later, by the purge of old rows.
    stored = None if op.get_context().dialect.name == 'sqlite' else True
    for table in ('instances', 'migrations'):
        computed = sa.Computed('coalesce(updated_at, created_at)', persisted=stored)
        op.add_column(table, sa.Column('changed_at', models.UTCDateTime(), computed, nullable=True))
        op.create_index(f'ix_{table}_changed_at', table, ['changed_at'])
        op.create_index(f'ix_{table}_newest', table, _NEWEST)
    for column, more in {
        'status': _NEWEST,
        'instance_uuid': ['tenure'],
        'owner': ['in_progress_instance_uuid'],
        'source_compute': ['in_progress_instance_uuid'],
        'dest_compute': ['in_progress_instance_uuid'],
    }.items():
        op.drop_index(f'ix_migrations_{column}', table_name='migrations')
        op.create_index(f'ix_migrations_{column}', 'migrations', [column, *more])
    op.create_index('ix_cleanups_migration_uuid', 'cleanups', ['migration_uuid'])
