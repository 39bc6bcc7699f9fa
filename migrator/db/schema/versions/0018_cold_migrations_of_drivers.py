# SPDX-License-Identifier: Apache-2.0

"""The types of cold migrations that the driver of each host supports."""

import sqlalchemy as sa
from alembic import op

from migrator.db import models

revision = '0018'
down_revision = '0017'
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column. The release before leaves it null: it is not known what the drivers support."""
    op.add_column('compute_nodes', sa.Column('cold_migrations', models.Json()))
