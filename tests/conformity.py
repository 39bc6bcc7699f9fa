# SPDX-License-Identifier: Apache-2.0

"""Whether an answer of the REST API is as its URL declares it."""

from __future__ import annotations

import json

import jsonschema

from migrator.api import routes

_FORMATS = jsonschema.FormatChecker(formats=('uuid',))


def fault(method: str, path: str, status: int, body: bytes) -> str:
    """Return how an answer differs from the schema of its URL, or nothing.

    :param path: with ``/migrator/v1``, or with ``/v2.1`` if the answer has the newest version.
    """
    is_own = path.startswith('/migrator/v1/')
    table = routes._COMPILED_OWN if is_own else routes._COMPILED
    below = path.partition('?')[0].removeprefix('/migrator/v1' if is_own else '/v2.1').rstrip('/')
    route = next((route for route, pattern in table if route.method == method and pattern.fullmatch(below)), None)
    if status >= 300 or route is None:
        return ''
    if status not in route.answers:
        return f'{status} is not a status of {method} {route.path}'
    schema = route.answers[status]
    if schema is None:
        return 'it has a body' if body else ''
    error = jsonschema.exceptions.best_match(
        jsonschema.Draft202012Validator(schema, format_checker=_FORMATS).iter_errors(json.loads(body))
    )
    return f'{error.json_path}: {error.message}' if error else ''
