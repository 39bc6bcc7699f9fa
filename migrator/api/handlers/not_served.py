# SPDX-License-Identifier: Apache-2.0

"""The URLs and actions of nova's compute API that migrator does not serve. It answers each with 501."""

from __future__ import annotations

from typing import Any, NoReturn

import webob.exc

from migrator.api.request import Request

#: Path and methods, including those that nova has removed and answers with 410.
_URLS = """
/extensions GET
/extensions/{id} GET
/flavors POST
/flavors/{id} PUT DELETE
/flavors/{id}/action POST
/flavors/{id}/os-extra_specs POST
/flavors/{id}/os-extra_specs/{key} PUT DELETE
/flavors/{id}/os-flavor-access GET
/images GET
/images/detail GET
/images/{id} GET DELETE
/images/{id}/metadata GET POST PUT
/images/{id}/metadata/{key} GET PUT DELETE
/limits GET
/os-agents GET POST
/os-agents/{id} PUT DELETE
/os-aggregates POST
/os-aggregates/{id} GET PUT DELETE
/os-aggregates/{id}/action POST
/os-aggregates/{id}/images POST
/os-assisted-volume-snapshots POST
/os-assisted-volume-snapshots/{id} DELETE
/os-baremetal-nodes GET POST
/os-baremetal-nodes/{id} GET DELETE
/os-baremetal-nodes/{id}/action POST
/os-cells GET POST
/os-cells/sync_instances POST
/os-cells/{id} GET PUT DELETE
/os-cells/{id}/capacities GET
/os-certificates POST
/os-certificates/{id} GET
/os-cloudpipe GET POST
/os-cloudpipe/{id} PUT
/os-console-auth-tokens/{id} GET
/os-fixed-ips/{id} GET
/os-fixed-ips/{id}/action POST
/os-floating-ip-dns GET
/os-floating-ip-dns/{id} PUT DELETE
/os-floating-ip-dns/{id}/entries/{name} GET PUT DELETE
/os-floating-ip-pools GET
/os-floating-ips GET POST
/os-floating-ips/{id} GET DELETE
/os-floating-ips-bulk GET POST
/os-floating-ips-bulk/{id} GET PUT
/os-fping GET
/os-fping/{id} GET
/os-hosts GET
/os-hosts/{id} GET PUT
/os-hosts/{id}/reboot GET
/os-hosts/{id}/shutdown GET
/os-hosts/{id}/startup GET
/os-instance_usage_audit_log GET
/os-instance_usage_audit_log/{id} GET
/os-keypairs GET POST
/os-keypairs/{id} GET DELETE
/os-networks GET POST
/os-networks/add POST
/os-networks/{id} GET DELETE
/os-networks/{id}/action POST
/os-quota-class-sets/{id} GET PUT
/os-quota-sets/{id} GET PUT DELETE
/os-quota-sets/{id}/detail GET
/os-quota-sets/{id}/defaults GET
/os-security-group-default-rules GET POST
/os-security-group-default-rules/{id} GET DELETE
/os-security-group-rules POST
/os-security-group-rules/{id} DELETE
/os-security-groups GET POST
/os-security-groups/{id} GET PUT DELETE
/os-server-external-events POST
/os-server-groups POST
/os-server-groups/{id} DELETE
/os-simple-tenant-usage GET
/os-simple-tenant-usage/{id} GET
/os-snapshots GET POST
/os-snapshots/detail GET
/os-snapshots/{id} GET DELETE
/os-tenant-networks GET POST
/os-tenant-networks/{id} GET DELETE
/os-volumes GET POST
/os-volumes/detail GET
/os-volumes/{id} GET DELETE
/os-volumes_boot GET POST
/os-volumes_boot/detail GET
/os-volumes_boot/{id} GET PUT DELETE
/os-volumes_boot/{id}/action POST
/servers POST
/servers/{id} PUT DELETE
/servers/{id}/consoles GET POST
/servers/{id}/consoles/{console} GET DELETE
/servers/{id}/ips GET
/servers/{id}/ips/{label} GET
/servers/{id}/metadata GET POST PUT
/servers/{id}/metadata/{key} GET PUT DELETE
/servers/{id}/os-interface GET POST
/servers/{id}/os-interface/{port} GET DELETE
/servers/{id}/os-security-groups GET
/servers/{id}/os-server-password GET DELETE
/servers/{id}/os-virtual-interfaces GET
/servers/{id}/os-volume_attachments GET POST
/servers/{id}/os-volume_attachments/{volume} GET PUT DELETE
/servers/{id}/remote-consoles POST
/servers/{id}/shares GET POST
/servers/{id}/shares/{share} GET DELETE
/servers/{id}/tags GET PUT DELETE
/servers/{id}/tags/{tag} GET PUT DELETE
/servers/{id}/topology GET
/versions/{id} GET
"""

#: The method and path of each URL.
URLS = tuple((method, path) for path, *methods in map(str.split, _URLS.split('\n')[1:-1]) for method in methods)

_ACTIONS = """
addFixedIp addFloatingIp addSecurityGroup changePassword createBackup createImage
forceDelete injectNetworkInfo os-getConsoleOutput os-getRDPConsole os-getSPICEConsole
os-getSerialConsole os-getVNCConsole os-start os-stop pause reboot rebuild removeFixedIp
removeFloatingIp removeSecurityGroup rescue resetNetwork restore resume shelve
shelveOffload suspend trigger_crash_dump unpause unrescue unshelve
"""

#: The keys of POST /servers/{id}/action.
ACTIONS = frozenset(_ACTIONS.split())


def refuse(request: Request, **ids: Any) -> NoReturn:
    """Refuse a URL of nova.

    :param ids: the variable parts of the URL.
    :raises webob.exc.HTTPNotImplemented: always.
    """
    refuse_what(f'{request.method} {request.path_info}')


def refuse_what(what: str) -> NoReturn:
    """Refuse a function of nova.

    :raises webob.exc.HTTPNotImplemented: always.
    """
    raise webob.exc.HTTPNotImplemented(
        f'migrator does not serve {what}: it only moves servers. For the rest of the compute API, use nova.'
    )
