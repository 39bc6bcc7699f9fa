# SPDX-License-Identifier: Apache-2.0

"""The flavors that guests have or can be resized to, and their extra specs.

A flavor's id is its name. The flavors of ``migrator-manage flavor`` are public. Each guest has its own flavor, too:
administrators get the flavors of all guests, and other users those of their project's guests. If a guest's flavor has
the name of a public one, the latter is listed.
"""

from __future__ import annotations

import operator
from typing import Any

import webob

from migrator import exception
from migrator.api import common, schemas
from migrator.api.handlers import servers
from migrator.api.policies.nova import EXTRA_SPEC, EXTRA_SPECS
from migrator.api.request import Request, answer
from migrator.api.schemas import flavors
from migrator.objects import Flavor, remedies


def index(request: Request) -> webob.Response:
    """List the flavors by their ids."""
    found, further = _list(request)
    return answer({'flavors': [_basic(request, flavor) for flavor in found]} | further)


def detail(request: Request) -> webob.Response:
    """List the flavors with details."""
    found, further = _list(request)
    shows_specs = _shows_specs(request)
    return answer({'flavors': [_view(request, flavor, shows_specs) for flavor in found]} | further)


def show(request: Request, flavor_id: str) -> webob.Response:
    """Show one flavor."""
    flavor = find(request, flavor_id)
    return answer({'flavor': _view(request, flavor, _shows_specs(request))})


def list_extra_specs(request: Request, flavor_id: str) -> webob.Response:
    """List the extra specs of a flavor."""
    request.authorize(EXTRA_SPECS)
    return answer({'extra_specs': find(request, flavor_id).extra_specs})


def show_extra_spec(request: Request, flavor_id: str, key: str) -> webob.Response:
    """Show one extra spec of a flavor."""
    request.authorize(EXTRA_SPEC)
    specs = find(request, flavor_id).extra_specs
    if key not in specs:
        raise exception.NotFound(f'Flavor {flavor_id} has no extra specs with key {key}.')
    return answer({key: specs[key]})


def find(request: Request, flavor_id: str) -> Flavor:
    """Return the flavor with an id.

    :raises migrator.exception.NotFound: it is not public, and no guest that the caller may see has it.
    """
    for flavor in _all(request):
        if flavor.name == flavor_id:
            return flavor
    raise exception.NotFound(
        f'Flavor {flavor_id} could not be found: use one that GET /flavors lists. '
        f'{remedies.offer(remedies.Kind.CREATE_FLAVOR)}'
    )


def _all(request: Request) -> list[Flavor]:
    project = None if request.context.is_admin else request.context.project_id or ''
    database = request.services.database
    by_name = {flavor.name: flavor for flavor in (*database.instances.flavors(project), *database.flavors.list())}
    return [by_name[name] for name in sorted(by_name)]


def _list(request: Request) -> tuple[list[Flavor], dict[str, Any]]:
    """Return one page of the flavors, and the link to the next page."""
    given = request.given
    found = _all(request) if _lists_public(request, given) else []
    for name, amount in (('minRam', 'memory_mb'), ('minDisk', 'root_gb')):
        if name in given:
            least = _number(name, given[name])
            found = [flavor for flavor in found if getattr(flavor, amount) >= least]
    if 'name' in given:
        pattern = servers.safe_pattern('name', given['name'])
        found = [flavor for flavor in found if pattern.search(flavor.name)]
    attribute = flavors.SORT_KEYS[given.get('sort_key', 'flavorid')]
    if attribute is not None:
        found.sort(key=operator.attrgetter(attribute), reverse=given.get('sort_dir') == 'desc')
    size = common.page_size(request)
    found = common.after(given.get('marker'), found, 'name')[:size]
    return found, common.next_link(request, 'flavors_links', size, [flavor.name for flavor in found])


def _lists_public(request: Request, given: dict[str, str]) -> bool:
    """Return whether the list has the public flavors, which all flavors are.

    As in nova, only an administrator may choose.
    """
    wanted = given.get('is_public', 'none')
    if not request.context.is_admin or wanted.lower() == 'none':
        return True
    try:
        return schemas.boolean(wanted)
    except ValueError:
        detail = 'Use true, false or none.'
        raise exception.ValidationError(path='is_public', value=wanted, detail=detail) from None


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise exception.ValidationError(path=name, value=text, detail='Use a whole number.') from None


def _shows_specs(request: Request) -> bool:
    return request.since(61) and request.can(EXTRA_SPECS)


def _basic(request: Request, flavor: Flavor) -> dict[str, Any]:
    view = {'id': flavor.name, 'name': flavor.name, 'links': common.links(request, f'flavors/{flavor.name}')}
    return view | {'description': None} if request.since(55) else view


def _view(request: Request, flavor: Flavor, shows_specs: bool) -> dict[str, Any]:
    view = _basic(request, flavor) | {
        'ram': flavor.memory_mb,
        'vcpus': flavor.vcpus,
        'disk': flavor.root_gb,
        'OS-FLV-EXT-DATA:ephemeral': flavor.ephemeral_gb,
        'swap': flavor.swap or (0 if request.since(75) else ''),
        'os-flavor-access:is_public': True,
    }
    if not request.since(102):
        view |= {'OS-FLV-DISABLED:disabled': False, 'rxtx_factor': 1.0}
    return view | {'extra_specs': flavor.extra_specs} if shows_specs else view
