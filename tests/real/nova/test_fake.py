# SPDX-License-Identifier: Apache-2.0

"""The Nova in memory (``tests/unit/nova/fake.py``) answers as the stock one does.

The same requests go to both. Of each answer the statuses have to be the same, and whatever the fake's document has has
to be in the other's, with the same value. What differs from run to run (ids, times, links) is replaced before.
"""

import json
import re

import pytest

from tests.real.nova.lab import NOVA
from tests.real.servers import process
from tests.unit.nova.fake import FakeNova

#: What is not compared: links, and what the fake counts or words by itself.
LEFT_OUT = {'links', 'original_name', 'created', 'updated', 'updated_at', 'tenant_id', 'user_id', 'project_id'}
CHANGING = {
    re.compile(r'req-[0-9a-f-]{36}'): 'REQUEST',
    re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}'): 'UUID',
    re.compile(r'\d{4}-\d\d-\d\dT[\d:.]+Z?'): 'TIME',
    re.compile(r'(?<=[Mm]igration )\d+|(?<=/migrations/)\d+'): 'ID',
    re.compile(r'vm-\d+'): 'NAME',
}
ENDED = ('completed', 'cancelled', 'failed', 'error')


class World:
    """A nova with guests, and what it has answered.

    :param adapter: takes the requests.
    :param boot: makes a guest on host1 whose moves fail in a phase and take some seconds: returns its UUID.
    :param wait: returns when a probe returns true.
    :param act: stops or locks a guest.
    """

    def __init__(self, adapter, boot, wait, act):
        self.answers = []
        self._adapter, self._wait = adapter, wait
        self.boot, self.act = boot, act
        self._names = {}

    def guest(self, name, fails=None, seconds=1):
        uuid = self.boot(fails, seconds)
        self._names[uuid] = name
        return uuid

    def ask(self, method, path, body=None, version=NOVA, keep=True):
        options = {} if body is None else {'json': body}
        answer = self._adapter.request(path, method, microversion=version, raise_exc=False, **options)
        document = answer.json() if answer.content else None
        if keep:
            self.answers.append((self._normal(f'{method} {path}'), answer.status_code, self._normal(document)))
        return document

    def move(self, uuid, host=None):
        self.ask('POST', f'/servers/{uuid}/action', {'os-migrateLive': {'host': host, 'block_migration': 'auto'}})

    def act_on(self, uuid, **action):
        self.ask('POST', f'/servers/{uuid}/action', action)

    def migrate_cold(self, uuid, host):
        """Migrate a guest, and note whether the answer has the id of its action."""
        path, body = f'/servers/{uuid}/action', {'migrate': {'host': host}}
        answer = self._adapter.request(path, 'POST', microversion=NOVA, raise_exc=False, json=body)
        newest = self.ask('GET', f'/servers/{uuid}/os-instance-actions', keep=False)['instanceActions'][0]
        known = answer.headers['X-Openstack-Request-Id'] == newest['request_id']
        self.answers.append((f'the id of a cold migration to {host}', answer.status_code, [newest['action'], known]))

    def row(self, uuid):
        rows = self.ask('GET', f'/os-migrations?instance_uuid={uuid}', keep=False)['migrations']
        return rows[0] if rows else None

    def until(self, uuid, *statuses):
        """Wait for the newest migration of a guest; for the end of its task as well if that has ended."""

        def reached():
            row = self.row(uuid)
            if row is None or row['status'] not in statuses:
                return False
            server = self.ask('GET', f'/servers/{uuid}', keep=False)['server']
            if row['status'] in ('finished', 'confirmed', 'reverted'):
                return (server['OS-EXT-STS:vm_state'] == 'resized') is (row['status'] == 'finished')
            return row['status'] not in ENDED or server['OS-EXT-STS:task_state'] is None

        self._wait(reached)

    def look(self, uuid):
        self.ask('GET', f'/servers/{uuid}')
        self.ask('GET', f'/os-migrations?instance_uuid={uuid}')

    def _normal(self, value):
        """Return a document without what changes from run to run."""
        if isinstance(value, dict):
            kept = {key: self._normal(one) for key, one in value.items() if key not in LEFT_OUT}
            return kept | ({'id': 'ID'} if isinstance(kept.get('id'), int) else {})
        if isinstance(value, list):
            # of services and hypervisors the order is not defined
            return sorted(
                map(self._normal, value), key=lambda one: one.get('host') or one.get('hypervisor_hostname', '')
            )
        if not isinstance(value, str):
            return value
        for uuid, name in self._names.items():
            value = value.replace(uuid, name)
        for pattern, instead in CHANGING.items():
            value = pattern.sub(instead, value)
        return value


def of_lab(lab):
    def boot(fails, seconds):
        metadata = {'move_seconds': str(seconds)} | ({'move_fails': fails} if fails else {})
        return lab.guests(1, 'host1', **metadata)[0]

    def act(uuid, name):
        lab.ask('POST', f'/servers/{uuid}/action', **{f'{"os-" if name == "stop" else ""}{name}': None})
        process.wait_until(
            lambda: name != 'stop' or lab.ask('GET', f'/servers/{uuid}')['server']['status'] == 'SHUTOFF', 'it to stop'
        )

    return World(lab.cloud.compute, boot, lambda probe: process.wait_until(probe, 'a migration', 90), act)


def of_fake():
    fake = FakeNova()

    def boot(fails, seconds):
        uuid = fake.add_guest(f'vm-{len(fake.servers) + 1}')
        fake.ticks[uuid] = seconds
        if fails:
            fake.fails[uuid] = fails
        return uuid

    def wait(probe):
        for _ in range(100):
            if probe():
                return
            fake.tick()
        raise AssertionError('the fake does not get there')

    def act(uuid, name):
        fake.servers[uuid].update({'vm_state': 'stopped'} if name == 'stop' else {'locked': True})

    return World(fake, boot, wait, act)


def run(world):
    """Send the requests of a drain, and some that nova refuses."""
    world.ask('GET', '/servers/detail?all_tenants=1&host=host1')
    for path in ('os-services?binary=nova-compute', 'os-hypervisors/detail', 'os-aggregates', 'os-server-groups'):
        world.ask('GET', f'/{path}')
    world.ask('GET', '/os-services', version='2.999')
    # a move to where it is asked, and one to where the scheduler chooses
    moved = world.guest('moved')
    world.look(moved)
    world.ask('GET', '/servers/detail?all_tenants=1&host=host1')
    world.move(moved, 'host2')
    world.move(moved, 'host3')
    world.until(moved, 'completed')
    world.look(moved)
    world.ask('DELETE', f'/servers/{moved}/migrations/{world.row(moved)["id"]}')
    world.ask('DELETE', f'/servers/{moved}/migrations/999')
    world.ask('GET', '/os-migrations?host=host2')
    world.ask('GET', '/os-migrations?source_compute=host2')
    # where a move can fail
    for phase in ('check', 'pre', 'live', 'post'):
        guest = world.guest(f'fails in {phase}', phase)
        world.move(guest, 'host2')
        world.until(guest, *ENDED)
        world.look(guest)
        actions = world.ask('GET', f'/servers/{guest}/os-instance-actions', keep=False)['instanceActions']
        action = next(one for one in actions if one['action'] == 'live-migration')
        shown = world.ask('GET', f'/servers/{guest}/os-instance-actions/{action["request_id"]}', keep=False)
        failed = {
            one['event'] for one in shown['instanceAction']['events'] if one['result'] == 'Error' and one['details']
        }
        world.answers.append((f'the action that failed in {phase}', action['message'], sorted(failed)))
    # a guest that is shut off moves cold, and its user confirms or reverts it
    cold = world.guest('cold')
    world.act(cold, 'stop')
    for host in ('host9', 'host1', 'host2'):
        world.act_on(cold, migrate={'host': host})
    world.until(cold, 'finished')
    world.look(cold)
    world.act_on(cold, migrate=None)
    for _ in range(2):
        world.act_on(cold, confirmResize=None)
        world.until(cold, 'confirmed')
    world.look(cold)
    world.migrate_cold(cold, 'host1')
    world.until(cold, 'finished')
    world.act_on(cold, revertResize=None)
    world.until(cold, 'reverted')
    world.look(cold)
    for phase in ('live', 'post', 'confirm'):
        guest = world.guest(f'cold fails in {phase}', phase)
        world.act(guest, 'stop')
        world.migrate_cold(guest, 'host2')
        if phase == 'confirm':
            world.until(guest, 'finished')
            world.act_on(guest, confirmResize=None)
        world.until(guest, 'error')
        world.look(guest)
    # one runs, one waits in the queue of the source, and each is aborted
    runs, waits = world.guest('runs', seconds=60), world.guest('waits', seconds=60)
    world.move(runs, 'host2')
    world.until(runs, 'running')
    world.move(waits, 'host2')
    world.until(waits, 'queued')
    for guest in (runs, waits):
        world.look(guest)
    for guest in (waits, runs):
        world.ask('DELETE', f'/servers/{guest}/migrations/{world.row(guest)["id"]}')
        world.until(guest, 'cancelled')
        world.look(guest)
    # what nova does not even accept
    world.move(runs, 'host9')
    world.move('00000000-0000-0000-0000-000000000000')
    world.ask('GET', '/servers/00000000-0000-0000-0000-000000000000')
    stopped = world.guest('stopped')
    world.act(stopped, 'stop')
    world.move(stopped)
    world.look(stopped)
    locked = world.guest('locked')
    world.act(locked, 'lock')
    world.look(locked)
    # a move to its own host, and to a disabled one
    world.move(locked, 'host1')
    world.until(locked, 'error')
    world.look(locked)
    services = world.ask('GET', '/os-services?binary=nova-compute&host=host2')['services']
    world.ask('PUT', f'/os-services/{services[0]["id"]}', {'status': 'disabled', 'disabled_reason': 'maintenance'})
    world.ask('GET', '/os-services?binary=nova-compute&host=host2')
    world.move(runs, 'host2')
    world.until(runs, 'error')
    world.ask('PUT', f'/os-services/{services[0]["id"]}', {'status': 'enabled'})
    world.ask('PUT', '/os-services/00000000-0000-0000-0000-000000000000', {'status': 'enabled'})
    return world.answers


def differences(real, fake, where=''):
    """Yield where a document of the fake has something else than the real one."""
    if isinstance(fake, dict) and isinstance(real, dict):
        for key, value in fake.items():
            if key not in real:
                yield f'{where}.{key}: only the fake has it'
            else:
                yield from differences(real[key], value, f'{where}.{key}')
    elif isinstance(fake, list) and isinstance(real, list):
        if len(fake) != len(real):
            yield f'{where}: {len(real)} items, and {len(fake)} of the fake'
        for number, (one, other) in enumerate(zip(real, fake, strict=False)):
            yield from differences(one, other, f'{where}[{number}]')
    elif real != fake:
        yield f'{where}: {real!r}, and {fake!r} of the fake'


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fake_answers_as_nova_does(lab):
    real, fake = run(of_lab(lab)), run(of_fake())
    assert [one[0] for one in real] == [one[0] for one in fake]
    found = []
    for (request, status, document), (_, fakes, other) in zip(real, fake, strict=True):
        if status != fakes:
            found.append(f'{request}: {status} {json.dumps(document)}, and {fakes} {json.dumps(other)} of the fake')
        else:
            found += differences(document, other, request)
    assert not found, '\n'.join(found)
