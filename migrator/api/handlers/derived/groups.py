# SPDX-License-Identifier: Apache-2.0

"""Host aggregates and server groups: always empty lists, which clients request beside what they show."""

from __future__ import annotations

from typing import NoReturn

import webob

from migrator import exception
from migrator.api.policies.nova import AGGREGATES, SERVER_GROUPS, SERVER_GROUPS_ALL
from migrator.api.request import Request, answer


def list_aggregates(request: Request) -> webob.Response:
    """Return an empty list of host aggregates."""
    request.authorize(AGGREGATES)
    return answer({'aggregates': []})


def list_server_groups(request: Request) -> webob.Response:
    """Return an empty list of server groups."""
    given = request.given
    request.authorize(SERVER_GROUPS)
    if 'all_projects' in given and request.context.is_admin:  # as in nova, other users get their own groups
        request.authorize(SERVER_GROUPS_ALL)
    return answer({'server_groups': []})


def show_server_group(request: Request, server_group_id: str) -> NoReturn:
    """Reply with 404, because there are no server groups.

    :raises migrator.exception.NotFound: always.
    """
    raise exception.NotFound(f'Instance group {server_group_id} could not be found.')
