# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

# --- the example
"""Keeps the books of resizes in a service that has its own database, and resizes the guests itself."""

from oslo_config import cfg

from migrator import executors
from migrator.conf import placement as placement_conf
from migrator.placement_client import client, pairs, resizes


def connect(arguments):
    """Return the way to Placement, as the section [placement] of the service's files has it."""
    conf = cfg.ConfigOpts()
    placement_conf.register_opts(conf)
    conf(arguments, project='importer')
    return client.client_from_conf(conf)


def resize_of(placement, row):
    """Return the resize of which the service's database has this row, committed before move() and unchanged since."""
    owner = {'project_id': row['project_id'], 'user_id': row['user_id']}
    pair = pairs.Pair(
        instance=pairs.Consumer(uuid=row['instance_uuid'], consumer_type=pairs.INSTANCE, **owner),
        migration=pairs.Consumer(uuid=row['migration_uuid'], consumer_type=pairs.MIGRATION, **owner),
        source=row['old'],
        destination=row['new'],
    )
    return resizes.Resize(placement, pair, sleep=executors.NativeThreads().sleep)
