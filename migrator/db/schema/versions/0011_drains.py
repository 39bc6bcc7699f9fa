# SPDX-License-Identifier: Apache-2.0

"""Drains, their members and their logs, and the drain of a migration."""

import sqlalchemy as sa
from alembic import op

from migrator.db import models

revision = '0011'
down_revision = '0010'
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add three tables and a column. The release before reads and writes as it did."""
    text, whole, moment = models.Text, models.Whole, models.UTCDateTime
    op.create_table(
        'drains',
        sa.Column('id', sa.Integer(), primary_key=True, autoincrement=True),
        sa.Column('uuid', text(36), nullable=False, unique=True),
        sa.Column('host', text(255), nullable=False),
        sa.Column('in_progress_host', text(255), unique=True),
        sa.Column('reason', text(255)),
        sa.Column('order', text(32), nullable=False),
        sa.Column('priority', whole(), nullable=False),
        sa.Column('parallel', whole()),
        sa.Column('max_attempts', whole(), nullable=False),
        sa.Column('destinations', models.Json()),
        sa.Column('deadline', moment()),
        sa.Column('requested_by', text(255)),
        sa.Column('project_id', text(255)),
        sa.Column('request_id', text(64)),
        sa.Column('status', text(32), nullable=False),
        sa.Column('direction', text(8), nullable=False),
        sa.Column('paused', sa.Boolean(), nullable=False),
        sa.Column('has_disabled_host', sa.Boolean(), nullable=False),
        sa.Column('cancel_requested_at', moment()),
        sa.Column('cancel_running', sa.Boolean(), nullable=False),
        sa.Column('owner', text(36)),
        sa.Column('epoch', sa.Integer(), nullable=False),
        sa.Column('log_seq', sa.Integer(), nullable=False),
        sa.Column('checks', models.Json(), nullable=False),
        sa.Column('waits_for', text()),
        sa.Column('message', text()),
        sa.Column('began_at', moment()),
        sa.Column('emptied_at', moment()),
        sa.Column('ended_at', moment()),
        sa.Column('created_at', moment(), nullable=False),
        sa.Column('updated_at', moment()),
    )
    op.create_index('ix_drains_newest', 'drains', ['created_at', 'id'])
    op.create_index('ix_drains_host', 'drains', ['host'])
    op.create_table(
        'drain_members',
        sa.Column('drain', text(36), primary_key=True),
        sa.Column('instance_uuid', text(36), primary_key=True),
        sa.Column('name', text(255), nullable=False),
        sa.Column('position', sa.Integer(), nullable=False),
        sa.Column('size_mb', whole(64), nullable=False),
        sa.Column('status', text(16), nullable=False),
        sa.Column('attempts', whole(), nullable=False),
        sa.Column('mark', text(64)),
        sa.Column('tried', models.Json(), nullable=False),
        sa.Column('source', text(255), nullable=False),
        sa.Column('destination', text(255)),
        sa.Column('not_before', moment()),
        sa.Column('began_at', moment()),
        sa.Column('ended_at', moment()),
        sa.Column('reason', text()),
    )
    op.create_table(
        'drain_log',
        sa.Column('drain', text(36), primary_key=True),
        sa.Column('seq', sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column('at', moment(), nullable=False),
        sa.Column('conductor', text(36)),
        sa.Column('kind', text(16), nullable=False),
        sa.Column('payload', models.Json(), nullable=False),
    )
    op.add_column('migrations', sa.Column('drain', text(36)))
    op.add_column('migrations', sa.Column('priority', whole(), nullable=False, server_default='0'))
