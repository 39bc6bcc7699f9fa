# SPDX-License-Identifier: Apache-2.0

"""A site with migrations in progress is upgraded, service by service in any order."""

import itertools
import os
import random
import subprocess
import sys

import pytest

from migrator.conductor import audit
from migrator.db.schema import sync
from migrator.objects import CURRENT_VERSION
from tests.real import site as sites
from tests.real.cloud import ProcessCloud
from tests.real.servers import process
from tests.real.site import Shape

#: The last commit before the services got health, metrics of their own, notifications and resizes.
BEFORE = '42e67fb'
GUESTS = 20
NAMES = ('api1', 'conductor1', 'host1', 'host2')
#: The orders in which the services are replaced, drawn from all.
UPGRADES = int(os.environ.get('MIGRATOR_UPGRADES', '1'))
ORDERS = random.Random(25).sample([*itertools.permutations(NAMES)], UPGRADES)  # noqa: S311 - a sample, and no secret
#: MiB, and MiB a second: all copies take minutes until the last service was replaced, and seconds after it.
MEMORY, LINK, FAST = 256, 8, 1024
OPTIONS = (('max_concurrent_live_migrations', 2), ('compute.stop_queued', 'keep'), ('conductor.lease', 5))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope='module')
def old_tree(tmp_path_factory):
    """The tree of the earlier commit."""
    commit = subprocess.run(
        ['git', '-C', sites.TREE, 'cat-file', '-e', f'{BEFORE}^{{commit}}'], capture_output=True, check=False
    )
    if commit.returncode:
        pytest.skip(f'left out: the history has no commit {BEFORE}, as in a shallow clone')
    tree = tmp_path_factory.mktemp('before')
    archive = subprocess.run(['git', '-C', sites.TREE, 'archive', BEFORE, 'migrator'], capture_output=True, check=True)
    subprocess.run(['tar', '-x', '-C', tree], input=archive.stdout, check=True)
    return tree


class Service(sites.Service):
    """A service of one of the two trees.

    :param tree: the tree that the next start runs.
    """

    def __init__(self, workspace, kind, name, file, tree):
        super().__init__(workspace, kind, name, file)
        self.tree = tree

    def environment(self):
        return {**super().environment(), 'PYTHONPATH': str(self.tree)}


class Site(sites.Site):
    """A site whose services begin with the earlier tree. Its hypervisors are the same throughout."""

    def __init__(self, old_tree, *args):
        self.old_tree = old_tree
        super().__init__(*args)

    def made(self, kind, name, file):
        return Service(self.workspace, kind, name, file, self.old_tree)

    def run(self, tree, module, *words):
        """Run a command of a tree, and return its status and what it prints."""
        command = [sys.executable, '-m', module, '--config-file', str(self.services['api1'].file), *words]
        environment = {'PYTHONPATH': str(tree), 'PATH': '/usr/bin:/bin', 'HOME': str(self.directory)}
        done = subprocess.run(
            command, cwd=self.directory, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def manage(self, *words):
        status, text = self.run(self.old_tree, 'migrator.cmd.manage', *words)
        assert status == 0, text
        return text

    def replace(self, name):
        """Stop a service as planned, and start that of the present tree."""
        service = self.services[name]
        service.stop()
        service.tree = sites.TREE
        service.start()


def checks(site):
    """Return the status of ``migrator-status upgrade check`` of the present tree, and what it prints."""
    return site.run(sites.TREE, 'migrator.cmd.status', 'upgrade', 'check')


@pytest.mark.parametrize('order', ORDERS, ids=' '.join)
def test_services_replaced_one_by_one_lose_no_migration(
    old_tree, order, workspace, rabbitmq, postgresql, placement_http
):
    shape = Shape(hosts=2, options=OPTIONS, world=('--vcpus', '64', '--link', str(LINK)))
    site = Site(old_tree, workspace, shape, rabbitmq, postgresql, placement_http)
    site.start()
    cloud = ProcessCloud(site)
    try:
        cloud.simulation.run_until(cloud.up)
        status, text = checks(site)
        assert (status, 'db sync' in text) == (2, True), text

        status, text = site.run(sites.TREE, 'migrator.cmd.manage', 'db', 'sync')
        assert (status, sync.head() in text) == (0, True), text
        # The test registers them with the present tree, which reads the new schema only.
        guests = [cloud.boot(f'vm-{n}', f'host{1 + n % 2}', MEMORY) for n in range(GUESTS)]
        for number, guest in enumerate(guests):
            assert cloud.live_migrate(guest, f'host{2 - number % 2}').status_int == 202
        status, text = checks(site)
        assert status == 1, text
        assert all(f'{name} (9)' in text for name in NAMES[1:]), text
        for name in order:
            site.replace(name)
        left = cloud.database.migrations.list(in_progress=True)
        for hypervisor in cloud.world.hypervisors.values():
            hypervisor.link = FAST
        cloud.wait()

        assert left, 'the last service was replaced while guests moved'
        found = cloud.migrations()
        assert [one.status for one in found] == ['completed'] * GUESTS, [(one.status, one.failure) for one in found]
        cloud.judge(set())
        assert audit.audit(cloud.database, cloud.placement_client) == []
        process.wait_until(cloud.up, 'every compute service to be up')
        assert {one.version for one in cloud.database.services.list('nova-compute')} == {CURRENT_VERSION}
        status, text = checks(site)
        assert status == 0, text
    finally:
        site.end()
        cloud.clear_allocations()
        cloud.close()
