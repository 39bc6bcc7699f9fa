# SPDX-License-Identifier: Apache-2.0

"""The diagnostics of a server."""

import jsonschema
import pytest
from tempest.lib.api_schema.response.compute.v2_48 import servers as v2_48

FOUND = {
    'driver': 'libvirt', 'hypervisor': 'kvm', 'hypervisor_os': 'linux',
    'memory_details': {'maximum': 512, 'used': 256},
    'cpu_details': [{'id': 0, 'time': 20}],
    'disk_details': [
        {'device': 'vda', 'read_requests': 1, 'read_bytes': 2, 'write_requests': 3, 'write_bytes': 4,
         'errors_count': -1},
    ],
    'nic_details': [
        {'device': 'tap0', 'mac_address': '52:54:00:00:00:01', 'rx_octets': 1, 'rx_packets': 2, 'rx_errors': 3,
         'rx_drop': 4, 'tx_octets': 5, 'tx_packets': 6, 'tx_errors': 7, 'tx_drop': 8},
        {'mac_address': '52:54:00:00:00:02'},
    ],
}  # fmt: skip


def ask(world, guest, version='2.80', token='admin'):
    return world.ask('GET', f'/servers/{guest.uuid}/diagnostics', version=version, token=token)


@pytest.mark.parametrize('found', [FOUND, {'driver': 'libvirt'}])
def test_diagnostics_have_novas_form_from_2_48_on(world, found):
    guest = world.guest()
    world.threads.seconds += 7
    world.conductor.diagnostics = {'state': 'running', 'diagnostics': found}
    for version in ('2.48', '2.80'):
        answer = ask(world, guest, version)
        jsonschema.validate(answer.json, v2_48.show_server_diagnostics['response_body'])
    assert (answer.json['num_cpus'], answer.json['num_nics']) == ((1, 2) if found is FOUND else (0, 0))
    assert (answer.json['state'], answer.json['config_drive']) == ('running', False)
    assert answer.json['uptime'] >= 0


def test_fields_that_the_driver_leaves_out_are_null(world):
    world.conductor.diagnostics = {'state': 'running', 'diagnostics': FOUND}
    found = ask(world, world.guest()).json
    assert found['cpu_details'] == [{'id': 0, 'time': 20, 'utilisation': None}]
    assert found['disk_details'] == [
        {'read_requests': 1, 'read_bytes': 2, 'write_requests': 3, 'write_bytes': 4, 'errors_count': -1}
    ]
    assert found['nic_details'][1]['mac_address'] == '52:54:00:00:00:02'
    assert found['nic_details'][1]['rx_octets'] is None


def test_diagnostics_are_flat_below_2_48(world):
    world.conductor.diagnostics = {'state': 'running', 'diagnostics': FOUND}
    assert ask(world, world.guest(), '2.47').json == {
        'cpu0_time': 20, 'memory': 512 * 1024,
        'vda_read_req': 1, 'vda_read': 2, 'vda_write_req': 3, 'vda_write': 4, 'vda_errors': -1,
        'tap0_rx': 1, 'tap0_rx_packets': 2, 'tap0_rx_errors': 3, 'tap0_rx_drop': 4,
        'tap0_tx': 5, 'tap0_tx_packets': 6, 'tap0_tx_errors': 7, 'tap0_tx_drop': 8,
    }  # fmt: skip


def test_guest_that_does_not_run_returns_409(world):
    guest = world.guest()
    world.conductor.diagnostics = {'state': 'paused', 'diagnostics': None}
    said = f"Cannot 'get_diagnostics' instance {guest.uuid} while it is in power state paused: it has to be running"
    world.refuses(ask(world, guest), 409, 'conflictingRequest', said)


def test_host_that_is_down_returns_409_and_is_not_asked(world):
    guest = world.guest()
    world.force_down('source')
    world.refuses(ask(world, guest), 409, 'conflictingRequest', guest.uuid, 'is down')
    assert world.conductor.calls == []


def test_driver_without_diagnostics_returns_501(world):
    world.conductor.diagnostics = {'state': 'running', 'diagnostics': None}
    world.refuses(ask(world, world.guest()), 501, 'notImplemented', 'does not report diagnostics')


def test_only_an_administrator_may_see_them(world):
    guest = world.guest(project='blue')
    world.refuses(ask(world, guest, token='ada:blue'), 403, 'forbidden', 'os-server-diagnostics')
    world.refuses(ask(world, guest, token='eve:red'), 404, 'itemNotFound')
    assert world.conductor.calls == []
