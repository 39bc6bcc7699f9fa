# SPDX-License-Identifier: Apache-2.0

"""Errors in nova's form."""

import inspect

import pytest
import webob.exc

from migrator import exception
from migrator.api import errors


@pytest.mark.parametrize(
    ('code', 'fault'),
    [
        (400, 'badRequest'), (401, 'unauthorized'), (403, 'forbidden'), (404, 'itemNotFound'), (405, 'badMethod'),
        (406, 'computeFault'), (409, 'conflictingRequest'), (413, 'overLimit'), (415, 'badMediaType'),
        (500, 'computeFault'), (501, 'notImplemented'), (503, 'serviceUnavailable'),
    ],
)  # fmt: skip
def test_each_code_has_novas_name(code, fault):
    response = errors.body(code, 'why')
    assert response.status_int == code
    assert response.json == {fault: {'code': code, 'message': 'why'}}
    assert response.content_type == 'application/json'


OURS = sorted(
    (cls for _, cls in inspect.getmembers(exception, inspect.isclass) if issubclass(cls, exception.MigratorException)),
    key=lambda cls: cls.__name__,
)


@pytest.mark.parametrize('cls', OURS, ids=lambda cls: cls.__name__)
def test_request_error_is_returned_and_internal_error_is_hidden(make_request, cls):
    response = errors.of(cls('the very reason'), make_request())
    assert response.status_int == cls.code
    is_hidden = cls.code == 500 or issubclass(cls, exception.ServiceUnreachable)
    assert ('the very reason' in response.text) != is_hidden


def test_an_error_of_webob_keeps_its_code_and_explanation(make_request):
    assert errors.of(webob.exc.HTTPNotImplemented('not known'), make_request()).json == {
        'notImplemented': {'code': 501, 'message': 'not known'}
    }
    assert errors.of(webob.exc.HTTPNotFound(), make_request()).status_int == 404


@pytest.mark.parametrize(
    'error', [exception.RPCTimeout(target='a', method='b', timeout=1), RuntimeError('a\nCRITICAL')]
)
def test_line_break_in_path_method_or_error_makes_no_second_log_line(make_request, caplog, error):
    request = make_request('/v2.1/a%0ACRITICAL:%20all%20is%20lost%1b[2J')
    request.method = 'GET\nCRITICAL'
    errors.of(error, request)
    (record,) = caplog.records
    message = record.getMessage()
    assert message.isprintable()
    assert '/v2.1/a\\nCRITICAL: all is lost\\x1b[2J' in message
    assert 'GET\\nCRITICAL' in message
