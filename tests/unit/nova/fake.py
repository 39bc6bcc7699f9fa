# SPDX-License-Identifier: Apache-2.0

"""A Nova in memory behind the ``request`` of a keystoneauth1 adapter. It answers as a real one does.

Nothing happens by itself: :meth:`FakeNova.tick` lets a second pass, in which each migration gets to its next status.
Where the guests really are is in :attr:`FakeNova.truth`.
"""

from __future__ import annotations

import datetime
import json
import re
import types
import uuid
from collections.abc import Callable
from urllib import parse

from migrator.nova.client import Nova
from migrator.testing.placement import make_response
from tests.unit.nova.fake_cold import USER, ColdMigrations
from tests.unit.nova.fake_evacuation import Evacuations
from tests.unit.nova.fake_progress import Progress

_PROJECT = 'cfdc58047c5a5879865a17f079445a85'
_NO_HOST = 'No valid host was found. There are not enough hosts available.'
#: A cold migration that has finished waits for its user.
_ENDED = ('completed', 'cancelled', 'failed', 'error', 'done', 'finished', 'confirmed', 'reverted')


class _Refusal(Exception):
    def __init__(self, status, name, message):
        super().__init__(message)
        self.status, self.document = status, {name: {'code': status, 'message': message}}


def _conflict(message):
    return _Refusal(409, 'conflictingRequest', message)


def _bad(message):
    return _Refusal(400, 'badRequest', message)


def _missing(message):
    return _Refusal(404, 'itemNotFound', message)


class FakeNova(Progress, ColdMigrations, Evacuations):
    """One Nova with its hosts; it is the adapter of :class:`migrator.nova.client.Nova`.

    :param hosts: their names.
    :param placement: a PlacementClient; given, the hosts are providers there, and the allocations are made as by Nova.
    """

    def __init__(self, hosts=('host1', 'host2', 'host3'), placement=None, newest=(2, 104)):
        super().__init__()
        self.newest, self.placement, self.at_once, self.page = newest, placement, 1, 1000
        self.now = datetime.datetime(2026, 11, 23, 6, 0, tzinfo=datetime.UTC)
        #: Guest -> the host where it really runs.
        self.truth: dict[str, str] = {}
        self.servers: dict[str, dict] = {}
        self.services: dict[str, dict] = {}
        #: Further records of services, such as a second one of the same host.
        self.more_services: list[dict] = []
        self.nodes: dict[str, str] = {}
        #: Host -> the type and the version of its hypervisor.
        self.kinds: dict[str, tuple[str, int]] = {}
        self.rows: list[dict] = []
        self.actions: list[dict] = []
        self.aggregates: list[dict] = []
        self.groups: list[dict] = []
        #: Guest -> where its next moves fail: check, pre, live or post. And the ticks for which it runs.
        self.fails: dict[str, str] = {}
        self.ticks: dict[str, int] = {}
        #: Further states of guests -> the status that Nova shows.
        self.statuses: dict[str, str] = {}
        #: Guest -> why Nova refuses to move it at all.
        self.refuses: dict[str, str] = {}
        #: Hosts that the scheduler does not choose, though they are up and enabled.
        self.full: set[str] = set()
        #: (method, path) of each request that got here.
        self.requests: list[tuple[str, str]] = []
        #: Called with method and path before and after each request; they may raise.
        self.before: Callable[[str, str], None] = lambda method, path: None
        self.after: Callable[[str, str], None] = lambda method, path: None
        #: The hosts of a second cell, and whether Nova leaves it out of its answer to the request for a path.
        self.second_cell: set[str] = set()
        self.leaves_out: Callable[[str], bool] = lambda path: False
        self._accepted: list[tuple[str, str | None, str, str]] = []
        self._late: list[str] = []
        for name in hosts:
            self.add_host(name)

    def client(self):
        """Return the client that a program has."""
        return Nova(self)

    bad, conflict, missing, get_token = map(staticmethod, (_bad, _conflict, _missing, lambda: 'admin'))

    # --- the cloud ---------------------------------------------------------------------------------------------------

    def add_host(self, name):
        """Add a host with a hypervisor."""
        self.nodes[name] = str(uuid.uuid4())
        self.services[name] = {
            'id': str(uuid.uuid4()),
            'binary': 'nova-compute',
            'host': name,
            'zone': 'nova',
            'status': 'enabled',
            'disabled_reason': None,
            'state': 'up',
            'forced_down': False,
            'updated_at': self._time(),
        }
        if self.placement is not None:
            made = {'uuid': self.nodes[name], 'name': name}
            generation = self.placement.post('/resource_providers', made).json()['generation']
            totals = {'VCPU': 64, 'MEMORY_MB': 65536, 'DISK_GB': 1000}
            body = {
                'resource_provider_generation': generation,
                'inventories': {key: {'total': total} for key, total in totals.items()},
            }
            self.placement.put(f'/resource_providers/{self.nodes[name]}/inventories', body)

    def add_guest(self, name, host='host1', ram=1024, vcpus=1, **fields):
        """Add a guest, and return its uuid.

        :param fields: of its JSON, such as ``locked``; ``vm_state`` and ``task_state`` without their prefix.
        """
        one = str(uuid.uuid4())
        flavor = {'vcpus': vcpus, 'ram': ram, 'disk': 1, 'ephemeral': 0, 'swap': 0, 'original_name': 'lab.small'}
        self.servers[one] = {
            'id': one,
            'name': name,
            'tenant_id': _PROJECT,
            'host': host,
            'vm_state': 'active',
            'task_state': None,
            'locked': False,
            'locked_reason': None,
            'flavor': flavor | {'extra_specs': {}},
            'server_groups': [],
            'created': f'{self.now + datetime.timedelta(seconds=len(self.servers)):%Y-%m-%dT%H:%M:%SZ}',
            'updated': f'{self.now:%Y-%m-%dT%H:%M:%SZ}',
        } | fields
        self.truth[one] = host
        self._book(one, one, host)
        return one

    def kill(self, host):
        """Kill the nova-compute of a host. Its migrations and guests stay as they are."""
        self.services[host]['state'] = 'down'

    def start(self, host):
        """Start the nova-compute of a host again: what ran is now in error, and what was queued is forgotten."""
        self.services[host]['state'] = 'up'
        for row in self.rows:
            if row['source_compute'] == host and row['status'] not in _ENDED and row['instance_uuid'] in self.servers:
                self.servers[row['instance_uuid']]['task_state'] = None
                row['forgotten'] = True
                if row['status'] in ('preparing', 'running'):
                    self._set(row, 'error')

    def delete(self, guest):
        """Delete a guest. Its migrations are no longer shown; what its migration holds in Placement stays."""
        del self.servers[guest], self.truth[guest]
        self._add_action(guest, 'delete')
        if self.placement is not None:
            self._put(guest, {})

    def row(self, guest):
        """Return the newest migration of a guest."""
        return next(row for row in reversed(self.rows) if row['instance_uuid'] == guest)

    def on(self, host):
        """Return the names of the guests that really are on a host."""
        return sorted(self.servers[guest]['name'] for guest, at in self.truth.items() if at == host)

    # --- what happens in a second ------------------------------------------------------------------------------------

    def tick(self, seconds=1):
        """Let time pass: each migration gets on by one status for each second."""
        for _ in range(seconds):
            self.now += datetime.timedelta(seconds=1)
            for service in self.services.values():
                if service['state'] == 'up':
                    service['updated_at'] = self._time()
            late, self._late = self._late, []
            for guest in late:
                if guest in self.servers:
                    self.servers[guest]['task_state'] = None
            accepted, self._accepted = self._accepted, []
            for row in self.rows:
                if row['status'] not in _ENDED and row['instance_uuid'] in self.servers:
                    self._advance(row)
            for guest, host, request_id, kind in accepted:
                self._add_row(guest, host, request_id, kind)
            self.confirm_late()

    def _add_row(self, guest, host, request_id, kind='live-migration'):
        self.rows.append(
            {
                'id': len(self.rows) + 1,
                'uuid': str(uuid.uuid4()),
                'source_compute': self.servers[guest]['host'],
                'dest_compute': None,
                'instance_uuid': guest,
                'status': 'accepted',
                'migration_type': kind,
                'created_at': self._time(),
                'updated_at': None,
                'wanted': host,
                'request_id': request_id,
                'ticks': self.ticks.get(guest, 1),
                'abort': False,
                'forgotten': False,
            }
        )

    def _advance(self, row):
        other = {'evacuation': self.advance_evacuation, 'migration': self.advance_cold}.get(row['migration_type'])
        if other is not None:
            other(row)
            return
        guest, source = row['instance_uuid'], row['source_compute']
        fails = self.fails.get(guest)
        if row['status'] == 'accepted':
            if fails == 'check' or (destination := self._choose(row)) is None:
                self._end(row, 'error', 'conductor_live_migrate_instance', _NO_HOST)
                if fails == 'check':
                    self._note(row, 'compute_check_can_live_migrate_destination', 'the lab says so')
                return
            row['dest_compute'] = destination
            self._book(guest, row['uuid'], source)
            self._book(guest, guest, destination)
            if self.services[source]['state'] == 'up':
                self._set(row, 'queued' if self._runs_at(source) >= self.at_once else 'preparing')
        elif self.services[source]['state'] != 'up' or row['forgotten']:
            return
        elif row['abort']:
            self._end(row, 'cancelled')
        elif row['status'] == 'queued':
            if self._runs_at(source) < self.at_once:
                self._set(row, 'preparing')
        elif row['status'] == 'preparing':
            if fails == 'pre':
                self._end(row, 'failed', 'compute_pre_live_migration', 'the lab says so')
            else:
                self._set(row, 'running')
        elif row['ticks'] > 0:
            row['ticks'] -= 1
            row['updated_at'] = self._time()
        elif fails == 'live':
            self._end(row, 'failed')  # the driver has ended it in good order, so that no event has an error
        else:
            self._arrive(row, fails == 'post')

    def _arrive(self, row, in_error):
        guest, server = row['instance_uuid'], self.servers[row['instance_uuid']]
        self.truth[guest] = server['host'] = row['dest_compute']
        if in_error:
            server['vm_state'] = 'error'
            self._end(row, 'error', 'compute_post_live_migration_at_destination', 'the lab says so')
            self._book(guest, row['uuid'], row['source_compute'])
            self._book(guest, guest, row['dest_compute'])
            return
        self._set(row, 'completed')
        self._put_if(row['uuid'], {})
        self._late.append(guest)  # task_state clears a moment later

    def _end(self, row, status, event=None, details=None):
        """End a migration whose guest stays where it is."""
        guest = row['instance_uuid']
        self._set(row, status)
        self.servers[guest]['task_state'] = None
        if row['dest_compute'] is not None:
            self._put_if(row['uuid'], {})
            self._book(guest, guest, row['source_compute'])
        if event is not None:
            self._note(row, event, details)

    def _note(self, row, event, details):
        action = next(one for one in self.actions if one['request_id'] == row['request_id'])
        action['message'] = 'Error'
        noted = {'event': event, 'result': 'Error', 'details': details, 'host': 'control', 'start_time': self._time()}
        action['events'].insert(0, noted)  # the newest first

    def _choose(self, row):
        source, wanted = row['source_compute'], row['wanted']
        usable = [
            name
            for name, service in self.services.items()
            if name != source
            and name not in self.full
            and (service['status'], service['state']) == ('enabled', 'up')
            and wanted in (None, name)
        ]
        return min(usable, key=lambda name: (len(self.on(name)), name), default=None)

    def _runs_at(self, source):
        return sum(row['source_compute'] == source and row['status'] in ('preparing', 'running') for row in self.rows)

    def _set(self, row, status):
        row['status'], row['updated_at'] = status, self._time()

    def _time(self):
        return f'{self.now:%Y-%m-%dT%H:%M:%S}.000000'

    # --- allocations -------------------------------------------------------------------------------------------------

    def _book(self, guest, consumer, host):
        flavor = self.servers[guest]['flavor']
        resources = {'VCPU': flavor['vcpus'], 'MEMORY_MB': flavor['ram'], 'DISK_GB': flavor['disk']}
        self._put_if(consumer, {self.nodes[host]: {'resources': resources}})

    def _put_if(self, consumer, allocations):
        if self.placement is not None:
            self._put(consumer, allocations)

    def _put(self, consumer, allocations):
        """Write as Nova does, with a microversion that knows no types of consumers."""
        found = self.placement.read(f'/allocations/{consumer}')
        body = {
            'allocations': allocations,
            'project_id': _PROJECT,
            'user_id': USER,
            'consumer_generation': found.get('consumer_generation'),
        }
        version = {'OpenStack-API-Version': 'placement 1.36'}
        url = f'/allocations/{consumer}'
        response = self.placement.adapter.request(url, 'PUT', json=body, headers=version, raise_exc=False)
        assert response.status_code == 204, response.text

    # --- the REST API ------------------------------------------------------------------------------------------------

    def get_endpoint_data(self):
        """Return what the discovery of keystoneauth1 finds."""
        return types.SimpleNamespace(url='http://nova/v2.1', min_microversion=(2, 1), max_microversion=self.newest)

    def request(self, url, method, *, microversion, json=None, params=None, **_more):
        """Answer one request."""
        path, _, query = url.partition('?')
        self.requests.append((method, path))
        self.before(method, path)
        self.answering = f'req-{uuid.uuid4()}'
        version = tuple(int(part) for part in microversion.split('.'))
        given = dict(parse.parse_qsl(query)) | dict(params or {})
        try:
            if version > self.newest:
                known = f'Minimum is 2.1 and maximum is {".".join(map(str, self.newest))}.'
                message = f'Version {microversion} is not supported by the API. {known}'
                raise _Refusal(406, 'computeFault', message)
            status, document = self._answer(method, path, version, json, given)
        except _Refusal as refusal:
            status, document = refusal.status, refusal.document
        request_id, self.answering = self.answering, None
        self.after(method, path)
        return _response(status, document, request_id)

    def _answer(self, method, path, version, body, query):
        for pattern, handler in _ROUTES.items():
            found = re.fullmatch(pattern, f'{method} {path}')
            if found:
                return handler(self, version, body, query, *found.groups())
        raise _missing('The resource could not be found.')

    def _is_left_out(self, path, host):
        return host in self.second_cell and self.leaves_out(path)

    def _server(self, guest):
        if guest not in self.servers:
            raise _missing(f'Instance {guest} could not be found.')
        return self.servers[guest]

    def _show(self, server, version):
        shown = dict(server)
        host, vm_state, task_state = (shown.pop(name) for name in ('host', 'vm_state', 'task_state'))
        statuses = {
            'resized': 'VERIFY_RESIZE',
            'active': 'ACTIVE',
            'stopped': 'SHUTOFF',
            'paused': 'PAUSED',
            'error': 'ERROR',
            'soft-delete': 'SOFT_DELETED',
        }
        status = (statuses | self.statuses)[vm_state]
        shown |= {
            'status': 'MIGRATING' if task_state == 'migrating' else self.STATUSES.get(task_state, status),
            'OS-EXT-STS:vm_state': vm_state,
            'OS-EXT-STS:task_state': task_state,
            'OS-EXT-STS:power_state': shown.pop('power_state', self.POWER.get(vm_state, 1)),
            'OS-EXT-SRV-ATTR:host': host,
            'OS-EXT-SRV-ATTR:hypervisor_hostname': host,
            'OS-EXT-AZ:availability_zone': 'nova',
        }
        if version < (2, 73):
            del shown['locked_reason']
        return shown

    def _show_or_unknown(self, server, version, left_out):
        """Show a guest, or what Nova knows of one while the database of its cell does not answer."""
        unknown = {'id': server['id'], 'status': 'UNKNOWN', 'tenant_id': _PROJECT, 'created': server['created']}
        return unknown if left_out else self._show(server, version)

    def _list_servers(self, version, body, query):
        found = [one for one in self.servers.values() if query.get('host') in (None, one['host'])]
        found = [one for one in found if query.get('project_id') in (None, one['tenant_id'])]
        found.sort(key=lambda one: one['created'], reverse=query.get('sort_dir') != 'asc')
        # Nova shows a guest that it has deleted softly to those who know its uuid.
        found = [one for one in found if one['vm_state'] != 'soft-delete']
        left_out = self.leaves_out('/servers/detail')
        if 'host' in query and left_out:
            found = [one for one in found if one['host'] not in self.second_cell]
        shown, links = self._page(found, query, 'id', 'servers')
        for one in shown:
            one.pop('server_groups', None)
        servers = [self._show_or_unknown(one, version, left_out and one['host'] in self.second_cell) for one in shown]
        return 200, {'servers': servers} | links

    def _show_server(self, version, body, query, guest):
        server = self._server(guest)
        left_out = self._is_left_out(f'/servers/{guest}', server['host'])
        shown = self._show_or_unknown(server, version, left_out)
        if version < (2, 71) and not left_out:
            del shown['server_groups']
        return 200, {'server': shown}

    def _page(self, found, query, key, name):
        ids = [one[key] for one in found]
        if query.get('marker', ids and ids[0]) not in ids and 'marker' in query:
            raise _bad(f'marker [{query["marker"]}] not found')
        start = ids.index(query['marker']) + 1 if 'marker' in query else 0
        limit = min(int(query.get('limit', self.page)), self.page)
        page = [dict(one) for one in found[start : start + limit]]
        if start + limit >= len(found):
            return page, {}
        asked = parse.urlencode(query | {'marker': page[-1][key]})
        return page, {f'{name}_links': [{'rel': 'next', 'href': f'http://nova.internal/v2.1/{name}?{asked}'}]}

    def _act(self, version, body, query, guest):
        server, (name, options) = self._server(guest), *body.items()
        if name == 'os-resetState':
            server['vm_state'], server['task_state'] = options['state'], None
            return 202, None
        if name == 'evacuate':
            self.evacuate(server, options, version)
            return 200, {}
        if name in self.COLD:
            return self.COLD[name](self, server, options)
        assert name == 'os-migrateLive', name
        host = options['host']
        if server['task_state'] is not None:
            raise _conflict(f"Cannot '{name}' instance {guest} while it is in task_state {server['task_state']}")
        if server['vm_state'] not in ('active', 'paused'):
            raise _conflict(f"Cannot '{name}' instance {guest} while it is in vm_state {server['vm_state']}")
        if host is not None and host not in self.services:
            raise _bad(f'Compute host {host} could not be found.')
        if guest in self.refuses:
            raise _conflict(self.refuses[guest])
        server['task_state'] = 'migrating'
        self._accepted.append((guest, host, self._add_action(guest, 'live-migration'), 'live-migration'))
        return 202, None

    def _add_action(self, guest, action):
        request_id = self.answering or f'req-{uuid.uuid4()}'
        self.actions.append(
            {
                'action': action,
                'instance_uuid': guest,
                'message': None,
                'project_id': _PROJECT,
                'request_id': request_id,
                'start_time': self._time(),
                'user_id': self.user,
                'events': [],
            }
        )
        return request_id

    def _list_actions(self, version, body, query, guest):
        found = [one for one in reversed(self.actions) if one['instance_uuid'] == guest]
        if not found:  # the actions of a deleted guest are shown
            self._server(guest)
        shown, links = self._page(found, query, 'request_id', 'instanceActions')
        for one in shown:
            del one['events']
        return 200, {'instanceActions': shown} | links

    def _show_action(self, version, body, query, guest, request_id):
        self._server(guest)
        for one in self.actions:
            if one['request_id'] == request_id:
                hidden = {'details'} if version < (2, 84) else set()
                events = [{key: event[key] for key in event.keys() - hidden} for event in one['events']]
                return 200, {'instanceAction': one | {'events': events}}
        raise _missing(f'Action {request_id} not found')

    def _list_migrations(self, version, body, query):
        query, newest_first = dict(query), self.rows[::-1]
        if 'marker' in query:  # a migration of a deleted guest is no item, but may be a marker
            known = [row['uuid'] for row in newest_first]
            if (marker := query.pop('marker')) not in known:
                raise _bad(f'Marker {marker} could not be found.')
            newest_first = newest_first[known.index(marker) + 1 :]
        found = [row for row in newest_first if row['instance_uuid'] in self.servers]
        if self.leaves_out('/os-migrations'):
            found = [row for row in found if self.servers[row['instance_uuid']]['host'] not in self.second_cell]
        for name in ('instance_uuid', 'source_compute', 'status', 'migration_type'):
            found = [row for row in found if query.get(name) in (None, row[name])]
        if 'host' in query:
            found = [row for row in found if query['host'] in (row['source_compute'], row['dest_compute'])]
        shown, links = self._page(found, query, 'uuid', 'migrations')
        for row in shown:
            for name in ('wanted', 'request_id', 'ticks', 'abort', 'forgotten', 'is_left_off', 'was', 'ended'):
                row.pop(name, None)
            node = row['source_compute'] if row['dest_compute'] is not None else None
            address = '192.168.0.1' if row['migration_type'] == 'migration' and row['dest_compute'] else None
            row |= {'source_node': node, 'dest_node': row['dest_compute'], 'dest_host': address}
            row |= {'user_id': USER, 'project_id': _PROJECT}
        return 200, {'migrations': shown} | links

    def _list_services(self, version, body, query):
        found = [one | {'state': self.shown_state(one)} for one in [*self.services.values(), *self.more_services]]
        if self.leaves_out('/os-services'):
            for one in found:
                if one['host'] in self.second_cell:
                    kept = {name: one[name] for name in ('id', 'binary', 'host')}
                    one.clear()
                    one.update(kept, status='UNKNOWN')
        return 200, {'services': [one for one in found if query.get('host') in (None, one['host'])]}

    def _update_service(self, version, body, query, number):
        for one in [*self.services.values(), *self.more_services]:
            if one['id'] == number:
                one.update(body, updated_at=self._time())  # any change of a row counts
                if one['status'] == 'enabled':
                    one['disabled_reason'] = None
                return 200, {'service': one}
        raise _missing(f'Service {number} could not be found.')

    def _list_hypervisors(self, version, body, query):
        found = []
        for host, service in self.services.items():
            kind, of_version = self.kinds.get(host, ('fake', 1000))
            one = {
                'id': self.nodes[host],
                'hypervisor_hostname': host,
                'hypervisor_type': kind,
                'hypervisor_version': of_version,
                'state': service['state'],
                'status': service['status'],
                'service': {'id': service['id'], 'host': host, 'disabled_reason': service['disabled_reason']},
            }
            if version < (2, 88):
                one['running_vms'] = len(self.on(host))
            found.append(one)
        shown, links = self._page(found, query, 'id', 'hypervisors')
        return 200, {'hypervisors': shown} | links

    def _list_aggregates(self, version, body, query):
        return 200, {'aggregates': self.aggregates}

    def _list_groups(self, version, body, query):
        start, limit = int(query.get('offset', 0)), int(query.get('limit', self.page))
        return 200, {'server_groups': self.groups[start : start + limit]}


def _response(status, document, request_id):
    body = b'' if document is None else json.dumps(document).encode()
    return make_response(
        None, status, [('Content-Type', 'application/json'), ('X-Openstack-Request-Id', request_id)], body
    )


_ROUTES = {
    r'GET /servers/detail': FakeNova._list_servers,
    r'GET /servers/([^/]+)': FakeNova._show_server,
    r'POST /servers/([^/]+)/action': FakeNova._act,
    r'GET /servers/([^/]+)/os-instance-actions': FakeNova._list_actions,
    r'GET /servers/([^/]+)/os-instance-actions/([^/]+)': FakeNova._show_action,
    r'DELETE /servers/([^/]+)/migrations/([^/]+)': FakeNova._abort,
    r'GET /servers/([^/]+)/migrations': FakeNova._list_moves,
    r'GET /os-migrations': FakeNova._list_migrations,
    r'GET /os-services': FakeNova._list_services,
    r'PUT /os-services/([^/]+)': FakeNova._update_service,
    r'GET /os-hypervisors/detail': FakeNova._list_hypervisors,
    r'GET /os-aggregates': FakeNova._list_aggregates,
    r'GET /os-server-groups': FakeNova._list_groups,
}
