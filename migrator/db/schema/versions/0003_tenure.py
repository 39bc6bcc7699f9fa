# SPDX-License-Identifier: Apache-2.0

"""The tenure: which migration of an instance a host may act for."""

import sqlalchemy as sa
from alembic import op

revision = '0003'
down_revision = '0002'
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns with a default of 0, so that the release before still runs on the schema."""
    for table in ('instances', 'migrations', 'host_debts'):
        op.add_column(table, sa.Column('tenure', sa.Integer(), nullable=False, server_default='0'))
