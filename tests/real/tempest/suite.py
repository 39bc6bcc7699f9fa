# SPDX-License-Identifier: Apache-2.0

"""Run tests of Tempest, unmodified, and compare what fails with the list of those that cannot apply.

That list is ``doc/source/tempest.csv``. A test that it does not have must pass, and one that it has must not.
"""

from __future__ import annotations

import ast
import csv
import fnmatch
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from xml.etree import ElementTree

import tempest
import yaml

from tests.real.servers import keystone
from tests.real.tempest import front

TABLE = pathlib.Path(__file__).resolve().parents[3] / 'doc/source/tempest.csv'
#: What runs of ``tempest/api/compute``, beside what :func:`named` returns: what is about live migrations, and the hosts
#: and servers that an operator looks at.
SELECTED = (
    'admin/test_aggregates_negative.py',
    'admin/test_availability_zone.py',
    'admin/test_availability_zone_negative.py',
    'admin/test_hosts.py',
    'admin/test_hosts_negative.py',
    'admin/test_hypervisor.py',
    'admin/test_hypervisor_negative.py',
    'admin/test_instance_usage_audit_log.py',
    'admin/test_instance_usage_audit_log_negative.py',
    'admin/test_live_migration.py',
    'admin/test_live_migration_negative.py',
    'admin/test_migrations.py',
    'admin/test_server_diagnostics.py',
    'admin/test_server_diagnostics_negative.py',
    'admin/test_servers.py',
    'admin/test_servers_negative.py',
    'admin/test_services.py',
    'admin/test_services_negative.py',
    'flavors/test_flavors.py',
    'servers/test_instance_actions_negative.py',
    'servers/test_list_server_filters.py',
    'servers/test_server_actions.py::ServerActionsTestJSON::test_lock_unlock_server',
    'test_versions.py',
)
#: The roles that a user of tempest has.
ROLES = ('member', 'manager', 'reader', 'admin')
#: The type of the front in the catalog.
SERVICE = 'compute-with-servers'
IMAGE = '00000000-0000-0000-0000-00000000000'
CONF = """
[DEFAULT]
log_file = {directory}/tempest.log
use_stderr = false
[oslo_concurrency]
lock_path = {directory}
[auth]
use_dynamic_credentials = false
create_isolated_networks = false
test_accounts_file = {directory}/accounts.yaml
[identity]
auth_version = v3
uri_v3 = {identity}
v3_endpoint_type = public
region = RegionOne
[service_available]
cinder = false
swift = false
[network-feature-enabled]
# no extension: a guest's network is not migrator's
api_extensions =
[validation]
# no fake guest can be logged in to
run_validation = false
[compute]
catalog_type = {service}
image_ref = {image}1
image_ref_alt = {image}2
flavor_ref = {flavors[0]}
flavor_ref_alt = {flavors[1]}
min_compute_nodes = 2
max_microversion = latest
build_interval = 0
build_timeout = 30
[compute-feature-enabled]
block_migration_for_live_migration = true
live_migrate_back_and_forth = true
resize = true
volume_backed_live_migration = true
nova_policy_roles = {roles}
[enforce_scope]
nova = true
"""


def configure(directory: pathlib.Path, identity: str, project: str) -> None:
    """Write the configuration of tempest, and the accounts that it uses.

    :param directory: an empty one.
    :param identity: the URL of a Keystone, whose catalog has :data:`SERVICE`. It has its administrator in a project
        called ``admin``, and the users ``member1``, ``manager1`` and ``reader1`` in another project.
    :param project: the name of that other project.
    """
    values = {'directory': directory, 'identity': identity, 'service': SERVICE, 'image': IMAGE}
    text = CONF.format(**values, flavors=tuple(front.FLAVORS), roles=','.join(ROLES))
    (directory / 'tempest.conf').write_text(text)
    accounts = [
        {
            'username': 'admin' if role == 'admin' else f'{role}1',
            'password': keystone.PASSWORD,
            'project_name': 'admin' if role == 'admin' else project,
            'domain_name': 'Default',
            'roles': [role],
            'types': ['admin'] if role == 'admin' else [],
        }
        for role in ROLES
    ]
    (directory / 'accounts.yaml').write_text(yaml.safe_dump(accounts))


def run(directory: pathlib.Path, timeout: float) -> dict[str, str]:
    """Run tempest's tests, and return for each why it did not pass: '' if it did.

    A module of ``admin`` that is not selected counts as one test that did not pass, so that it has to be listed.

    :param directory: one with a configuration.
    :param timeout: the seconds that all may take.
    """
    root = pathlib.Path(tempest.__file__).parents[1]
    nodes = [*(str(root / 'tempest/api/compute' / node) for node in SELECTED), *named(root)]
    report = directory / 'report.xml'
    program = [sys.executable, '-m', 'pytest', '-q', '-c', os.devnull, '--rootdir', str(root), f'--junitxml={report}']
    environment = {'PATH': os.environ['PATH'], 'TEMPEST_CONFIG_DIR': str(directory), 'TEMPEST_CONFIG': 'tempest.conf'}
    with (directory / 'output').open('wb') as output:
        done = subprocess.run(
            [*program, '-p', 'no:cacheprovider', *nodes],
            env=environment, cwd=directory, stdout=output, stderr=subprocess.STDOUT, timeout=timeout, check=False,
        )  # fmt: skip
    assert report.exists(), f'{done.returncode}: {(directory / "output").read_text()[-5000:]}'
    modules = (root / 'tempest/api/compute/admin').glob('test_*.py')
    found = {f'admin.{one.stem}': 'it is not selected' for one in modules if f'admin/{one.name}' not in SELECTED}
    for case in ElementTree.parse(report).iter('testcase'):  # noqa: S314 -- our own report
        name = f'{case.get("classname")}.{case.get("name")}'.removeprefix('tempest.api.compute.')
        # of a test whose class cannot be torn down there are two cases
        found[name] = found.get(name) or _why(case)
    return found


def named(root: pathlib.Path) -> list[str]:
    """Return the tests outside of ``admin`` whose names say that they resize or migrate.

    :param root: where the package of tempest is.
    """
    return [
        f'{file}::{group.name}::{test.name}'
        for directory in ('api/compute', 'scenario')
        for file in sorted((root / 'tempest' / directory).rglob('test_*.py'))
        if file.parent.name != 'admin'
        for group in ast.parse(file.read_text(encoding='utf-8')).body
        if isinstance(group, ast.ClassDef)
        for test in group.body
        if isinstance(test, ast.FunctionDef) and re.match('test_.*(resiz|migrat)', test.name)
    ]


def _why(case: ElementTree.Element) -> str:
    for outcome in case:
        if outcome.tag in ('failure', 'error', 'skipped'):
            lines = (outcome.text or outcome.get('message') or outcome.tag).strip().splitlines()
            return '\n'.join(lines[-30:])
    return ''


def table() -> dict[str, str]:
    """Return the tests that cannot apply: a pattern of names -> the reason."""
    with TABLE.open(encoding='utf-8', newline='') as file:
        return {row['tests'].strip('`'): row['reason'] for row in csv.DictReader(file)}


def wrong(outcomes: Mapping[str, str], listed: Iterable[str]) -> list[str]:
    """Return in words what differs between the outcomes and the list."""
    found = []
    unused = set(listed)
    for name, why in outcomes.items():
        matching = {pattern for pattern in listed if fnmatch.fnmatchcase(name, pattern)}
        unused -= matching
        if why and not matching:
            found.append(f'{name} does not pass, and {TABLE.name} does not list it:\n{why}')
        if matching and not why:
            found.append(f'{name} passes: delete it from {TABLE.name}, which has {", ".join(sorted(matching))}')
    return [*found, *(f'{pattern}: no test is called so; delete it from {TABLE.name}' for pattern in sorted(unused))]
