# SPDX-License-Identifier: Apache-2.0

"""Version discovery: the only documents that need no token."""

from __future__ import annotations

from typing import Any

import webob

from migrator.api import microversions
from migrator.api.request import Request, answer

PATHS = ('/', '', '/v2.1', '/v2.1/')


def discover(request: Request) -> webob.Response:
    """Return the versions of the compute API."""
    if request.path_info.strip('/'):
        return answer({'version': _v2_1(request) | {'media-types': [_MEDIA_TYPE]}})
    return answer({'versions': [_v2_1(request)]})


_MEDIA_TYPE = {'base': 'application/json', 'type': 'application/vnd.openstack.compute+json;version=2.1'}


def _v2_1(request: Request) -> dict[str, Any]:
    return {
        'id': 'v2.1',
        'status': 'CURRENT',
        'version': str(microversions.MAXIMUM),
        'min_version': str(microversions.MINIMUM),
        'updated': '2013-07-23T11:33:21Z',
        'links': [{'rel': 'self', 'href': f'{request.application_url}/v2.1/'}],
    }
