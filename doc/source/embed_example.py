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
"""A service that runs migrator's compute manager with its own configuration, transport and driver."""

from oslo_config import cfg

from migrator import executors, rpc
from migrator.compute.manager import ComputeManager
from migrator.conductor.rpcapi import ConductorEvents
from migrator.conf import compute as compute_conf


def make_manager(conf: cfg.ConfigOpts, host, driver):
    """Return a compute manager that listens once it is started."""
    compute_conf.register_opts(conf)
    threads = executors.NativeThreads()
    transport = rpc.get_transport(conf)
    client = rpc.OsloRPC(transport)
    return ComputeManager(conf, host, driver, threads, ConductorEvents(client), client)
