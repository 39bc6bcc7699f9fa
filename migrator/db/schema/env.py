# SPDX-License-Identifier: Apache-2.0

"""What alembic runs for each command; it is given an open connection."""

from alembic import context

from migrator.db import models

context.configure(
    connection=context.config.attributes['connection'],
    target_metadata=models.Base.metadata,
)
with context.begin_transaction():
    context.run_migrations()
