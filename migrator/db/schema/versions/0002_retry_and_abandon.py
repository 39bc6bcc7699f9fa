# SPDX-License-Identifier: Apache-2.0

"""Columns for the requests to retry and to abandon, and for the owner that began a step."""

import sqlalchemy as sa
from alembic import op

from migrator.db import models

revision = '0002'
down_revision = '0001'
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the schema: columns are added only, so that the release before still runs on it."""
    for name, kind in (
        ('retry_requested_at', models.UTCDateTime()),
        ('retry_requested_by', sa.String(length=255)),
        ('abandon_requested_at', models.UTCDateTime()),
        ('abandon_requested_by', sa.String(length=255)),
        ('abandon_guest_on', sa.String(length=255)),
    ):
        op.add_column('migrations', sa.Column(name, kind, nullable=True))
    op.add_column('saga_steps', sa.Column('first_owner', sa.String(length=36), nullable=True))
    op.add_column('saga_steps', sa.Column('first_epoch', sa.Integer(), nullable=True))
