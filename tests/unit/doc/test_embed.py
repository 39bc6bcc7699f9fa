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

"""The code of the page on embedding runs as it stands there."""

import importlib.util
import pathlib

from oslo_config import cfg

from migrator import executors
from migrator import rpc as migrator_rpc
from migrator.conductor import rpcapi
from migrator.virt import fake, fake_hypervisor

ROOT = pathlib.Path(__file__).resolve().parents[3]


def example():
    path = ROOT / 'doc' / 'source' / 'embed_example.py'
    spec = importlib.util.spec_from_file_location('embed_example', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Conductor:
    """As much of a conductor as a host needs to become known."""

    def __init__(self, threads):
        self.reports = []
        self.known = threads.event()

    @migrator_rpc.expose
    def compute_started(self, context, report):
        """Note the report, and ask for nothing."""
        self.reports.append(report)
        self.known.set()
        return []

    @migrator_rpc.expose
    def compute_heartbeat(self, context, report):
        """Do nothing."""

    @migrator_rpc.expose
    def compute_stopping(self, context, host, boot_id, cancelled):
        """Do nothing."""


def test_the_embedded_manager_makes_its_host_known_over_the_importers_own_transport():
    threads = executors.NativeThreads()
    conf = cfg.ConfigOpts()
    conf([], project='importer', default_config_files=[], default_config_dirs=[])
    transport = migrator_rpc.get_transport(conf, 'fake://')
    conf.set_override('transport_url', 'fake://')
    conductor = Conductor(threads)
    served = migrator_rpc.OsloRPC(transport).serve(
        migrator_rpc.Target(rpcapi.TOPIC, 'conductor1', rpcapi.VERSION), conductor
    )
    world = fake_hypervisor.FakeWorld(threads)
    driver = fake.FakeDriver(world.add('here'), threads)
    manager = example().make_manager(conf, 'here', driver)
    manager.start()
    try:
        assert conductor.known.wait(30)
        assert [(report.host, report.boot_id) for report in conductor.reports] == [('here', manager.boot_id)]
    finally:
        manager.cleanup_host()
        served.stop()
