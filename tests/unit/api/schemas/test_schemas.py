# SPDX-License-Identifier: Apache-2.0

"""The answers to documents that do not fit a schema."""

import pytest

from migrator import exception
from migrator.api import schemas
from migrator.api.schemas import flavors, queries, server_actions, server_migrations, servers, services, types

SHELF = (flavors, queries, server_actions, server_migrations, servers, services)
TABLES = [
    (f'{module.__name__.rpartition(".")[2]}.{name}', value)
    for module in SHELF
    for name, value in vars(module).items()
    if name.isupper() and isinstance(value, dict) and all(isinstance(key, int) for key in value)
]


@pytest.mark.parametrize('table', [table for _, table in TABLES], ids=[name for name, _ in TABLES])
def test_each_schema_is_valid_and_describes_the_allowed_values(table):
    import jsonschema

    def described(schema):
        if 'enum' in schema or 'pattern' in schema or 'format' in schema:
            assert 'description' in schema, schema
        for part in schema.get('properties', {}).values():
            described(part)
        if 'items' in schema:
            described(schema['items'])

    for schema in table.values():
        jsonschema.Draft202012Validator.check_schema(schema)
        described(schema)


def refusal(make_request, schema, document, version=80):
    with pytest.raises(exception.ValidationError) as caught:
        schemas.check(make_request(version=version), {1: schema}, document)
    return caught.value.message


def test_refusal_names_field_value_and_allowed_values(make_request):
    message = refusal(make_request, types.action('go', types.closed({'fast': types.BOOLEAN})), {'go': {'fast': 'very'}})
    assert message == 'Invalid input for field/attribute go.fast. Value: very. Allowed: true or false.'
    number = types.closed({'n': {'type': 'string', 'pattern': r'^[0-9]{1,9}\Z', 'description': 'a whole number'}})
    message = refusal(make_request, number, {'n': 'x'})
    assert message == 'Invalid input for field/attribute n. Value: x. Allowed: a whole number.'


def test_unknown_key_is_refused_with_the_known_keys(make_request):
    message = refusal(make_request, types.closed({'b': {}, 'a': {}}), {'c': 1}, version=25)
    assert message.startswith("Invalid input for the request. Value: {'c': 1}. ")
    assert "('c' was unexpected)" in message
    assert 'At version 2.25 these are: a, b.' in message


def test_a_long_value_is_cut(make_request):
    assert len(refusal(make_request, types.closed({'host': types.HOST}), {'host': 'x' * 100000})) < 1000


def test_the_schema_of_a_version_is_the_last_one_before_it(make_request):
    table = {1: {'const': 1}, 25: {'const': 25}, 30: {'const': 30}}
    for version, right in ((1, 1), (24, 1), (25, 25), (29, 25), (30, 30), (80, 30)):
        assert schemas.check(make_request(version=version), table, right) == {'const': right}


def test_booleans_have_the_spellings_of_nova(make_request):
    for meant, words in (
        (True, (True, 'True', 'TRUE', 'true', '1', 'ON', 'On', 'on', 'YES', 'Yes', 'yes')),
        (False, (False, 'False', 'FALSE', 'false', '0', 'OFF', 'Off', 'off', 'NO', 'No', 'no')),
    ):
        for word in words:
            schemas.check(make_request(), {1: types.BOOLEAN}, word)
            assert schemas.boolean(word) is meant
    for word in (None, 1, 0, '', 'maybe', 'y', 'tRUE', [], {}):
        assert refusal(make_request, types.BOOLEAN, word)


def test_a_time_without_a_zone_is_utc():
    assert schemas.moment('2026-01-31T13:00:00').isoformat() == '2026-01-31T13:00:00+00:00'
    assert schemas.moment('2026-01-31T14:00:00+01:00').isoformat() == '2026-01-31T13:00:00+00:00'
