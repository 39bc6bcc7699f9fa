# SPDX-License-Identifier: Apache-2.0

# --- the example
"""Keep the allocations of resizes in a service with a database, which resizes the guests itself."""

from oslo_config import cfg

from migrator import executors
from migrator.conf import keystone
from migrator.placement_client import allocation_state, client, resizes


def connect(arguments):
    """Return the way to Placement, as the section [placement] of the service's files has it."""
    conf = cfg.ConfigOpts()
    keystone.PLACEMENT.register_opts(conf)
    conf(arguments, project='importer')
    return client.client_from_conf(conf)


def resize_of(placement, row):
    """Return the resize of a row that the service committed before move() and has not changed since."""
    owner = {'project_id': row['project_id'], 'user_id': row['user_id']}
    pair = allocation_state.Pair(
        instance=allocation_state.Consumer(uuid=row['instance_uuid'], consumer_type=allocation_state.INSTANCE, **owner),
        migration=allocation_state.Consumer(
            uuid=row['migration_uuid'], consumer_type=allocation_state.MIGRATION, **owner
        ),
        source=row['old'],
        destination=row['new'],
    )
    return resizes.Resize(placement, pair, sleep=executors.NativeThreads().sleep)
