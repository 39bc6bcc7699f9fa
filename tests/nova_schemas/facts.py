# SPDX-License-Identifier: Apache-2.0

"""Descriptions of what a schema of a request accepts, found by trying values.

Only the standard library is imported, because nova's interpreter runs this too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
#: Whether a schema accepts a document.
Accepts = Callable[[Schema, Any], bool]

UUID = '5f3b1c5e-9a53-4c5e-8f5b-0c6f1d0e7a11'

#: Name -> the value that is tried for each parameter of a query.
WORDS = {
    'empty': '',
    '0': '0',
    '1': '1',
    '-1': '-1',
    '1.5': '1.5',
    '10-digits': '9' * 10,
    'word': 'abc',
    'host': 'host-1.example.org',
    'slash': 'a/b',
    'space': 'a b',
    'umlaut': 'ä',
    'paren': '(',
    'uuid': UUID,
    'time': '2026-01-31T13:00:00Z',
    'date': '2026-01-31',
    'true': 'true',
    'YES': 'YES',
    'asc': 'asc',
    'created_at': 'created_at',
    'locked': 'locked',
    'vcpus': 'vcpus',
    '255-characters': 'x' * 255,
    '256-characters': 'x' * 256,
}

#: Name -> the value that is tried for each key of a body.
VALUES = {
    'null': None,
    'true': True,
    '"true"': 'true',
    '"YES"': 'YES',
    '"maybe"': 'maybe',
    '"auto"': 'auto',
    '"active"': 'active',
    '"enabled"': 'enabled',
    '0': 0,
    '1': 1,
    '"1"': '1',
    '1.5': 1.5,
    '""': '',
    '"host"': 'host-1.example.org',
    '"slash"': 'a/b',
    '"space"': 'a b',
    '"line-break"': 'a\n',
    '"umlaut"': 'ä',
    '"uuid"': UUID,
    '"255-characters"': 'x' * 255,
    '"256-characters"': 'x' * 256,
    '[]': [],
    '["word"]': ['abc'],
    '{}': {},
    '{"x": 1}': {'x': 1},
}


def of_query(schema: Schema | None, accepts: Accepts) -> dict[str, Any]:
    """Return what a schema accepts of a query: each parameter once and twice, and unknown ones.

    :param schema: None: nothing is checked.
    """
    schema = schema or {}
    known: dict[str, Any] = {}  # many parameters have equal schemas
    for parameter in schema.get('properties', {}).values():
        if repr(parameter) not in known:
            once = [name for name, word in WORDS.items() if accepts(parameter, [word])]
            twice = accepts(parameter, [WORDS[name] for name in once[:1]] * 2)
            known[repr(parameter)] = {'values': _listed(once, WORDS), 'twice': twice}
    unknown = accepts(schema, {'no-such-parameter': ['1']})
    return {
        'keys': {name: known[repr(parameter)] for name, parameter in schema.get('properties', {}).items()},
        'unknown': 'ignored' if unknown else 'refused',
    }


def of_body(schema: Schema, accepts: Accepts) -> dict[str, Any]:
    """Return what a schema accepts of a body or a part of it: values, and each key of an object."""
    values = [name for name, value in VALUES.items() if accepts(schema, value)]
    found: dict[str, Any] = {'values': _listed(values, VALUES)}
    if schema.get('properties'):
        found['required'] = sorted(schema.get('required', []))
        found['unknown'] = 'refused' if schema.get('additionalProperties', True) is False else 'ignored'
        found['keys'] = {name: of_body(part, accepts) for name, part in sorted(schema['properties'].items())}
    return found


def _listed(names: list[str], every: dict[str, Any]) -> str:
    if 2 * len(names) < len(every):
        return ' '.join(names)
    return ' '.join(['all but', *(name for name in every if name not in names)])


def names(listed: str, every: dict[str, Any]) -> list[str]:
    """Return the names of the values that a description lists."""
    found = listed.removeprefix('all but').split()
    return [name for name in every if name not in found] if listed.startswith('all but') else found


#: The keywords of a schema that accept everything.
_REMARKS = ('default', 'description')


def of_response(schema: Any) -> Any:
    """Return a schema without what does not decide whether it accepts a document."""
    if isinstance(schema, dict):
        # a property may have such a name
        return {
            name: of_response(part) for name, part in schema.items() if name not in _REMARKS or isinstance(part, dict)
        }
    return [of_response(part) for part in schema] if isinstance(schema, list) else schema


# --- the file: each version but the first holds only what it changes --------------------------------------------------


def deltas(versions: dict[str, Any]) -> dict[str, Any]:
    """Return the first of some versions, and for each further one the JSON merge patch (RFC 7396).

    :param versions: documents by their first minor version.
    """
    found, previous = {}, None
    for first, document in versions.items():
        found[first] = document if previous is None else _patch(previous, document)
        previous = document
    return found


def whole(patches: dict[str, Any]) -> dict[int, Any]:
    """Return the documents of :func:`deltas` by their first minor version."""
    found: dict[int, Any] = {}
    for first, patch in sorted(patches.items(), key=lambda item: int(item[0])):
        found[int(first)] = _patched(found[max(found)], patch) if found else patch
    return found


def _patch(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    patch = dict.fromkeys(old.keys() - new.keys())
    return patch | {name: _patch(old.get(name), part) for name, part in new.items() if old.get(name) != part}


def _patched(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    kept = dict(old) if isinstance(old, dict) else {}
    for name, part in patch.items():
        if part is None:
            kept.pop(name, None)
        else:
            kept[name] = _patched(kept.get(name), part)
    return kept
