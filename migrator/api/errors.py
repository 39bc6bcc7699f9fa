# SPDX-License-Identifier: Apache-2.0

"""Errors in Nova's form: ``{"badRequest": {"code": 400, "message": ...}}``.

The caller receives the full message of an error in the request. The details of an internal error go only to the log,
because they may contain addresses, SQL statements and host names. The caller receives the request id to find them.
"""

from __future__ import annotations

import webob
import webob.exc
from oslo_log import log as logging

from migrator import exception
from migrator.api.request import Request, answer
from migrator.objects import base

LOG = logging.getLogger(__name__)

#: HTTP status -> nova's name for it. Any other status is a computeFault.
FAULTS = {
    400: 'badRequest',
    401: 'unauthorized',
    403: 'forbidden',
    404: 'itemNotFound',
    405: 'badMethod',
    409: 'conflictingRequest',
    413: 'overLimit',
    415: 'badMediaType',
    429: 'overLimit',
    501: 'notImplemented',
    503: 'serviceUnavailable',
}


def body(code: int, message: str) -> webob.Response:
    """Return a response with nova's error body."""
    fault = {'code': code, 'message': message}
    response = answer({FAULTS.get(code, 'computeFault'): fault}, code)
    if code == 401:
        response.headers['WWW-Authenticate'] = 'Keystone'
    if code == 503:
        response.headers['Retry-After'] = '5'
    return response


def of(error: Exception, request: Request) -> webob.Response:
    """Return the response to an error.

    :param request: the request that caused it, for the log.
    """
    if isinstance(error, webob.exc.HTTPException):
        response = body(error.status_int, error.detail or error.explanation)
        response.allow = error.allow
        return response
    is_outage = isinstance(error, exception.ServiceUnreachable)
    if isinstance(error, exception.MigratorException) and error.code != 500 and not is_outage:
        return body(error.code, error.message)
    values = {
        'method': base.printable(request.method),
        'path': base.printable(request.environ['PATH_INFO']),
        'request': request.request_id,
        'error': error,  # the exception itself: the log recognizes an outage by its class
    }
    if isinstance(error, exception.ServiceUnreachable):
        LOG.warning('Service unreachable for %(method)s %(path)s of request %(request)s: %(error)s', values)
        what = 'A service that is needed is not reachable'
        if isinstance(error, exception.DatabaseUnreachable):
            is_there = isinstance(error, exception.DatabaseReadOnly)
            what = f'The database is {"read-only" if is_there else "not reachable"}'
        return body(503, f'{what} at present: try again. ({request.request_id})')
    values['error'] = base.printable(str(error))
    LOG.error('Unexpected error in %(method)s %(path)s of request %(request)s: %(error)s', values, exc_info=error)
    return body(500, f'Unexpected error: the log of the API has its details under {request.request_id}.')
