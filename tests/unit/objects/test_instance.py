# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import pytest

from migrator.objects.instance import Flavor, Instance


class TestResourceGroups:
    def test_a_flavor_claims_its_own_amounts(self) -> None:
        assert Flavor(name='f', vcpus=2, memory_mb=512, root_gb=10).resource_groups() == {
            '': {'VCPU': 2, 'MEMORY_MB': 512, 'DISK_GB': 10}
        }

    def test_disk_is_root_and_ephemeral_and_swap_rounded_up_to_a_gib(self) -> None:
        assert Flavor(name='f', root_gb=1, ephemeral_gb=2, swap=1025).resource_groups()['']['DISK_GB'] == 5
        assert Flavor(name='f', root_gb=1, swap=1024).resource_groups()['']['DISK_GB'] == 2

    def test_class_with_amount_zero_is_not_claimed(self) -> None:
        assert 'DISK_GB' not in Flavor(name='f', root_gb=0).resource_groups()['']

    def test_an_extra_spec_adds_a_class_overrides_one_or_takes_it_away(self) -> None:
        specs = {'resources:CUSTOM_FAST': '3', 'resources:MEMORY_MB': '64', 'resources:DISK_GB': '0'}
        assert Flavor(name='f', extra_specs=specs).resource_groups() == {
            '': {'VCPU': 1, 'MEMORY_MB': 64, 'CUSTOM_FAST': 3}
        }

    def test_numbered_and_named_groups_are_kept_apart(self) -> None:
        specs = {'resources1:PGPU': '1', 'resources2:PGPU': '1', 'resources_NET:NET_BW': '5'}
        groups = Flavor(name='f', extra_specs=specs).resource_groups()
        assert {group: wanted for group, wanted in groups.items() if group} == {
            '1': {'PGPU': 1},
            '2': {'PGPU': 1},
            '_NET': {'NET_BW': 5},
        }

    def test_group_without_amounts_is_left_out(self) -> None:
        assert list(Flavor(name='f', extra_specs={'resources1:PGPU': '0'}).resource_groups()) == ['']

    def test_other_extra_specs_do_not_change_resources(self) -> None:
        specs = {'hw:cpu_policy': 'dedicated', 'trait:CUSTOM_FAST': 'required', 'resources': '1'}
        assert Flavor(name='f', extra_specs=specs).resource_groups() == Flavor(name='f').resource_groups()

    def test_resources_are_summed_over_the_groups(self) -> None:
        specs = {'resources1:PGPU': '1', 'resources2:PGPU': '2', 'resources1:VCPU': '4'}
        assert Flavor(name='f', vcpus=2, extra_specs=specs).resources() == {
            'VCPU': 6,
            'MEMORY_MB': 512,
            'DISK_GB': 1,
            'PGPU': 3,
        }


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
