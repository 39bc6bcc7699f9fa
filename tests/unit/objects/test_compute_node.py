# SPDX-License-Identifier: Apache-2.0


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
