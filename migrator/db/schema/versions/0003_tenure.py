# SPDX-License-Identifier: Apache-2.0

"""Columns for the tenure, and for whether Placement has the providers that a host reports."""

import sqlalchemy as sa
from alembic import op

revision = '0003'
down_revision = '0002'
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns with defaults, so that the release before still runs on the schema."""
    for table in ('instances', 'migrations', 'host_debts'):
        op.add_column(table, sa.Column('tenure', sa.Integer(), nullable=False, server_default='0'))
    op.add_column('compute_nodes', sa.Column('in_placement', sa.Boolean(), nullable=False, server_default=sa.true()))
