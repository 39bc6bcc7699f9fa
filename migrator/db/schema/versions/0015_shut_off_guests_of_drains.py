# SPDX-License-Identifier: Apache-2.0

"""Whether a drain also moves the guests that are shut off."""

import sqlalchemy as sa
from alembic import op

revision = '0015'
down_revision = '0014'
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column. The release before reads and writes as it did."""
    op.add_column('drains', sa.Column('include_stopped', sa.Boolean(), nullable=False, server_default=sa.false()))
