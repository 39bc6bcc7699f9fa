# SPDX-License-Identifier: Apache-2.0

"""Random requests to both Placements: those that a conductor sends, and invalid ones."""

import json as jsonlib
import random
import uuid
from urllib import parse

from tests.unit.testing.both_placements import PROJECTS, SHARING, TYPES, USERS

#: The number of different worlds.
WORLDS = 25
CONFLICT, NO_ROOM = 'placement.concurrent_update', 'placement.undefined_code'
TRAITS = ('CUSTOM_FAST', 'HW_CPU_X86_AVX')
CLASSES = ('VCPU', 'MEMORY_MB', 'DISK_GB', 'CUSTOM_GPU')

#: The cases that random requests to the real Placement must have covered.
TRAPS = {
    'a consumer emptied',
    'an emptied consumer began anew',
    'null for one that exists',
    'a stale generation',
    'a generation for one that does not exist',
    'a late duplicate refused',
    'a late duplicate done',
    'no room',
    'not by min_unit, max_unit or step_size',
    'written above the capacity, and no worse',
    'swapped where only what is freed makes room',
    'an empty consumer left behind',
    'an empty consumer taken over',
    'a wrong write answered 400',
    'a wrong write answered 409',
    'DELETE of allocations answered 204',
    'DELETE of allocations answered 404',
    'several candidates in one order',
    'no candidate',
    'candidates with traits',
    'candidates answered 400',
    'candidates cut off by a limit',
    'candidates of several groups',
    'candidates of a tree',
    'candidates with shared storage',
    'inventory answered 200',
    'inventory answered 400 placement.undefined_code',
    'inventory answered 409 placement.concurrent_update',
    'inventory answered 409 placement.inventory.inuse',
    'an inventory below what is in use',
    'a provider changed: 200',
    'a provider changed: 204',
    'a provider changed: 400 placement.undefined_code',
    'a provider changed: 404 placement.undefined_code',
    'a provider changed: 409 placement.duplicate_name',
    'a provider changed: 409 placement.resource_provider.inuse',
    'a provider changed: 409 placement.resource_provider.cannot_delete_parent',
    'traits answered 200',
    'traits answered 400',
    'traits answered 409',
}


class Sequence:
    """A sequence of random requests to one world."""

    def __init__(self, both, number):
        self.both = both
        self.counts = both.counts
        self.dice = random.Random(f'sequence {number}')  # noqa: S311 - random test data is not a secret
        world = both.world(self.dice.randrange(WORLDS))
        self.hosts, self.providers, self.ask_changed = world.hosts, world.providers, world.ask_changed
        self.consumers = [*world.consumers, self._uuid()]
        self.emptied = set()
        self.written = []

    def run(self):
        kinds = {
            self.claim: 18,
            self.swap: 10,
            self.move: 10,
            self.empty: 10,
            self.again: 10,
            self.delete: 4,
            self.wrong_write: 8,
            self.read: 8,
            self.find: 14,
            self.change_inventory: 8,
            self.change_provider: 8,
            self.change_names: 4,
        }
        for kind in self.dice.choices(list(kinds), list(kinds.values()), k=self.dice.choice((1, 1, 2, 2, 3, 4, 6))):
            kind()
        self.both.compare_all()

    # --- writes of allocations ---------------------------------------------------------------------------------------

    def claim(self, consumer=None):
        consumer = consumer or self.dice.choice(self.consumers)
        self._put(consumer, self._wanted(), self._generation(consumer))

    def swap(self):
        """Exchange the allocations of two consumers."""
        one, other = self.dice.sample(self.consumers, 2)
        for missing in [consumer for consumer in (one, other) if not self._held(consumer)]:
            self._put(missing, self._wanted(), self._known(missing))
        held, others = self._held(one), self._held(other)
        if not (held and others):
            return
        fits_beside = all(
            self._room(provider, name) >= amount
            for wanted in (held, others)
            for provider, resources in wanted.items()
            for name, amount in resources.items()
        )
        status, _said = self._post({one: (others, self._known(one)), other: (held, self._known(other))})
        if status == 204 and not fits_beside:
            self.counts['swapped where only what is freed makes room'] += 1

    def move(self):
        """Move allocations as a migration does.

        The migration takes over the allocation of the instance, which gets another one.
        """
        instance, migration = self.dice.sample(self.consumers, 2)
        if not self._held(instance):
            self._put(instance, self._wanted(), self._known(instance))
        source = self._held(instance)
        if not source:
            return
        before = self._known(instance)
        moved = {migration: (source, self._known(migration)), instance: (self._wanted(), before)}
        if self._post(moved)[0] == 204 and self.dice.random() < 0.5:
            self._post({instance: (source, self._known(instance)), migration: ({}, self._known(migration))})
            if self.dice.random() < 0.5:
                self._repeat(*self.written[-2])

    def empty(self):
        consumer = self.dice.choice((*self.consumers, self.consumers[-1]))
        if self.dice.random() < 0.8 and not self._held(consumer):
            self._put(consumer, self._wanted(), self._known(consumer))
        if self.dice.random() < 0.5:
            self._put(consumer, {}, self._generation(consumer))
        else:
            other = self.dice.choice([one for one in self.consumers if one != consumer])
            self._post({consumer: ({}, self._generation(consumer)), other: (self._wanted(), self._generation(other))})
        if self.dice.random() < 0.5:
            self._put(consumer, self._wanted(), self.dice.choice((None, 0, 1)))
        else:
            # The claim that created the consumer arrives again and creates it again.
            for late in [one for one in self.written if consumer in one[1] and one[2]['consumer_generation'] is None][
                :1
            ]:
                self._repeat(*late)

    def again(self):
        """Repeat an earlier write."""
        if self.written:
            self._repeat(*self.dice.choice(self.written))

    def delete(self):
        consumer = self.dice.choice(self.consumers)
        status, _said = self.both.ask('DELETE', f'/allocations/{consumer}')
        self.counts[f'DELETE of allocations answered {status}'] += 1
        if status == 204:
            self.emptied.add(consumer)
            if self.dice.random() < 0.3:
                self._put(consumer, self._wanted(), None)

    def wrong_write(self):
        consumer = self.dice.choice((*self.consumers, self.consumers[-1]))
        provider = self.dice.choice(self.hosts)
        wrong = self.dice.choice(
            [
                {self._uuid(): {'VCPU': 1}},
                {provider: {'VCPU': 1}, self._uuid(): {'VCPU': 1}},
                {provider: {'CUSTOM_NONE': 1}},
                {provider: {'VCPU': 0}},
                {provider: {}},
                {'host1': {'VCPU': 1}},
                {provider: {'PGPU': 1}},
                {provider: {'VCPU': 1, 'PGPU': 1}},
            ]
        )
        body = self._body(wrong, self._known(consumer))
        odd = self.dice.random()
        if odd < 0.1:
            body.pop(self.dice.choice(list(body)))
        elif odd < 0.2:
            body[self.dice.choice(list(body))] = self.dice.choice((7, 'text', '', None, 'instance'))
        if self.dice.random() < 0.5:
            status, _said = self.both.ask('PUT', f'/allocations/{consumer}', body)
        else:
            other = self.dice.choice([one for one in self.consumers if one != consumer])
            bodies = {other: self._body(self._wanted(), self._known(other)), consumer: body}
            status, _said = self.both.ask('POST', '/allocations', bodies)
        self.counts[f'a wrong write answered {status}'] += 1
        if self._orphan(consumer):
            self.counts['an empty consumer left behind'] += 1
            small = {self.dice.choice(self.hosts): {'VCPU': 1, 'MEMORY_MB': 512}}
            status, _said = self._put(consumer, small, self.dice.choice((None, 0, 0)))
            if status == 204:
                self.counts['an empty consumer taken over'] += 1

    def _put(self, consumer, wanted, generation):
        return self._write('PUT', f'/allocations/{consumer}', {consumer: (wanted, generation)})

    def _post(self, writes):
        return self._write('POST', '/allocations', writes)

    def _write(self, method, url, writes):
        before = {one: (self._exists(one), self._known(one), bool(self._held(one))) for one in writes}
        over = self._over_capacity()
        bodies = {one: self._body(*wanted) for one, wanted in writes.items()}
        json = bodies if method == 'POST' else next(iter(bodies.values()))
        said = self._send(method, url, json)
        if said[0] == 204:
            for one, (_exists, known, held) in before.items():
                wanted, generation = writes[one]
                if held and not wanted:
                    self.counts['a consumer emptied'] += 1
                    self.emptied.add(one)
                if wanted and generation is None and one in self.emptied:
                    assert self.both.look(f'/allocations/{one}')['consumer_generation'] == 1
                    self.counts['an emptied consumer began anew'] += 1
                if not held and not wanted and known is None:
                    self.counts['an empty consumer left behind'] += 1
            if over & self._over_capacity():
                self.counts['written above the capacity, and no worse'] += 1
        if said == (409, [(409, CONFLICT)]):
            for one, (exists, known, _held) in before.items():
                if exists and writes[one][1] is None:
                    self.counts['null for one that exists'] += 1
                if exists and writes[one][1] is not None and writes[one][1] < (known or 0):
                    self.counts['a stale generation'] += 1
                if not exists and writes[one][1] is not None:
                    self.counts['a generation for one that does not exist'] += 1
        if said == (409, [(409, NO_ROOM)]):
            self.counts['no room'] += 1
            if any(self._breaks_a_unit(wanted) for wanted, _generation in writes.values()):
                self.counts['not by min_unit, max_unit or step_size'] += 1
        self.written.append((method, url, json))
        return said

    def _repeat(self, method, url, json):
        status, said = self._send(method, url, json)
        if status == 409 and said == [(409, CONFLICT)]:
            self.counts['a late duplicate refused'] += 1
        if status == 204:
            self.counts['a late duplicate done'] += 1

    def _send(self, method, url, json):
        return self.both.ask(method, url, json)

    def _body(self, wanted, generation):
        return {
            'allocations': {one: {'resources': resources} for one, resources in wanted.items()},
            'consumer_generation': generation,
            'consumer_type': self.dice.choice(TYPES),
            'project_id': self.dice.choice(PROJECTS),
            'user_id': self.dice.choice(USERS),
        }

    def _wanted(self):
        dice = self.dice
        wanted = {
            dice.choice(self.hosts): {
                'VCPU': dice.choice((1, 2, 2, 4)),
                'MEMORY_MB': dice.choice((512, 512, 1024, 768)),
            }
        }
        if dice.random() < 0.3:
            provider = dice.choice(self.providers)
            classes = list(self.both.look(f'/resource_providers/{provider}/inventories').get('inventories', ()))
            wanted.setdefault(provider, {})[dice.choice(classes or CLASSES)] = dice.choice((1, 2, 5))
        return wanted

    def _generation(self, consumer):
        """Return the consumer's generation, or sometimes another one."""
        known = self._known(consumer)
        if self.dice.random() < 0.8:
            return known
        return self.dice.choice((None, 0, 1, (known or 0) + 1, max((known or 0) - 1, 0)))

    # --- other requests ----------------------------------------------------------------------------------------------

    def read(self):
        provider, consumer = self.dice.choice([*self.providers, self._uuid()]), self.dice.choice(self.consumers)
        paths = [f'/allocations/{consumer}', '/resource_providers', f'/resource_providers?in_tree={provider}']
        paths += [f'/resource_providers?name=host-{provider[:6]}', f'/resource_providers/{provider}']
        things = ('inventories', 'usages', 'allocations', 'traits', 'aggregates')
        paths += [f'/resource_providers/{provider}/{thing}' for thing in things]
        self.both.ask('GET', self.dice.choice(paths))

    def find(self):
        dice = self.dice
        query = []
        for suffix in dice.choice((('',), ('',), ('', '_GPU'), ('', '1', '2'), ('1', '2'), ('1',), ('', '1'))):
            small = {'VCPU': dice.randint(1, 2), 'MEMORY_MB': 512}
            disk = {'DISK_GB': dice.randint(1, 8)}
            numbered = dice.choice(({'CUSTOM_GPU': 1}, {'CUSTOM_GPU': 1}, {'VCPU': 1}, disk))
            wanted = numbered if suffix else small if dice.random() < 0.8 else disk
            if not suffix and dice.random() < 0.4:
                wanted |= disk
            if not suffix and dice.random() < 0.3:
                wanted['CUSTOM_GPU'] = 1
            if dice.random() < 0.03:
                wanted['CUSTOM_NONE'] = 1
            query.append((f'resources{suffix}', ','.join(f'{name}:{amount}' for name, amount in wanted.items())))
        for suffix in [name.removeprefix('resources') for name, _ in query]:
            if dice.random() < 0.3:
                names = dice.sample(TRAITS, dice.randint(1, 2))
                names = [dice.choice(('', '', '!')) + name for name in names]
                query.append((f'required{suffix}', ','.join([*names, *(['CUSTOM_NONE'] * (dice.random() < 0.03))])))
        if dice.random() < 0.15:
            query.append(('root_required', dice.choice(('', '', '!')) + dice.choice(TRAITS)))
        if dice.random() < 0.2:
            query.append(
                (f'in_tree{query[0][0].removeprefix("resources")}', dice.choice([*self.providers, self._uuid()]))
            )
        if len(query) > 2 or dice.random() < 0.2:
            query.append(('group_policy', dice.choice(('none', 'isolate'))))
        if dice.random() < 0.3:
            query.append(('limit', str(dice.choice((1, 2, 1000)))))
        status, said = self.both.ask('GET', '/allocation_candidates?' + parse.urlencode(query))
        if status != 200:
            self.counts[f'candidates answered {status}'] += 1
            return
        found = jsonlib.loads(said['allocation_requests'])
        names = {name for name, _value in query}
        self.counts['several candidates in one order'] += len(found) > 1
        self.counts['no candidate'] += not found
        self.counts['candidates with traits'] += bool(found) and any('required' in name for name, _value in query)
        self.counts['candidates cut off by a limit'] += dict(query).get('limit') == str(len(found))
        self.counts['candidates of several groups'] += bool(found) and len({n for n in names if 'resources' in n}) > 1
        self.counts['candidates of a tree'] += any(
            summary['parent_provider_uuid'] for summary in said['provider_summaries'].values()
        )
        self.counts['candidates with shared storage'] += any(
            SHARING in said['provider_summaries'][one]['traits'] for request in found for one in request['allocations']
        )

    def change_inventory(self):
        dice = self.dice
        holder = dice.choice(self.consumers)
        held = self._held(holder)
        provider = dice.choice([*held, *self.providers])
        url = f'/resource_providers/{provider}/inventories'
        inventory = dict(self.both.look(url)['inventories']) if 'inventories' in self.both.look(url) else {}
        for name in list(inventory):
            kind = dice.random()
            if kind < 0.15:
                del inventory[name]
            elif kind < 0.55:
                inventory[name] = {'total': dice.choice((1, 1, 4, 8)), 'step_size': dice.choice((1, 1, 2))}
            elif kind < 0.65:
                inventory[name] = {'total': 1, 'reserved': 3}
            elif kind < 0.7:
                inventory[name] = {'total': 0}
        if dice.random() < 0.1:
            inventory[dice.choice(('CUSTOM_NONE', 'PGPU'))] = {'total': 4}
        offset = 0 if dice.random() < 0.85 else dice.choice((-1, 1))
        status, said = self.ask_changed(provider, 'inventories', {'inventories': inventory}, offset)
        code = said[0][1] if status >= 400 else ''
        self.counts[f'inventory answered {status} {code}'.strip()] += 1
        if status == 200 and provider in {one for one, _name in self._over_capacity()}:
            self.counts['an inventory below what is in use'] += 1
            if held:
                self._put(holder, held if dice.random() < 0.7 else self._wanted(), self._known(holder))

    def change_provider(self):
        dice = self.dice
        provider, other = (
            dice.choice([*self.providers, self._uuid()]),
            dice.choice([*self.providers, self._uuid(), None]),
        )
        url = f'/resource_providers/{provider}'
        kind = dice.random()
        name = f'host-{dice.choice((provider, other or provider))[:6]}'
        if kind < 0.3:
            status, said = self.both.ask('DELETE', url)
        elif kind < 0.5:
            body = {'name': name, 'uuid': dice.choice((provider, self._uuid())), 'parent_provider_uuid': other}
            status, said = self.both.ask('POST', '/resource_providers', body)
        else:
            body = {'name': name} if dice.random() < 0.3 else {'name': name, 'parent_provider_uuid': other}
            status, said = self.both.ask('PUT', url, body)
        code = said[0][1] if status >= 400 else ''
        self.counts[f'a provider changed: {status} {code}'.strip()] += 1
        if dice.random() < 0.5:
            self.find()

    def change_names(self):
        dice = self.dice
        provider = dice.choice(self.providers)
        traits = dice.sample((*TRAITS, 'CUSTOM_NONE', SHARING), dice.randint(0, 2))
        status, _said = self.ask_changed(provider, 'traits', {'traits': traits}, dice.choice((0, 0, 0, 1)))
        self.counts[f'traits answered {status}'] += 1
        name = dice.choice(('CUSTOM_GPU', 'CUSTOM_NEW', 'VCPU', 'CUSTOM_small'))
        self.both.ask('PUT', f'/{dice.choice(("resource_classes", "traits"))}/{name}')

    # --- reads of the fake -------------------------------------------------------------------------------------------

    def _uuid(self):
        return str(uuid.UUID(int=self.dice.getrandbits(128), version=4))

    def _held(self, consumer):
        found = self.both.look(f'/allocations/{consumer}')['allocations']
        return {one: entry['resources'] for one, entry in found.items()}

    def _known(self, consumer):
        return self.both.look(f'/allocations/{consumer}').get('consumer_generation')

    def _exists(self, consumer):
        return consumer in self.both.fake._consumers._consumers

    def _orphan(self, consumer):
        return self._exists(consumer) and self._known(consumer) is None

    def _room(self, provider, name):
        found = self.both.fake._providers[provider]
        return found.capacity(name) - found.used.get(name, 0)

    def _breaks_a_unit(self, wanted):
        providers = self.both.fake._providers
        return any(
            one in providers and name in providers[one].inventory and not providers[one].takes(name, amount)
            for one, resources in wanted.items()
            for name, amount in resources.items()
        )

    def _over_capacity(self):
        found = self.both.fake._providers.values()
        return {(one.uuid, name) for one in found for name, used in one.used.items() if used > one.capacity(name)}
