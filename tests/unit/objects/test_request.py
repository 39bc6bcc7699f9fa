# SPDX-License-Identifier: Apache-2.0

"""The request for a guest. ``tests/real/nova/test_requests.py`` compares many more with nova's."""

from __future__ import annotations

import pytest

from migrator.objects import Flavor


def asked(specs: dict[str, str] | None = None, vcpus: int = 2, **properties: str) -> dict[str, str]:
    """Return the query for a guest without a disk, without its memory."""
    flavor = Flavor(name='f', vcpus=vcpus, memory_mb=512, root_gb=0, extra_specs=specs or {})
    found = dict(flavor.request_for(properties).query())
    kept = [one for one in found.pop('resources', '').split(',') if one and one != 'MEMORY_MB:512']
    return found | {'resources': ','.join(kept)}


class TestAmounts:
    def test_a_flavor_asks_for_its_own_amounts(self) -> None:
        assert Flavor(name='f', vcpus=2, memory_mb=512, root_gb=10).request.query() == [
            ('resources', 'VCPU:2,MEMORY_MB:512,DISK_GB:10')
        ]

    def test_disk_is_root_and_ephemeral_and_swap_rounded_up_to_a_gib(self) -> None:
        assert Flavor(name='f', root_gb=1, ephemeral_gb=2, swap=1025).resources()['DISK_GB'] == 5
        assert Flavor(name='f', root_gb=1, swap=1024).resources()['DISK_GB'] == 2

    def test_a_root_disk_on_a_volume_takes_no_room(self) -> None:
        flavor = Flavor(name='f', root_gb=9, ephemeral_gb=1)
        assert flavor.request_for(is_volume_backed=True).total['DISK_GB'] == 1

    def test_a_class_with_amount_zero_is_not_asked_for(self) -> None:
        assert 'DISK_GB' not in Flavor(name='f', root_gb=0).resources()

    def test_an_extra_spec_adds_a_class_overrides_one_or_takes_it_away(self) -> None:
        specs = {'resources:CUSTOM_FAST': '3', 'resources:MEMORY_MB': '64', 'resources:DISK_GB': '0'}
        assert Flavor(name='f', extra_specs=specs).resources() == {'VCPU': 1, 'MEMORY_MB': 64, 'CUSTOM_FAST': 3}

    def test_a_class_that_a_group_names_is_asked_for_once(self) -> None:
        assert asked({'resources1:VCPU': '4'}) == {'resources': '', 'resources1': 'VCPU:4'}

    @pytest.mark.parametrize('amount', ['a', '', '-1', '1.5'])
    def test_an_amount_that_is_none_is_passed_over(self, amount: str) -> None:
        assert asked({'resources:CUSTOM_GOLD': amount}) == asked()

    def test_numbered_and_named_groups_are_kept_apart(self) -> None:
        found = asked({'resources1:PGPU': '1', 'resources2:PGPU': '1', 'resources_NET:CUSTOM_BW': '5'})
        assert found == {
            'resources': 'VCPU:2',
            'resources1': 'PGPU:1',
            'resources2': 'PGPU:1',
            'resources_NET': 'CUSTOM_BW:5',
            'group_policy': 'none',
        }

    def test_amounts_are_summed_over_the_groups(self) -> None:
        specs = {'resources1:PGPU': '1', 'resources2:PGPU': '2', 'resources:VCPU': '2', 'resources1:VCPU': '4'}
        found = Flavor(name='f', vcpus=2, extra_specs=specs).resources()
        assert found == {'VCPU': 6, 'MEMORY_MB': 512, 'DISK_GB': 1, 'PGPU': 3}


class TestTraits:
    def test_required_and_forbidden_traits_of_each_group(self) -> None:
        specs = {
            'trait:CUSTOM_GOLD': 'required',
            'trait:CUSTOM_SLOW': 'forbidden',
            'resources1:PGPU': '1',
            'trait1:CUSTOM_NEW': 'required',
            'trait:CUSTOM_OTHER': 'preferred',
        }
        found = asked(specs)
        assert (found['required'], found['required1']) == ('CUSTOM_GOLD,!CUSTOM_SLOW', 'CUSTOM_NEW')

    def test_traits_of_the_image_count_too(self) -> None:
        assert asked(**{'trait:CUSTOM_GOLD': 'required'})['required'] == 'CUSTOM_GOLD'

    def test_features_are_asked_for_as_traits(self) -> None:
        found = asked({'os:secure_boot': 'required', 'hw:virtio_packed_ring': 'true'}, hw_tpm_version='2.0')
        assert found['required'] == (
            'COMPUTE_SECURITY_TPM_2_0,COMPUTE_SECURITY_TPM_TIS,COMPUTE_SECURITY_UEFI_SECURE_BOOT'
        )
        assert found['root_required'] == 'COMPUTE_NET_VIRTIO_PACKED'

    def test_secrets_of_a_tpm_are_asked_for_where_hosts_have_traits_for_them(self) -> None:
        flavor = Flavor(name='f', extra_specs={'hw:tpm_version': '2.0', 'hw:cpu_policy': 'dedicated'})
        for form in flavor.request_for(asks_for_secrets=True).forms():
            assert form.root_required == {'COMPUTE_SECURITY_TPM_SECRET_SECURITY_USER'}

    def test_a_guest_that_is_there_already_needs_no_traits(self) -> None:
        specs = {'trait:CUSTOM_GOLD': 'required', 'trait1:CUSTOM_NEW': 'required', 'hw:cpu_policy': 'dedicated'}
        there = Flavor(name='f', extra_specs=specs).request.without_traits()
        assert there == Flavor(name='f', extra_specs={'hw:cpu_policy': 'dedicated'}).request


class TestProcessors:
    def test_dedicated_ones_are_also_asked_for_as_shared_ones(self) -> None:
        made = Flavor(name='f', vcpus=2, root_gb=0, extra_specs={'hw:cpu_policy': 'dedicated'}).request
        assert made.totals == [{'PCPU': 2, 'MEMORY_MB': 512}, {'VCPU': 2, 'MEMORY_MB': 512}]

    @pytest.mark.parametrize(
        ('mask', 'amounts'),
        [('^0', 'VCPU:1,PCPU:3'), ('0-2', 'VCPU:1,PCPU:3'), ('0-3,^1-2', 'VCPU:2,PCPU:2'), ('1', 'VCPU:3,PCPU:1')],
    )
    def test_a_mask_divides_mixed_ones(self, mask: str, amounts: str) -> None:
        specs = {'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': mask}
        assert asked(specs, vcpus=4)['resources'] == amounts
        specs = {'hw:cpu_policy': 'mixed', 'hw:cpu_realtime': 'true', 'hw:cpu_realtime_mask': mask}
        assert asked(specs, vcpus=4)['resources'] == amounts

    def test_isolated_emulator_threads_need_one_more(self) -> None:
        assert asked({'hw:emulator_threads_policy': 'isolate'}, hw_cpu_policy='dedicated')['resources'] == 'PCPU:3'


def test_a_named_host_is_asked_for_in_each_group() -> None:
    made = Flavor(name='f', extra_specs={'resources1:PGPU': '1'}).request
    assert [pair for pair in made.query('root', 5) if pair[1] in ('root', '5')] == [
        ('in_tree', 'root'), ('in_tree1', 'root'), ('limit', '5'),
    ]  # fmt: skip
