# SPDX-License-Identifier: Apache-2.0

"""``/migrator/v1/ui``: a page for a browser.

Its files are served without a token, because they hold no data. In the browser, ``ui.js`` requests ``/migrator/v1``
with the token that the user enters. Whether it offers to act is in :data:`_SETTINGS`: who may act is a policy.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.resources

import webob

from migrator.api.request import Request, wrong_method
from migrator.conf.conductor import uses_nova
from migrator.objects import remedies

_SCRIPTS = ('ui', 'acts', 'api', 'attention', 'bars', 'migration', 'plan', 'rows')
#: URL -> the file in this folder, and its media type.
_FILES = {
    '/migrator/v1/ui': ('index.html', 'text/html'),
    '/migrator/v1/ui/ui.css': ('ui.css', 'text/css'),
    **{f'/migrator/v1/ui/{name}.js': (f'{name}.js', 'text/javascript') for name in _SCRIPTS},
}
#: What users type as well. The page itself has no slash at its end, since its own links are relative.
_WITH_SLASH = '/migrator/v1/ui/'
_SETTINGS = '/migrator/v1/ui/settings.json'
PATHS = frozenset([*_FILES, _WITH_SLASH, _SETTINGS])

_POLICY = {
    'default-src': "'none'",
    'script-src': "'self'",
    'style-src': "'self'",
    'connect-src': "'self'",
    'base-uri': "'none'",
    'form-action': "'none'",
    'frame-ancestors': "'none'",
    # The browser refuses to parse any text of a script as HTML.
    'require-trusted-types-for': "'script'",
    'trusted-types': "'none'",
}
_HEADERS = {
    'Content-Security-Policy': '; '.join(f'{name} {value}' for name, value in _POLICY.items()),
    'Cross-Origin-Opener-Policy': 'same-origin',
    'Cross-Origin-Resource-Policy': 'same-origin',
    'Referrer-Policy': 'no-referrer',
    'X-Content-Type-Options': 'nosniff',
    # A browser asks each time whether its copy is still the present one, so an upgrade needs no reload.
    'Cache-Control': 'no-cache',
}


def serve(request: Request) -> webob.Response:
    """Answer a request for one of :data:`PATHS`.

    :raises webob.exc.HTTPMethodNotAllowed: it is neither GET nor HEAD.
    """
    if request.method not in ('GET', 'HEAD'):
        raise wrong_method(request, ['GET'])
    if request.path_info == _WITH_SLASH:
        response = webob.Response(status=308, location=f'{request.script_name}{_WITH_SLASH.rstrip("/")}')
    elif request.path_info == _SETTINGS:
        services = request.services
        settings = {
            'acts': services.conf.api.page_acts,
            'of_nova': uses_nova(services.conf),  # its migrations are in no table of this API
            'of_services': services.drain_command == remedies.DRAINS,
            'drain_command': services.drain_command,
        }
        response = webob.Response(json_body=settings)
    else:
        name, media_type = _FILES[request.path_info]
        body, etag = _read(name)
        response = webob.Response(
            body=body, content_type=media_type, charset='UTF-8', etag=etag, conditional_response=True
        )
    response.headers.update(_HEADERS)
    return response


@functools.cache
def _read(name: str) -> tuple[bytes, str]:
    """Return a file of this folder, and its entity tag."""
    body = importlib.resources.files(__name__).joinpath(name).read_bytes()
    return body, hashlib.sha256(body).hexdigest()[:32]
