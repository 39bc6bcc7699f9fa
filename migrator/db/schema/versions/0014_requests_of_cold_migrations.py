# SPDX-License-Identifier: Apache-2.0

"""The requests to confirm and to revert a cold migration."""

import sqlalchemy as sa
from alembic import op

from migrator.db import models

revision = '0014'
down_revision = '0013'
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add two columns. The release before reads and writes as it did."""
    op.add_column('migrations', sa.Column('confirm_requested_at', models.UTCDateTime()))
    op.add_column('migrations', sa.Column('revert_requested_at', models.UTCDateTime()))
