# SPDX-License-Identifier: Apache-2.0

"""The script that alembic runs for each command, with an open connection."""

from alembic import context

from migrator.db import models

connection = context.config.attributes['connection']
if connection.dialect.name == 'mysql':
    # Texts compare exactly, as on the other databases, whatever the default of the server is. (utf8mb4_bin would ignore
    # spaces at the end.) The tables that the revisions make have the collation of the database.
    connection.exec_driver_sql('ALTER DATABASE CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin')
context.configure(
    connection=connection,
    target_metadata=models.Base.metadata,
)
with context.begin_transaction():
    context.run_migrations()
