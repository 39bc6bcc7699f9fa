# SPDX-License-Identifier: Apache-2.0

"""Columns for the times since when a conductor lost the broker and a compute service is down."""

import sqlalchemy as sa
from alembic import op

from migrator.db import models

revision = '0004'
down_revision = '0003'
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns that may be null, so that the release before still runs on the schema."""
    op.add_column('conductors', sa.Column('broker_away_since', models.UTCDateTime(), nullable=True))
    op.add_column('services', sa.Column('down_since', models.UTCDateTime(), nullable=True))
