# SPDX-License-Identifier: Apache-2.0

"""The guests that are not where the database has them."""

import sqlalchemy as sa
from alembic import op

from migrator.db import models

revision = '0012'
down_revision = '0011'
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a table. The release before reads and writes as it did."""
    op.create_table(
        'guest_differences',
        sa.Column('instance_uuid', models.Text(36), primary_key=True),
        sa.Column('name', models.Text(255), nullable=False),
        sa.Column('host', models.Text(255)),
        sa.Column('kind', models.Text(16), nullable=False),
        sa.Column('seen', models.Json(), nullable=False),
        sa.Column('since', models.UTCDateTime(), nullable=False),
    )
