# SPDX-License-Identifier: Apache-2.0

"""The priorities of a drain's guests, who has cancelled a drain, and what of a guest cannot be moved."""

import sqlalchemy as sa
from alembic import op

from migrator.db import models

revision = '0013'
down_revision = '0012'
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add three columns. The release before reads and writes as it did."""
    op.add_column('drains', sa.Column('priorities', models.Json()))
    op.add_column('drains', sa.Column('cancel_requested_by', models.Text(255)))
    op.add_column('guest_definitions', sa.Column('immovable', models.Text()))
