# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import dataclasses
import datetime
import enum
import json
from typing import Any

import pytest

from migrator.objects import (
    ComputeNode,
    Drain,
    Flavor,
    Instance,
    Member,
    Migration,
    ProviderInventory,
    base,
    protocol,
    service,
)


class Colour(enum.StrEnum):
    RED = 'red'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Thing(base.Versioned):
    name: str
    size: int = 3
    parts: list[Any] = dataclasses.field(default_factory=list)


GUEST = protocol.Guest(instance_uuid='i', state='running', job=True)
REPORT = protocol.Report(
    migration_uuid='m', host='h', boot_id='b', step='s', epoch=2, state='done',
    result=protocol.LiveMigrateData(source={'a': 1}),
)  # fmt: skip
COMMAND = protocol.Command(
    migration_uuid='m', instance_uuid='i', step='s', epoch=1, owner='o', reply_to='r', boot_id='b'
)
INSTANCE = Instance(
    uuid='i', name='n', project_id='p', user_id='u', host='h', node='h',
    flavor=Flavor(name='small', extra_specs={'a': 'b'}),
    created_at=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
)  # fmt: skip
NODE = ComputeNode(uuid='n', host='h', node='h', providers=[ProviderInventory(uuid='p', name='p')])


@pytest.mark.parametrize(
    ('value', 'where'),
    [
        (protocol.LiveMigrateData(source={'a': [1, (2.5, None)], 'b': Colour.RED}), None),
        (protocol.LiveMigrateData(destination={'x': object()}), "destination['x'] of type object"),
        (protocol.LiveMigrateData(source={'a': [1, {'b': b'raw'}]}), "source['a'][1]['b'] of type bytes"),
        (protocol.LiveMigrateData(source={'a': (1, 2j)}), "source['a'][1] of type complex"),
        (Thing(name='t', parts=[Thing(name=Ellipsis)]), 'parts[0].name of type ellipsis'),
        (object(), 'something of type object'),
        ([object()], '[0] of type object'),
    ],
)
def test_cannot_travel_returns_place_and_type_of_the_refused_part(value, where):
    assert base.cannot_travel(value) == where
    if where is None:
        base.to_primitive(value)
    else:
        with pytest.raises(TypeError):
            base.to_primitive(value)


EVERYTHING = [
    Thing(name='a', parts=[Thing(name='b'), {'c': [1, None, True, 2.5]}]),
    GUEST,
    REPORT,
    COMMAND,
    INSTANCE,
    NODE,
    protocol.Answer(report=REPORT, seen=4),
    protocol.Observation(migration_uuid='m', host='h', boot_id='b', epoch=1, guest=GUEST, reports=[REPORT]),
    protocol.HostReport(host='h', boot_id='b', version=4, node=NODE, guests=[GUEST]),
    protocol.Assignment(command=COMMAND, role='source', instance=INSTANCE),
    service.Service(uuid='s', host='h'),
    Drain(uuid='d', host='h', destinations=['other'], deadline=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)),
    Member(instance_uuid='i', tried=['other']),
    Migration(uuid='m', instance_uuid='i', project_id='p', user_id='u', source_compute='h', source_node='h'),
]


class TestRoundTrip:
    @pytest.mark.parametrize('thing', EVERYTHING, ids=lambda thing: type(thing).__name__)
    def test_an_object_survives_the_wire(self, thing: base.Versioned) -> None:
        wire = json.loads(json.dumps(thing.to_primitive()))
        assert base.from_primitive(wire) == thing
        assert type(thing).from_primitive(wire) == thing

    def test_every_registered_object_is_in_this_list(self) -> None:
        tried = {type(thing).__name__ for thing in EVERYTHING}
        inside = {'Flavor', 'ProviderInventory', 'LiveMigrateData'}
        ours = {name for name, cls in base._REGISTRY.items() if cls.__module__.startswith('migrator.objects')}
        assert ours <= tried | inside

    def test_times_keep_their_zone_and_enumerations_become_their_text(self) -> None:
        moment = datetime.datetime(2026, 1, 1, 12, 30, 0, 5, tzinfo=datetime.UTC)
        assert base.from_primitive(base.to_primitive({'at': moment, 'colour': Colour.RED})) == {
            'at': moment,
            'colour': 'red',
        }

    def test_tuples_and_sets_become_lists_and_keys_become_text(self) -> None:
        assert base.to_primitive({1: (1, 2), 'x': frozenset({3})}) == {'1': [1, 2], 'x': [3]}

    def test_refused_value_raises_type_error_with_its_type(self) -> None:
        with pytest.raises(TypeError) as caught:
            base.to_primitive({'a': object()})
        assert 'object' in str(caught.value)

    def test_plain_dict_with_similar_keys_stays_a_dict(self) -> None:
        for plain in ({'object': 'Thing'}, {'time': 'x', 'zone': 'y'}, {}):
            assert base.from_primitive(plain) == plain


class TestVersions:
    def wire(self, **changes: Any) -> dict[str, Any]:
        return {**Thing(name='a').to_primitive(), **changes}

    def test_unknown_field_is_ignored(self) -> None:
        assert Thing.from_primitive(self.wire(data={'name': 'a', 'weight': 7})) == Thing(name='a')

    def test_missing_field_has_its_default(self) -> None:
        assert Thing.from_primitive(self.wire(data={'name': 'a'})).size == 3

    def test_missing_field_without_default_raises(self) -> None:
        with pytest.raises(TypeError):
            Thing.from_primitive(self.wire(data={}))

    def test_later_minor_version_is_read_and_other_major_version_refused(self) -> None:
        assert Thing.from_primitive(self.wire(version='1.9')) == Thing(name='a')
        for version in ('2.0', '0.9', None):
            with pytest.raises(ValueError) as caught:
                Thing.from_primitive(self.wire(version=version))
            assert 'not compatible' in str(caught.value)

    def test_primitive_of_another_object_is_refused_with_both_names(self) -> None:
        with pytest.raises(ValueError) as caught:
            Thing.from_primitive(GUEST.to_primitive())
        assert 'Guest' in str(caught.value)
        assert 'Thing' in str(caught.value)


class TestFrozen:
    def test_replace_returns_a_copy_and_assignment_raises(self) -> None:
        thing = Thing(name='a')
        assert thing.replace(size=4) == Thing(name='a', size=4)
        assert thing.size == 3
        with pytest.raises(dataclasses.FrozenInstanceError):
            thing.size = 5
