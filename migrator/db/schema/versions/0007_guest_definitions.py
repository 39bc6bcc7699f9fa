# SPDX-License-Identifier: Apache-2.0

"""The table of what another host needs to start a guest whose host is dead."""

import sqlalchemy as sa
from alembic import op

from migrator.db import models

revision = '0007'
down_revision = '0006'
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a table, which the release before does not use."""
    op.create_table(
        'guest_definitions',
        sa.Column('instance_uuid', models.Text(36), nullable=False),
        sa.Column('host', models.Text(255), nullable=False),
        sa.Column('definition', models.Json(), nullable=False),
        sa.Column('stored_at', models.UTCDateTime(), nullable=False),
        sa.PrimaryKeyConstraint('instance_uuid'),
    )
