# SPDX-License-Identifier: Apache-2.0

"""The OpenAPI document is the checked-in one, and each URL declares the schemas that it applies."""

import ast
import inspect
import json
import pathlib
import sys

import jsonschema
import pytest

from migrator.api import openapi, routes
from migrator.api.handlers import server_actions
from migrator.api.own.routes import OWN

KEPT = pathlib.Path(__file__).resolve().parents[3] / 'doc' / 'source' / '_static' / 'openapi.json'


def test_the_document_in_the_tree_is_the_present_one():
    stale = KEPT.read_text(encoding='utf-8') != openapi.text()
    assert not stale, 'a URL or a schema has changed: run make openapi, and commit doc/source/_static/openapi.json'


def test_the_document_is_served_without_a_token(world):
    response = world.ask('GET', openapi.PATH, token=None)
    assert (response.status_int, response.content_type) == (200, 'application/json')
    assert response.json == json.loads(KEPT.read_text(encoding='utf-8'))
    world.refuses(world.ask('POST', openapi.PATH), 405, 'badMethod')


def applied(handler):
    """Return the tables that a handler and its helpers give to body()."""
    names = vars(sys.modules[handler.__module__])
    functions = {node.name: node for node in ast.parse(inspect.getsource(sys.modules[handler.__module__])).body
                 if isinstance(node, ast.FunctionDef)}  # fmt: skip
    found, seen, todo = [], set(), [handler.__name__]
    while todo:
        name = todo.pop()
        seen.add(name)
        for node in ast.walk(functions[name]):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called in functions and called not in seen:
                todo.append(called)
            elif called == 'schemas.body':
                found.append(eval(ast.unparse(node.args[1]), dict(names)))  # noqa: S307 -- the name of a table
    return found


@pytest.mark.parametrize('route', [*routes.ROUTES, *OWN], ids=lambda route: f'{route.method} {route.path}')
def test_a_url_declares_the_schemas_of_bodies_that_its_handler_applies(route):
    handlers = [route.handler, *(server_actions.ACTIONS.values() if route.handler is server_actions.act else ())]
    bodies = [table for handler in handlers for table in applied(handler)]
    assert {id(table) for table in bodies} == {id(table) for table in route.bodies}


def test_each_answer_of_the_own_api_has_a_schema():
    for route in OWN:
        assert route.answers, route.path
        for schema in route.answers.values():
            jsonschema.Draft202012Validator.check_schema(schema)
