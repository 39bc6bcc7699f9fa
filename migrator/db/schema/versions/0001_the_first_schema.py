# SPDX-License-Identifier: Apache-2.0

"""The first schema."""

import sqlalchemy as sa
from alembic import op

from migrator.db import models

revision = '0001'
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the schema."""
    op.create_table(
        'compute_nodes',
        sa.Column('id', sa.Integer(), autoincrement=True, nullable=False),
        sa.Column('uuid', sa.String(length=36), nullable=False),
        sa.Column('host', sa.String(length=255), nullable=False),
        sa.Column('node', sa.String(length=255), nullable=False),
        sa.Column('hypervisor_type', sa.String(length=64), nullable=False),
        sa.Column('hypervisor_version', sa.Integer(), nullable=False),
        sa.Column('host_ip', sa.String(length=64), nullable=False),
        sa.Column('cpu_info', sa.JSON(), nullable=False),
        sa.Column('providers', sa.JSON(), nullable=False),
        sa.Column('created_at', models.UTCDateTime(), nullable=False),
        sa.Column('updated_at', models.UTCDateTime(), nullable=True),
        sa.PrimaryKeyConstraint('id'),
        sa.UniqueConstraint('host'),
        sa.UniqueConstraint('uuid'),
    )
    op.create_table(
        'conductors',
        sa.Column('id', sa.String(length=36), nullable=False),
        sa.Column('server', sa.String(length=255), nullable=False),
        sa.Column('lease_until', models.UTCDateTime(), nullable=False),
        sa.PrimaryKeyConstraint('id'),
    )
    op.create_table(
        'host_debts',
        sa.Column('id', sa.Integer(), autoincrement=True, nullable=False),
        sa.Column('host', sa.String(length=255), nullable=False),
        sa.Column('migration_uuid', sa.String(length=36), nullable=False),
        sa.Column('instance_uuid', sa.String(length=36), nullable=False),
        sa.Column('step', sa.String(length=64), nullable=False),
        sa.Column('reason', sa.Text(), nullable=False),
        sa.Column('alarm', sa.Text(), nullable=True),
        sa.Column('owner', sa.String(length=36), nullable=True),
        sa.Column('epoch', sa.Integer(), nullable=False),
        sa.Column('input', sa.JSON(), nullable=True),
        sa.Column('created_at', models.UTCDateTime(), nullable=False),
        sa.PrimaryKeyConstraint('id'),
        sa.UniqueConstraint('host', 'migration_uuid', 'step', name='uniq_host_debts'),
    )
    op.create_index(op.f('ix_host_debts_host'), 'host_debts', ['host'], unique=False)
    op.create_index(op.f('ix_host_debts_instance_uuid'), 'host_debts', ['instance_uuid'], unique=False)
    op.create_table(
        'instance_actions',
        sa.Column('id', sa.Integer(), autoincrement=True, nullable=False),
        sa.Column('action', sa.String(length=64), nullable=False),
        sa.Column('instance_uuid', sa.String(length=36), nullable=False),
        sa.Column('migration_uuid', sa.String(length=36), nullable=True),
        sa.Column('request_id', sa.String(length=64), nullable=False),
        sa.Column('user_id', sa.String(length=255), nullable=True),
        sa.Column('project_id', sa.String(length=255), nullable=True),
        sa.Column('start_time', models.UTCDateTime(), nullable=False),
        sa.Column('finish_time', models.UTCDateTime(), nullable=True),
        sa.Column('message', sa.Text(), nullable=True),
        sa.Column('result', sa.String(length=16), nullable=True),
        sa.PrimaryKeyConstraint('id'),
    )
    op.create_index(op.f('ix_instance_actions_instance_uuid'), 'instance_actions', ['instance_uuid'], unique=False)
    op.create_index(op.f('ix_instance_actions_migration_uuid'), 'instance_actions', ['migration_uuid'], unique=False)
    op.create_index(op.f('ix_instance_actions_request_id'), 'instance_actions', ['request_id'], unique=False)
    op.create_table(
        'instances',
        sa.Column('id', sa.Integer(), autoincrement=True, nullable=False),
        sa.Column('uuid', sa.String(length=36), nullable=False),
        sa.Column('name', sa.String(length=255), nullable=False),
        sa.Column('project_id', sa.String(length=255), nullable=False),
        sa.Column('user_id', sa.String(length=255), nullable=False),
        sa.Column('host', sa.String(length=255), nullable=False),
        sa.Column('node', sa.String(length=255), nullable=False),
        sa.Column('flavor', sa.JSON(), nullable=False),
        sa.Column('vm_state', sa.String(length=64), nullable=False),
        sa.Column('power_state', sa.Integer(), nullable=False),
        sa.Column('task_state', sa.String(length=64), nullable=True),
        sa.Column('locked_by', sa.String(length=64), nullable=True),
        sa.Column('locked_reason', sa.String(length=255), nullable=True),
        sa.Column('launched_at', models.UTCDateTime(), nullable=True),
        sa.Column('created_at', models.UTCDateTime(), nullable=False),
        sa.Column('updated_at', models.UTCDateTime(), nullable=True),
        sa.PrimaryKeyConstraint('id'),
        sa.UniqueConstraint('uuid'),
    )
    op.create_index(op.f('ix_instances_host'), 'instances', ['host'], unique=False)
    op.create_index(op.f('ix_instances_name'), 'instances', ['name'], unique=False)
    op.create_index(op.f('ix_instances_project_id'), 'instances', ['project_id'], unique=False)
    op.create_table(
        'migrations',
        sa.Column('id', sa.Integer(), autoincrement=True, nullable=False),
        sa.Column('uuid', sa.String(length=36), nullable=True),
        sa.Column('instance_uuid', sa.String(length=36), nullable=False),
        sa.Column('in_progress_instance_uuid', sa.String(length=36), nullable=True),
        sa.Column('project_id', sa.String(length=255), nullable=False),
        sa.Column('user_id', sa.String(length=255), nullable=False),
        sa.Column('migration_type', sa.String(length=32), nullable=False),
        sa.Column('status', sa.String(length=32), nullable=False),
        sa.Column('source_compute', sa.String(length=255), nullable=False),
        sa.Column('source_node', sa.String(length=255), nullable=False),
        sa.Column('dest_compute', sa.String(length=255), nullable=True),
        sa.Column('dest_node', sa.String(length=255), nullable=True),
        sa.Column('dest_host', sa.String(length=255), nullable=True),
        sa.Column('hidden', sa.Boolean(), nullable=False),
        sa.Column('request_id', sa.String(length=64), nullable=True),
        sa.Column('requested_host', sa.String(length=255), nullable=True),
        sa.Column('force', sa.Boolean(), nullable=False),
        sa.Column('block_migration', sa.Boolean(), nullable=True),
        sa.Column('disk_over_commit', sa.Boolean(), nullable=False),
        sa.Column('strategy', sa.String(length=32), nullable=False),
        sa.Column('outcome', sa.String(length=16), nullable=True),
        sa.Column('owner', sa.String(length=36), nullable=True),
        sa.Column('epoch', sa.Integer(), nullable=False),
        sa.Column('attempt', sa.Integer(), nullable=False),
        sa.Column('checked_at', models.UTCDateTime(), nullable=True),
        sa.Column('queued_at', models.UTCDateTime(), nullable=True),
        sa.Column('running_at', models.UTCDateTime(), nullable=True),
        sa.Column('failure', sa.Text(), nullable=True),
        sa.Column('stuck_reason', sa.Text(), nullable=True),
        sa.Column('waits_for', sa.Text(), nullable=True),
        sa.Column('history', sa.JSON(), nullable=False),
        sa.Column('abort_requested_at', models.UTCDateTime(), nullable=True),
        sa.Column('abort_requested_by', sa.String(length=255), nullable=True),
        sa.Column('abort_verdict', sa.Text(), nullable=True),
        sa.Column('force_complete_requested_at', models.UTCDateTime(), nullable=True),
        sa.Column('memory_total', sa.BigInteger(), nullable=True),
        sa.Column('memory_processed', sa.BigInteger(), nullable=True),
        sa.Column('memory_remaining', sa.BigInteger(), nullable=True),
        sa.Column('disk_total', sa.BigInteger(), nullable=True),
        sa.Column('disk_processed', sa.BigInteger(), nullable=True),
        sa.Column('disk_remaining', sa.BigInteger(), nullable=True),
        sa.Column('created_at', models.UTCDateTime(), nullable=False),
        sa.Column('updated_at', models.UTCDateTime(), nullable=True),
        sa.PrimaryKeyConstraint('id'),
        sa.UniqueConstraint('in_progress_instance_uuid'),
        sa.UniqueConstraint('uuid'),
    )
    op.create_index(op.f('ix_migrations_dest_compute'), 'migrations', ['dest_compute'], unique=False)
    op.create_index(op.f('ix_migrations_instance_uuid'), 'migrations', ['instance_uuid'], unique=False)
    op.create_index(op.f('ix_migrations_owner'), 'migrations', ['owner'], unique=False)
    op.create_index(op.f('ix_migrations_source_compute'), 'migrations', ['source_compute'], unique=False)
    op.create_index(op.f('ix_migrations_status'), 'migrations', ['status'], unique=False)
    op.create_table(
        'saga_steps',
        sa.Column('id', sa.Integer(), autoincrement=True, nullable=False),
        sa.Column('saga', sa.String(length=36), nullable=False),
        sa.Column('step', sa.String(length=64), nullable=False),
        sa.Column('direction', sa.String(length=8), nullable=False),
        sa.Column('state', sa.String(length=16), nullable=False),
        sa.Column('epoch', sa.Integer(), nullable=False),
        sa.Column('owner', sa.String(length=36), nullable=True),
        sa.Column('attempt', sa.Integer(), nullable=False),
        sa.Column('tries', sa.Integer(), nullable=False),
        sa.Column('input', sa.JSON(), nullable=True),
        sa.Column('result', sa.JSON(), nullable=True),
        sa.Column('started_at', models.UTCDateTime(), nullable=False),
        sa.Column('ended_at', models.UTCDateTime(), nullable=True),
        sa.PrimaryKeyConstraint('id'),
        sa.UniqueConstraint('saga', 'attempt', 'step', 'direction', name='uniq_saga_steps'),
    )
    op.create_table(
        'services',
        sa.Column('id', sa.Integer(), autoincrement=True, nullable=False),
        sa.Column('uuid', sa.String(length=36), nullable=False),
        sa.Column('host', sa.String(length=255), nullable=False),
        sa.Column('binary', sa.String(length=64), nullable=False),
        sa.Column('version', sa.Integer(), nullable=False),
        sa.Column('boot_id', sa.String(length=36), nullable=True),
        sa.Column('last_seen_up', models.UTCDateTime(), nullable=True),
        sa.Column('disabled', sa.Boolean(), nullable=False),
        sa.Column('disabled_reason', sa.String(length=255), nullable=True),
        sa.Column('forced_down', sa.Boolean(), nullable=False),
        sa.Column('created_at', models.UTCDateTime(), nullable=False),
        sa.Column('updated_at', models.UTCDateTime(), nullable=True),
        sa.PrimaryKeyConstraint('id'),
        sa.UniqueConstraint('host', 'binary', name='uniq_services'),
        sa.UniqueConstraint('uuid'),
    )
