# SPDX-License-Identifier: Apache-2.0

"""The row that is locked while slots are taken, and how many live migrations may leave a host at once."""

import sqlalchemy as sa
from alembic import op

from migrator.db import models

revision = '0009'
down_revision = '0008'
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column and a table, which the release before does not use."""
    op.add_column('services', sa.Column('slots', models.Whole(), nullable=True))
    lock = op.create_table(
        'slot_lock',
        sa.Column('id', sa.Integer(), autoincrement=False, nullable=False),
        sa.Column('taken', models.Whole(64), server_default='0', nullable=False),
        sa.PrimaryKeyConstraint('id'),
    )
    op.bulk_insert(lock, [{'id': 1, 'taken': 0}])
