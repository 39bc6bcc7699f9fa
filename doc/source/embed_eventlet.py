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
"""The same in a service that eventlet has patched."""

import eventlet

eventlet.monkey_patch()  # first of all, and everything

from embed_driver import ToyDriver
from embed_example import Embedded, read_configuration
from eventlet import tpool


def embed(arguments, toy):
    """Return a compute host whose calls into the binding are made in threads of the system's own."""
    return Embedded(read_configuration(arguments), ToyDriver(tpool.Proxy(toy)))
