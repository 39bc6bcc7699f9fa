# SPDX-License-Identifier: Apache-2.0

"""The flavors to resize guests to, and the two flavors of a resize."""

import sqlalchemy as sa
from alembic import op

from migrator.db import models

revision = '0016'
down_revision = '0015'
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a table and two columns. The release before reads and writes as it did."""
    op.create_table(
        'flavors',
        sa.Column('name', models.Text(255), nullable=False),
        sa.Column('flavor', models.Json(), nullable=False),
        sa.PrimaryKeyConstraint('name'),
    )
    op.add_column('migrations', sa.Column('old_flavor', models.Json()))
    op.add_column('migrations', sa.Column('new_flavor', models.Json()))
