# SPDX-License-Identifier: Apache-2.0

"""A guest asks Placement here for what it asks for in the nova that is installed.

``doc/source/placement-requests.rst`` lists what nova asks for besides, and what is not compared here.
"""

import json
import os
import random
import subprocess

import pytest

from migrator.objects import Flavor
from migrator.objects.instance import spec_problem
from tests.real.nova import lab as labs

COUNT = int(os.environ.get('MIGRATOR_FLAVORS', '2500'))
AMOUNTS = ('0', '1', '2', '7', '-1', 'a', '', ' 3 ')
CLASSES = ('VCPU', 'PCPU', 'MEMORY_MB', 'DISK_GB', 'VGPU', 'MEM_ENCRYPTION_CONTEXT', 'CUSTOM_GOLD', 'NO_CLASS', 'vcpu')
TRAITS = ('CUSTOM_GOLD', 'HW_CPU_X86_AVX2', 'COMPUTE_NODE', 'HW_CPU_HYPERTHREADING')
SUFFIXES = ('', '', '', '1', '2', '_GPU')
#: Extra specs and properties of images that say the same -> their values.
BOTH = {
    'hw:cpu_policy': ('dedicated', 'dedicated', 'mixed', 'mixed', 'shared'),
    'hw:cpu_thread_policy': ('prefer', 'isolate', 'require'),
    'hw:cpu_realtime_mask': ('^0', '0', '1-2', '^0-1'),
    'hw:tpm_version': ('1.2', '2.0'),
    'hw:tpm_model': ('tpm-tis', 'tpm-crb'),
    'os:secure_boot': ('required', 'disabled', 'optional'),
    'hw:maxphysaddr_mode': ('passthrough', 'emulate'),
    'hw:pci_numa_affinity_policy': ('socket', 'required', 'preferred'),
    'hw:virtio_packed_ring': ('true', 'false', 'yes'),
    'hw:ephemeral_encryption': ('true', 'false'),
    'hw:ephemeral_encryption_format': ('luks', 'plain'),
    'hw:sound_model': ('virtio', 'ich9'),
    'hw:mem_encryption': ('true', 'false', 'on'),
    'hw:mem_encryption_model': ('amd-sev', 'amd-sev-es', 'amd-sev-snp', 'intel-tdx'),
}
OF_FLAVOR = {
    'hw:cpu_dedicated_mask': ('^0', '0-1', '^0-1', '3', '0,2'),
    'hw:cpu_realtime': ('true', 'false', '1'),
    'hw:emulator_threads_policy': ('isolate', 'share'),
    'hw:pmem': ('6GB', '6GB,6GB,16GB', ' a , b', '6GB,6gb'),
    'hw:tpm_secret_security': ('user', 'host', 'deployment', ''),
    'accel:device_profile': ('gpu', ''),
    'group_policy': ('none', 'isolate', 'other'),
    'hw:mem_page_size': ('large',),
    'hw:numa_nodes': ('2',),
}
OF_IMAGE = {
    'hw_firmware_stateless': ('true', 'false'),
    'hw_firmware_type': ('uefi', 'bios'),
    'hw_machine_type': ('q35',),
    'trait:CUSTOM_GOLD': ('required', 'forbidden'),
    'trait:HW_CPU_X86_AVX2': ('required',),
}

#: More extra specs, for the comparison of what is refused.
MORE = (
    *('aggregate_instance_extra_specs:ssd', 'capabilities:cpu_info:features', 'capabilities:vcpus', 'capabilities:no'),
    *('hide_hypervisor_id', 'hw:numa_cpus.0', 'hw:numa_mem.1', 'hw:cpu_max_threads', 'hw:cpu_sockets', 'hw:boot_menu'),
    *('hw:serial_port_count', 'hw:watchdog_action', 'hw:usb_model', 'hw:redirected_usb_ports', 'hw:viommu_model'),
    *('hw_rng:rate_bytes', 'hw_video:ram_max_mb', 'pci_passthrough:alias', 'quota:cpu_quota', 'quota:cpu_shares'),
    *('quota:disk_io_shares_level', 'quota:vif_inbound_peak', 'quota:memory_reservation', 'vmware:hw_version'),
    *('acme:tier', 'plain', 'trait', 'resources', 'hw:', 'quota:'),
)
VALUES = (
    *('', ' ', '0', '-1', '1', '16', '2.5', 'a', '1-2-3', '1,2,', '^1,3', 'gpu:1, nic:2', 'gpu', '4KiB', '2M', 'reset'),
    *('custom', 'qemu-xhci', 'intel', 'TRUE', 'n', '\u0661', '1_0', ' 7', '6GB,', ',6GB'),
)


def guests(seed, count):
    dice = random.Random(seed)  # noqa: S311 -- random test data is not a secret
    return [guest(dice, number) for number in range(count)]


def guest(dice, number):
    """Return a flavor and the properties of an image. Few of them get the same settings from both."""
    specs, properties = {}, {}
    for _ in range(dice.choice((0, 0, 1, 2, 3))):
        specs[f'resources{dice.choice(SUFFIXES)}:{dice.choice(CLASSES)}'] = dice.choice(AMOUNTS)
    for _ in range(dice.choice((0, 0, 1, 2))):
        value = dice.choice(('required', 'required', 'forbidden', 'preferred'))
        specs[f'trait{dice.choice(SUFFIXES)}:{dice.choice(TRAITS)}'] = value
    for key in dice.sample([*BOTH], dice.choice((0, 1, 1, 2, 3))):
        value = dice.choice(BOTH[key])
        if dice.random() < 0.6:
            specs[key] = value
        else:
            properties[key.replace(':', '_')] = value
    for values, found in ((OF_FLAVOR, specs), (OF_IMAGE, properties)):
        for key in dice.sample([*values], dice.choice((0, 0, 1, 2))):
            found[key] = dice.choice(values[key])
    flavor = {
        'name': f'flavor{number}',
        'vcpus': dice.choice((1, 2, 4, 8)),
        'memory_mb': dice.choice((512, 4096)),
        'root_gb': dice.choice((0, 1, 20)),
        'ephemeral_gb': dice.choice((0, 0, 5)),
        'swap': dice.choice((0, 0, 1024, 1500)),
        'extra_specs': specs,
    }
    return {'flavor': flavor, 'properties': properties, 'is_volume_backed': dice.random() < 0.3}


def canonical(pairs):
    """Return a query without its order; a missing policy for groups is the one that none means here."""
    found = {}
    for name, value in pairs:
        if name != 'limit':
            found[name] = sorted(value.split(','))
    if len([name for name in found if name.startswith('resources') and name != 'resources']) > 1:
        found.setdefault('group_policy', ['none'])
    return found


def asked(one):
    made = Flavor(**one['flavor']).request_for(one['properties'], one['is_volume_backed'], True)
    return canonical(made.query()), made.fallback and canonical(made.fallback.query())


def specs(seed, count):
    """Return extra specs, some with a mistake in the key, each with a value that fits some of them."""
    dice = random.Random(seed)  # noqa: S311 -- as above
    known = [*BOTH, *OF_FLAVOR, *MORE, *(f'resources{one}:{name}' for one in SUFFIXES for name in CLASSES)]
    known += [f'trait{one}:{name}' for one in SUFFIXES for name in (*TRAITS, 'CUSTOM_gold', 'NO_TRAIT')]
    values = sorted({value for one in (BOTH, OF_FLAVOR) for found in one.values() for value in found} | {*VALUES})
    made = []
    for _ in range(count):
        key = dice.choice(known)
        fits = {**BOTH, **OF_FLAVOR}.get(key, values)
        key = key.replace(dice.choice('abceimtu'), '', 1) if dice.random() < 0.15 else key
        made.append((key, dice.choice(fits if dice.random() < 0.5 else values)))
    return made


def answers(given):
    program = [labs.PYTHON, '-W', 'ignore', labs.HERE / 'ask_placement.py']
    done = subprocess.run(program, input=json.dumps(given), capture_output=True, text=True, check=True, timeout=600)
    return json.loads(done.stdout)


@pytest.mark.usefixtures('_need_nova')
def test_each_extra_spec_is_refused_that_nova_refuses():
    made = specs(54, COUNT)
    refused = answers({'guests': [], 'specs': made})['refused']
    ours = [spec_problem(*one) is not None for one in made]
    different = [one for one in zip(made, ours, refused, strict=True) if one[1] != one[2]]
    assert different == []
    assert COUNT * 0.2 < sum(refused) < COUNT * 0.8


@pytest.mark.usefixtures('_need_nova')
def test_each_guest_asks_for_what_it_asks_for_in_nova():
    made = guests(54, COUNT)
    compared, different, refusals = 0, [], {}
    for one, theirs in zip(made, answers({'guests': made, 'specs': []})['requests'], strict=True):
        if 'refused' in theirs:
            refusals.setdefault(theirs['refused'].split(':')[0], []).append(one)
            continue
        compared += 1
        wanted = canonical(theirs['query']), theirs['fallback'] and canonical(theirs['fallback'])
        wanted = wanted[0], wanted[1] if wanted[1] != wanted[0] else None  # which is asked for once here
        if asked(one) != wanted:
            different.append((one, asked(one), wanted))
    assert different == []
    # Nova refuses the others before it asks, since their settings contradict each other.
    assert compared > COUNT * 0.7, {name: len(found) for name, found in refusals.items()}
