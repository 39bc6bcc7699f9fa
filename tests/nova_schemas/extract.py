# SPDX-License-Identifier: Apache-2.0

"""Print as JSON the URLs of an installed nova, what their schemas accept, and how the replies look.

Run by the interpreter of nova's virtual environment, from the root of this tree::

    .venv-nova/bin/python -m tests.nova_schemas.extract > tests/nova_schemas/nova.json
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from nova import exception
from nova.api.openstack import api_version_request
from nova.api.openstack.compute import routes, versions
from nova.api.validation import validators

from tests.nova_schemas import facts

_ACTION = 'POST /servers/{}/action '

#: The calls that migrator serves, or may serve some day. A variable part of a path is ``{}``. The first two serve the
#: versions, at ``/`` and ``/v2.1``.
CALLS = (
    'Versions.index',
    'VersionsV2.index',
    'GET /flavors',
    'GET /flavors/detail',
    'GET /flavors/{}',
    'GET /flavors/{}/os-extra_specs',
    'GET /flavors/{}/os-extra_specs/{}',
    'GET /os-aggregates',
    'GET /os-availability-zone',
    'GET /os-availability-zone/detail',
    'GET /os-hypervisors',
    'GET /os-hypervisors/detail',
    'GET /os-hypervisors/statistics',
    'GET /os-hypervisors/{}',
    'GET /os-hypervisors/{}/search',
    'GET /os-hypervisors/{}/servers',
    'GET /os-hypervisors/{}/uptime',
    'GET /os-migrations',
    'GET /os-server-groups',
    'GET /os-server-groups/{}',
    'GET /os-services',
    'PUT /os-services/{}',
    'DELETE /os-services/{}',
    'GET /servers',
    'GET /servers/detail',
    'GET /servers/{}',
    'GET /servers/{}/diagnostics',
    'GET /servers/{}/migrations',
    'GET /servers/{}/migrations/{}',
    'DELETE /servers/{}/migrations/{}',
    'POST /servers/{}/migrations/{}/action force_complete',
    'GET /servers/{}/os-instance-actions',
    'GET /servers/{}/os-instance-actions/{}',
    *(
        _ACTION + action
        for action in (
            'confirmResize', 'evacuate', 'lock', 'migrate', 'os-migrateLive', 'os-resetState', 'resize', 'revertResize',
            'unlock',
        )
    ),
)  # fmt: skip

LATEST = api_version_request.max_api_version().ver_minor


def main() -> None:
    """Print the facts."""
    found = {
        'nova': importlib.metadata.version('nova'),
        'maximum': LATEST,
        'calls': {name: dict(_of(method)) for name, method in _methods().items()},
        'urls': dict(_urls()),
    }
    sys.stdout.write(_text(found) + '\n')


def _methods() -> dict[str, Any]:
    """Return the function of nova's that serves each call."""
    found = {one.__qualname__: one for one in (versions.Versions.index, versions.VersionsV2.index)}
    for path, methods in routes.ROUTE_LIST:
        if isinstance(methods, str):
            continue
        for method, (make_controller, name) in methods.items():
            call = f'{method} {re.sub("{[^}]*}", "{}", path)}'
            main_controller, others = make_controller.args
            if call in CALLS:
                found[call] = getattr(main_controller, name)
            for controller in (main_controller, *others):
                for action, function in controller.wsgi_actions.items():
                    if (named := f'{call} {action}') in CALLS:
                        found[named] = getattr(controller, function)
    assert set(found) == set(CALLS), set(CALLS) - set(found)
    return found


def _urls() -> Iterator[tuple[str, str]]:
    """Yield each URL, or URL and action, with its methods, also those to which nova only replies 410."""
    for path, methods in routes.ROUTE_LIST:
        if isinstance(methods, str):
            continue
        path = re.sub('{[^}]*}', '{}', path)
        yield path, ' '.join(sorted(methods))
        if path.endswith('/action'):
            for controllers, _ in methods.values():
                main_controller, others = controllers.args
                for controller in (main_controller, *others):
                    yield from ((f'{path} {action}', 'POST') for action in controller.wsgi_actions)


def _of(method: Any) -> Iterator[tuple[str, Any]]:
    yield 'first', _minor(getattr(method, 'min_version', None)) or 1
    yield 'last', _minor(getattr(method, 'max_version', None))
    if hasattr(method, 'wsgi_codes'):
        codes = method.wsgi_codes._codes
        yield 'status', {str(_minor(first) or 1): code for code, first, _last in codes}
    for kind, attribute, describe in (
        ('query', 'request_query_schemas', lambda schema: facts.of_query(schema, _accepts)),
        ('body', 'request_body_schemas', lambda schema: facts.of_body(schema, _accepts)),
        ('response', 'response_body_schemas', facts.of_response),
    ):
        if hasattr(method, attribute):
            yield kind, facts.deltas(_by_version(getattr(method, attribute), describe))


def _by_version(schemas: Any, describe: Callable[[Any], Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for schema, first, _last in schemas._schemas:
        described = describe(schema)
        if not found or described != list(found.values())[-1]:
            found[str(1 if first.is_null() else max(first.ver_minor, 1))] = described
    return found


_VALIDATORS: dict[int, tuple[facts.Schema, Any]] = {}


def _accepts(schema: facts.Schema, document: Any) -> bool:
    if id(schema) not in _VALIDATORS:
        _VALIDATORS[id(schema)] = (schema, validators._SchemaValidator(schema))
    try:
        _VALIDATORS[id(schema)][1].validate(document)
    except exception.ValidationError:
        return False
    return True


def _text(document: Any, indent: str = '') -> str:
    """Return a document as JSON, with a line for each name of an object that does not fit on one."""
    line = json.dumps(document, sort_keys=True, ensure_ascii=False)
    if len(indent) + len(line) <= 100 or not isinstance(document, dict):
        return line
    deeper = indent + ' '
    parts = [
        f'{json.dumps(name, ensure_ascii=False)}: {_text(part, deeper)}' for name, part in sorted(document.items())
    ]
    return f'{{\n{deeper}' + f',\n{deeper}'.join(parts) + f'\n{indent}}}'


def _minor(version: str | None) -> int | None:
    return None if version is None else int(version.partition('.')[2])


if __name__ == '__main__':
    main()
