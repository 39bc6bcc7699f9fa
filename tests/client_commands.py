# SPDX-License-Identifier: Apache-2.0

"""Commands of python-novaclient and python-openstackclient, and what each of them shows.

They run against an API in the test's process (``tests/unit/api/test_clients.py``). The reads also run against an API
behind a real Keystone (``tests/real/test_keystone.py``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

#: The client; its words; a regular expression that its output has. The names in braces are those of :func:`wrong`.
Rows = Iterable[tuple[str, str, str]]
READS = (
    ('nova', 'list --all-tenants', '{guest} .*ACTIVE'),
    ('nova', 'hypervisor-list', '{hypervisor} .* up '),
    ('nova', 'hypervisor-show {hypervisor}', 'service_host .* {host} '),
    ('nova', 'hypervisor-stats', 'running_vms .* [0-9]'),
    ('nova', '--os-compute-api-version 2.50 hypervisor-servers {host}', '{guest} '),
    ('nova', 'service-list', '{service} .* {host} .* enabled .* up '),
    ('nova', 'migration-list', '{uuid} .*running'),
    ('nova', 'server-migration-list {moving}', '{migration} .*running'),
    ('nova', 'server-migration-show {moving} {migration}', 'uuid .* {uuid} '),
    ('nova', 'instance-action-list {moving}', 'live-migration .* {request} '),
    ('nova', 'instance-action {moving} {request}', 'conductor_live_migrate_instance'),
    ('nova', 'availability-zone-list', r'nova .* available(.|\n)*- {host} '),
    ('nova', 'flavor-list', ' {flavor} '),
    ('nova', 'flavor-show {flavor}', 'name .* {flavor} '),
    ('nova', 'server-group-list', 'Members'),
    ('nova', 'version-list', r'v2\.1 .* 2\.104 '),
    ('openstack', 'hypervisor stats show', 'running_vms .* [0-9]'),
    ('openstack', 'server migration show {moving} {uuid}', 'Status .* running '),
    ('openstack', 'server event show {moving} {request}', 'conductor_live_migrate_instance'),
    ('openstack', 'flavor list', ' {flavor} '),
    ('openstack', 'availability zone list --compute', 'nova .* available'),
)
#: Each changes something, and what it changes is read or changed back by the next.
CHANGES = (
    ('nova', 'lock {guest}', ''),
    ('openstack', 'server show {guest} -f value -c locked', 'True'),
    ('nova', 'unlock {guest}', ''),
    ('openstack', 'server lock {guest}', ''),
    ('nova', 'show {guest}', 'locked .* True '),
    ('openstack', 'server unlock {guest}', ''),
    ('nova', 'service-disable {service} --reason fan', 'disabled .* fan '),
    ('nova', 'service-enable {service}', 'enabled'),
    ('openstack', 'compute service set --disable --disable-reason fan {host} nova-compute', ''),
    ('openstack', 'compute service list --long', '{host} .* disabled .* fan '),
    ('openstack', 'compute service set --enable {host} nova-compute', ''),
    ('nova', 'service-list --host {host}', '{host} .* enabled '),
)


def wrong(run: Callable[[str, Sequence[str]], str], rows: Rows, names: Mapping[str, object]) -> list[str]:
    """Run commands one after the other, and return those that did not show what they should.

    :param run: runs one of a client, fails if it does not exit with 0, and returns its output.
    :param names: ``host``, ``hypervisor`` and ``service`` (uuids) of a host that is up; ``guest`` and ``moving``, two
        guests at that host; ``flavor``, that of ``guest``; ``migration``, ``uuid`` and ``request`` of the live
        migration of ``moving``, which runs.
    """
    found = []
    for client, words, shows in rows:
        output = run(client, words.format(**names).split())
        if not re.search(shows.format(**names), output):
            found.append(f'{client} {words} does not show {shows}:\n{output}')
    return found
