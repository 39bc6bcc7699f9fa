# SPDX-License-Identifier: Apache-2.0

"""The real Placement and the fake side by side.

Each request goes to both, and both must return the same response.
"""

import collections
import json as jsonlib
import random
import sqlite3
import uuid

from migrator.testing.fake_placement.service import FakePlacement

VERSION = '1.39'


def headers(version=VERSION):
    return {'OpenStack-API-Version': f'placement {version}', 'Accept': 'application/json'}


SHARING = 'MISC_SHARES_VIA_AGGREGATE'
TYPES, PROJECTS, USERS = ('INSTANCE', 'MIGRATION'), ('blue', 'red'), ('ada', 'eve')


def text_itself(text):
    """Return the value that the real Placement hashes."""
    return text


def send(adapter, method, url, json=None, version=VERSION):
    return adapter.request(url, method, json=json, raise_exc=False, headers=headers(version))


def comparable(response):
    """Return the parts of a response that the project reads, in a form that can be compared."""
    if not response.content:
        return response.status_code, None
    document = response.json()
    if response.status_code >= 400:
        return response.status_code, [(one['status'], one['code']) for one in document['errors']]
    for entry in (document, *document.get('resource_providers', ())):
        entry.pop('links', None)
    for entry in (document, *document.get('provider_summaries', {}).values()):
        if 'traits' in entry:
            entry['traits'].sort()
    if 'aggregates' in document:
        document['aggregates'].sort()
    if 'allocation_requests' in document:
        for one in document['allocation_requests']:
            for uuids in one['mappings'].values():
                uuids.sort()
        # As text, since the order within each request matters too.
        document['allocation_requests'] = jsonlib.dumps(document['allocation_requests'])
    return response.status_code, document


#: The tables that a request may change. A parent comes before its child.
TABLES = (
    *('resource_classes', 'traits', 'placement_aggregates', 'resource_providers', 'inventories'),
    *('resource_provider_traits', 'resource_provider_aggregates', 'projects', 'users', 'consumer_types'),
    *('consumers', 'allocations'),
)


class Both:
    """The real Placement and the fake, which get the same requests."""

    def __init__(self, real):
        self.real = real
        self._adapter = real.adapter()
        self._file = sqlite3.connect(real._file)
        self._empty = self._copy()
        self._worlds = {}
        self.counts = collections.Counter()
        self.start_empty()

    def close(self):
        self._file.close()

    def start(self, content, asked_before):
        """Put both into the state after some requests."""
        for table in reversed(TABLES):
            if self._rows(table) != content[table]:
                self._file.execute(f'DELETE FROM {table}')  # noqa: S608 - a constant name
        for table in TABLES:
            if content[table] and self._rows(table) != content[table]:
                places = ', '.join('?' * len(content[table][0]))
                self._file.executemany(f'INSERT INTO {table} VALUES ({places})', content[table])  # noqa: S608 - constant names
        self._file.commit()
        self.fake = FakePlacement(hashed_as=text_itself)
        self._fake_adapter = self.fake.adapter()
        self.asked = []
        for one in asked_before:
            send(self._fake_adapter, *one)
            self.asked.append(one)

    def start_empty(self):
        """Empty both."""
        self.start(self._empty, [])

    def world(self, number):
        """Put both into the state of the world with this number, which is always the same."""
        if number not in self._worlds:
            self.start_empty()
            world = World(self, random.Random(f'world {number}'))  # noqa: S311 - random test data is not a secret
            self._worlds[number] = world, self._copy(), list(self.asked)
        world, content, asked_before = self._worlds[number]
        self.start(content, asked_before)
        return world

    def _copy(self):
        return {table: self._rows(table) for table in TABLES}

    def _rows(self, table):
        return self._file.execute(f'SELECT * FROM {table}').fetchall()  # noqa: S608 - a constant name

    def ask(self, method, url, json=None, version=VERSION):
        """Send a request to both, compare the responses, and return the status and the document."""
        self.asked.append((method, url, json, version))
        before = len(self.real.requests)
        real = comparable(send(self._adapter, method, url, json, version))
        fake = comparable(send(self._fake_adapter, method, url, json, version))
        assert fake == real, (fake, real, self.asked)
        assert self.fake.requests[-1:] == self.real.requests[before:]
        self.counts['requests'] += 1
        return real

    def look(self, url):
        """Read from the fake alone, to choose the next request."""
        return send(self._fake_adapter, 'GET', url).json()

    def compare_all(self):
        """Compare the whole content of both.

        The content of the real Placement is read from its database, which is faster than 20 requests.
        """
        rows = self._file.execute(
            'SELECT p.uuid, p.name, p.generation, parent.uuid, root.uuid FROM resource_providers p'
            ' LEFT JOIN resource_providers parent ON parent.id = p.parent_provider_id'
            ' JOIN resource_providers root ON root.id = p.root_provider_id'
        ).fetchall()
        fields = ('uuid', 'name', 'generation', 'parent_provider_uuid', 'root_provider_uuid')
        shown = self.look('/resource_providers')['resource_providers']
        assert {one['uuid']: tuple(one[field] for field in fields) for one in shown} == {row[0]: row for row in rows}
        holders, held, used = {}, {}, collections.Counter()
        consumers = {}
        for provider, consumer, name, amount, *rest in self._file.execute(
            'SELECT p.uuid, a.consumer_id, r.name, a.used, c.generation, j.external_id, u.external_id, t.name'
            ' FROM allocations a JOIN resource_providers p ON p.id = a.resource_provider_id'
            ' JOIN resource_classes r ON r.id = a.resource_class_id JOIN consumers c ON c.uuid = a.consumer_id'
            ' JOIN projects j ON j.id = c.project_id JOIN users u ON u.id = c.user_id'
            ' JOIN consumer_types t ON t.id = c.consumer_type_id'
        ):
            holders.setdefault(provider, {}).setdefault(consumer, {})[name] = amount
            held.setdefault(consumer, {}).setdefault(provider, {})[name] = amount
            used[provider, name] += amount
            consumers[consumer] = rest
        inventories = {}
        for provider, name, *fields in self._file.execute(
            'SELECT p.uuid, r.name, total, reserved, min_unit, max_unit, step_size, allocation_ratio FROM inventories i'
            ' JOIN resource_providers p ON p.id = i.resource_provider_id'
            ' JOIN resource_classes r ON r.id = i.resource_class_id'
        ):
            names = ('total', 'reserved', 'min_unit', 'max_unit', 'step_size', 'allocation_ratio')
            inventories.setdefault(provider, {})[name] = dict(zip(names, fields, strict=True))
        for provider, *_rest in rows:
            url = f'/resource_providers/{provider}'
            found = self.look(f'{url}/allocations')['allocations']
            assert {one: entry['resources'] for one, entry in found.items()} == holders.get(provider, {})
            assert all(entry['consumer_generation'] == consumers[one][0] for one, entry in found.items())
            inventory = inventories.get(provider, {})
            assert self.look(f'{url}/inventories')['inventories'] == inventory
            assert self.look(f'{url}/usages')['usages'] == {name: used[provider, name] for name in inventory}
        for consumer, wanted in held.items():
            found = self.look(f'/allocations/{consumer}')
            assert {one: entry['resources'] for one, entry in found['allocations'].items()} == wanted
            keys = ('consumer_generation', 'project_id', 'user_id', 'consumer_type')
            assert [found[key] for key in keys] == consumers[consumer]
        generations = self._file.execute('SELECT uuid, generation FROM consumers').fetchall()
        assert {uuid_: one.generation for uuid_, one in self.fake._consumers._consumers.items()} == dict(generations)


class World:
    """Some resource providers: hosts with little room, some with children, some with shared storage."""

    def __init__(self, both, dice):
        self.both = both
        self.dice = dice
        assert both.ask('PUT', '/resource_classes/CUSTOM_GPU')[0] == 201
        assert both.ask('PUT', '/traits/CUSTOM_FAST')[0] == 201
        has_storage = dice.random() < 0.4
        self.hosts = [self._host() for _ in range(dice.randint(2, 4))]
        self.providers = list(self.hosts)
        if dice.random() < 0.5:
            parents = [dice.choice(self.hosts) for _ in range(dice.randint(1, 3))]
            self.providers += [
                self._provider(parent, {'CUSTOM_GPU': {'total': dice.randint(1, 4)}}) for parent in parents
            ]
        if dice.random() < 0.3:
            self.providers.append(self._provider(dice.choice(self.providers), {}))
        if has_storage:
            storage = self._provider(None, {'DISK_GB': {'total': 40}}, [SHARING])
            borrowers = dice.sample(self.hosts, dice.randint(1, len(self.hosts)))
            aggregate = str(uuid.UUID(int=dice.getrandbits(128), version=4))
            for one in (storage, *borrowers):
                self.ask_changed(one, 'aggregates', {'aggregates': [aggregate]})
            self.providers.append(storage)
        # Two consumers that hold something. Together they have every project, user and type.
        self.consumers = [str(uuid.UUID(int=dice.getrandbits(128), version=4)) for _ in range(2)]
        for generation, consumer, index in zip(
            (None, None, 1), (*self.consumers, self.consumers[0]), (0, 1, 0), strict=True
        ):
            body = {
                'allocations': {self.hosts[index]: {'resources': {'VCPU': 1, 'MEMORY_MB': 512}}},
                'consumer_generation': generation,
                'consumer_type': TYPES[index],
                'project_id': PROJECTS[index],
                'user_id': USERS[index],
            }
            assert both.ask('PUT', f'/allocations/{consumer}', body)[0] == 204

    def _host(self):
        dice = self.dice
        inventory = {
            'VCPU': {'total': dice.randint(2, 6), 'allocation_ratio': dice.choice((1.0, 1.5, 2))},
            'MEMORY_MB': {'total': 4096, 'reserved': dice.choice((0, 512)), 'step_size': dice.choice((1, 512))},
        }
        if dice.random() < 0.5:
            inventory['DISK_GB'] = {'total': 20, 'min_unit': dice.choice((1, 2)), 'max_unit': dice.choice((4, 20))}
        return self._provider(None, inventory)

    def _provider(self, parent, inventory, traits=()):
        one = str(uuid.UUID(int=self.dice.getrandbits(128), version=4))
        body = {'uuid': one, 'name': f'host-{one[:6]}', 'parent_provider_uuid': parent}
        assert self.both.ask('POST', '/resource_providers', body)[0] == 200
        if inventory:
            self.ask_changed(one, 'inventories', {'inventories': inventory})
        traits = sorted({*traits, *(name for name in ('CUSTOM_FAST', 'HW_CPU_X86_AVX') if self.dice.random() < 0.4)})
        if traits:
            self.ask_changed(one, 'traits', {'traits': list(traits)})
        return one

    def ask_changed(self, provider, what, body, offset=0):
        url = f'/resource_providers/{provider}'
        generation = self.both.look(url).get('generation', 0) + offset
        return self.both.ask('PUT', f'{url}/{what}', {**body, 'resource_provider_generation': generation})
