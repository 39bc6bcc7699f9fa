# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import pytest

from migrator.objects.instance import Flavor, Instance


@pytest.mark.parametrize(('locked_by', 'locked'), [(None, False), ('admin', True), ('owner', True)])
def test_instance_with_locked_by_is_locked(locked_by: str | None, locked: bool) -> None:
    one = Instance(
        uuid='i', name='n', project_id='p', user_id='u', host='h', node='h', flavor=Flavor(name='f'),
        locked_by=locked_by,
    )  # fmt: skip
    assert one.locked == locked


class TestGibToCopy:
    """The size of a migration, as nova calculates it in ``_live_migration_data_gb`` of its libvirt driver."""

    @pytest.mark.parametrize(
        ('memory_mb', 'gib'), [(1, 2.0), (2048, 2.0), (2049, 2049 / 1024), (4096, 4.0), (6144, 6.0), (1024**2, 1024.0)]
    )
    @pytest.mark.parametrize('block_migration', [False, None])
    def test_data_with_shared_disks_is_the_memory_and_2_at_least(
        self, memory_mb: int, gib: float, block_migration: bool | None
    ) -> None:
        assert Flavor(name='f', memory_mb=memory_mb, root_gb=100).gib_to_copy(block_migration, {}) == gib

    @pytest.mark.parametrize(
        ('disks', 'gib'),
        [
            ({'root_gb': 10}, 14.0),
            ({'root_gb': 1}, 6.0),
            ({'root_gb': 0}, 4.0),
            ({'root_gb': 10, 'ephemeral_gb': 20, 'swap': 4096}, 38.0),
            ({'root_gb': 10, 'ephemeral_gb': 1, 'swap': 1}, 18.0),
        ],
    )
    def test_data_with_copied_disks_adds_each_disk_as_2_at_least(self, disks: dict[str, int], gib: float) -> None:
        assert Flavor(name='f', memory_mb=4096, **disks).gib_to_copy(True, {}) == gib

    @pytest.mark.parametrize(
        ('copied_gib', 'gib'), [([500.0], 504.0), ([], 4.0), ([1.0, 30.0], 36.0)], ids=['one', 'none', 'two']
    )
    def test_data_with_disk_sizes_of_the_driver_uses_them(self, copied_gib: list[float], gib: float) -> None:
        assert (
            Flavor(name='f', memory_mb=4096, root_gb=0, ephemeral_gb=7).gib_to_copy(True, {'copied_gib': copied_gib})
            == gib
        )
