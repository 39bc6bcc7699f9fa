# SPDX-License-Identifier: Apache-2.0

"""The table of deferred cleanups under the name that everything else has for them."""

from alembic import op

revision = '0006'
down_revision = '0005'
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Rename the table, its indexes and its constraint. Conductors are stopped meanwhile."""
    op.rename_table('host_debts', 'cleanups')
    for column in ('host', 'instance_uuid'):
        op.drop_index(f'ix_host_debts_{column}', table_name='cleanups')
        op.create_index(f'ix_cleanups_{column}', 'cleanups', [column], unique=False)
    with op.batch_alter_table('cleanups') as table:
        table.drop_constraint('uniq_host_debts', type_='unique')
        table.create_unique_constraint('uniq_cleanups', ['host', 'migration_uuid', 'step'])
    if op.get_context().dialect.name == 'postgresql':
        # The other databases have no names for these.
        op.execute('ALTER INDEX host_debts_pkey RENAME TO cleanups_pkey')
        op.execute('ALTER SEQUENCE host_debts_id_seq RENAME TO cleanups_id_seq')
