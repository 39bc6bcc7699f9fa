# SPDX-License-Identifier: Apache-2.0

"""The schemas of the answers of the Compute API allow only what nova's own schemas allow."""

import json
import pathlib
import re

import jsonschema
import pytest

from migrator.api import microversions, routes
from tests.nova_schemas import facts

ROOT = pathlib.Path(__file__).resolve().parents[4]
NOVA = json.loads((ROOT / 'tests/nova_schemas/nova.json').read_text(encoding='utf-8'))['calls']
LATEST = microversions.MAXIMUM.minor
CURRENT = [route for route in routes.ROUTES if route.since <= LATEST <= route.until]
KINDS = {'object': dict, 'array': list, 'string': str, 'integer': int, 'boolean': bool, 'null': type(None)}


def kinds(schema):
    found = schema.get('type', [*KINDS])
    found = {found} if isinstance(found, str) else {*found}
    return found | {'integer'} if 'number' in found else found


def part_of(schema, name):
    """Return the schema of a property; None: the object may not have it."""
    if name in schema.get('properties', {}):
        return schema['properties'][name]
    for pattern, part in schema.get('patternProperties', {}).items():
        if re.search(pattern, name):
            return part
    rest = schema.get('additionalProperties', True)
    return None if rest is False else ({} if rest is True else rest)


def wider(ours, theirs, path='$'):
    """Yield the places where a schema allows what another does not."""
    choices = theirs.get('oneOf') or theirs.get('anyOf')
    if choices:
        rest = {name: part for name, part in theirs.items() if name not in ('oneOf', 'anyOf')}
        tried = [[*wider(ours, rest | choice, path)] for choice in choices]
        yield from min(tried, key=len)
        return
    if not kinds(ours) <= kinds(theirs):
        yield f'{path} may be {", ".join(sorted(kinds(ours) - kinds(theirs)))}'
    allowed = theirs.get('enum', [theirs['const']] if 'const' in theirs else None)
    values = ours.get('enum', [ours['const']] if 'const' in ours else None)
    if allowed is not None and (values is None or any(value not in allowed for value in values)):
        yield f'{path} may be one of {values}, not only of {allowed}'
    if 'object' in kinds(ours):
        missing = {*theirs.get('required', ())} - {*ours.get('required', ())}
        if missing:
            yield f'{path} may lack {", ".join(sorted(missing))}'
        for name, part in ours.get('properties', {}).items():
            allowed_part = part_of(theirs, name)
            if allowed_part is None:
                yield f'{path} may have {name}'
            else:
                yield from wider(part, allowed_part, f'{path}.{name}')
        rest = ours.get('additionalProperties', True)
        if rest is True or (rest is not False and part_of(theirs, 'x') is None):
            yield f'{path} may have any property'
        elif rest is not False:
            yield from wider(rest, part_of(theirs, 'x'), f'{path}.x')
    if 'array' in kinds(ours) and ours.get('maxItems') != 0 and 'items' in theirs:
        yield from wider(ours['items'], theirs['items'], f'{path}[]')


def call_of(route):
    return f'{route.method} {re.sub("{[^}]*}", "{}", route.path)}'


@pytest.mark.parametrize('route', [one for one in CURRENT if any(one.answers.values())], ids=call_of)
def test_an_answer_may_only_be_what_nova_allows(route):
    (schema,) = route.answers.values()
    jsonschema.Draft202012Validator.check_schema(schema)
    versions = facts.whole(NOVA[call_of(route)]['response'])
    assert [*wider(schema, versions[max(first for first in versions if first <= LATEST)])] == []


def test_each_current_url_has_the_schema_of_its_answer_unless_it_always_fails():
    assert [call_of(route) for route in CURRENT if not route.answers] == ['GET /os-server-groups/{}']


@pytest.mark.parametrize(
    ('ours', 'theirs'),
    [
        ({'type': ['string', 'null']}, {'type': 'string'}),
        ({'type': 'string'}, {'type': 'string', 'enum': ['up']}),
        ({'type': 'object', 'additionalProperties': False}, {'type': 'object', 'required': ['id']}),
        ({'type': 'object', 'additionalProperties': {'type': 'integer'}},
         {'type': 'object', 'additionalProperties': False, 'patternProperties': {'.': {'type': 'string'}}}),
        ({'type': 'array', 'items': {'type': 'string'}}, {'type': 'array', 'items': {'type': 'integer'}}),
        ({'type': 'integer'}, {'anyOf': [{'type': 'string'}, {'type': 'null'}]}),
    ],
)  # fmt: skip
def test_a_schema_that_allows_more_is_found(ours, theirs):
    assert len([*wider(ours, theirs)]) == 1
