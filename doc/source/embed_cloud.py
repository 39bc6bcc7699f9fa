# SPDX-License-Identifier: Apache-2.0

# --- the example
"""Two hosts of a service move a guest; the rest of the cloud is in the same process."""

import uuid

from embed_driver import ToyDriver
from oslo_config import cfg

import migrator
from migrator.conductor.registry import create_instance
from migrator.objects import Flavor, Instance
from migrator.testing import toyhv
from migrator.testing.cloud import Cloud


def test_guest_moves_to_other_host(tmp_path):
    cloud, toy = Cloud(tmp_path, hosts=0), toyhv.Cluster()
    hosts = []
    for name in ('alpha', 'beta'):
        conf = cfg.ConfigOpts()
        conf([], project='importer')
        hosts.append(migrator.Host(conf, ToyDriver(toy.add(name)), host=name, client=cloud.rpc_for(name)))
        hosts[-1].start()
    cloud.wait_until(lambda: cloud.up('alpha', 'beta'))

    guest = Instance(
        uuid=str(uuid.uuid4()),
        name='guest',
        project_id='demo',
        user_id='demo',
        host='alpha',
        node='alpha',
        flavor=Flavor(name='small', vcpus=1, memory_mb=512, root_gb=1),
    )
    toy.hosts['alpha'].boot(guest.uuid)
    create_instance(cloud.database, cloud.placement_client, guest)

    assert cloud.live_migrate(guest, host='beta').status_int == 202
    cloud.wait_until(cloud.idle)
    assert cloud.migrations(guest)[0].status == 'completed'
    assert toy.hosts['beta'].domains() == {guest.uuid: toyhv.RUNNING}
    for service in (*hosts, cloud):
        service.stop()
