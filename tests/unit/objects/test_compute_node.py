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


from __future__ import annotations

from migrator.objects.compute_node import ComputeNode, ProviderInventory


def test_the_total_of_a_class_is_summed_over_the_whole_tree() -> None:
    providers = [
        ProviderInventory(uuid='root', name='root', inventory={'VCPU': {'total': 8}}),
        ProviderInventory(uuid='numa0', name='numa0', parent_uuid='root', inventory={'MEMORY_MB': {'total': 512}}),
        ProviderInventory(uuid='numa1', name='numa1', parent_uuid='root', inventory={'MEMORY_MB': {'total': 256}}),
    ]
    node = ComputeNode(uuid='root', host='h', node='h', providers=providers)
    assert (node.total('VCPU'), node.total('MEMORY_MB'), node.total('DISK_GB')) == (8, 768, 0)
