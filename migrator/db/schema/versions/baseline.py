# SPDX-License-Identifier: Apache-2.0

"""The one revision until the first release: all tables, as the models have them."""

import sqlalchemy as sa
from alembic import op

from migrator.db import models
from migrator.db.schema import fingerprint

revision = fingerprint.of_the_models()
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables, and the row that all who take slots lock."""
    models.Base.metadata.create_all(op.get_bind())
    op.get_bind().execute(sa.insert(models.SlotLock).values(id=1, taken=0))
