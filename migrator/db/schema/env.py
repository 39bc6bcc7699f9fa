# SPDX-License-Identifier: Apache-2.0

"""The script that alembic runs for each command, with an open connection."""

from alembic import context

from migrator.db import models

context.configure(
    connection=context.config.attributes['connection'],
    target_metadata=models.Base.metadata,
)
with context.begin_transaction():
    context.run_migrations()
