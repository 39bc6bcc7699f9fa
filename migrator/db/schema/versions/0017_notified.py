# SPDX-License-Identifier: Apache-2.0

"""How far the notifications about each migration were sent."""

import sqlalchemy as sa
from alembic import op

from migrator.db import models

revision = '0017'
down_revision = '0016'
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a table. The release before reads and writes as it did."""
    op.create_table(
        'notified',
        sa.Column('migration', models.Text(36), primary_key=True),
        sa.Column('seq', sa.Integer(), nullable=False),
        sa.Column('open', sa.Boolean(), nullable=True),
        sa.Column('at', models.UTCDateTime(), nullable=False),
    )
    op.create_index('ix_notified_open', 'notified', ['open'])
