# SPDX-License-Identifier: Apache-2.0

"""Indexes for what requests and sweeps look up among all compute hosts."""

from alembic import op

revision = '0008'
down_revision = '0007'
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add indexes. The release before works with them."""
    # The column binary comes last: nearly all services have the same one, and without statistics SQLite would take an
    # index that begins with it for a join by host.
    op.create_index('ix_services_version', 'services', ['version', 'binary'])
    op.create_index('ix_services_forced_down', 'services', ['forced_down', 'binary'])
    op.create_index('ix_compute_nodes_in_placement', 'compute_nodes', ['in_placement'])
