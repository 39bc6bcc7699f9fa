# SPDX-License-Identifier: Apache-2.0

"""${message}"""

import sqlalchemy as sa
from alembic import op

from migrator.db import types
${imports if imports else ""}

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the schema."""
    ${upgrades if upgrades else "pass"}
