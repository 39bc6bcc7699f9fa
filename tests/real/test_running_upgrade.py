# SPDX-License-Identifier: Apache-2.0

"""A site with migrations in progress is upgraded, service by service in any order.

All services are of this tree. The compute services begin with an older service version, as one that is capped reports
it, and are replaced by ones of the newest.
"""

import itertools
import os
import random
import subprocess
import sys

import pytest

from migrator.conductor import audit
from migrator.objects import CURRENT_VERSION, Strategy
from tests.real import site as sites
from tests.real.cloud import ProcessCloud
from tests.real.servers import process
from tests.real.site import Shape

GUESTS = 20
NAMES = ('api1', 'conductor1', 'host1', 'host2')
#: The versions that the hosts begin with. The lowest decides who holds the allocations of the sources.
BEGINNINGS = ((1, 2), (2, 1), (1, CURRENT_VERSION), (2, 2))
#: The orders in which the services are replaced, each with the versions before, drawn from all.
UPGRADES = int(os.environ.get('MIGRATOR_UPGRADES', '1'))
ALL = [*itertools.product(itertools.permutations(NAMES), BEGINNINGS)]
DRAWN = random.Random(25).sample(ALL, UPGRADES)  # noqa: S311 - a sample, and no secret
#: MiB, and MiB a second: all copies take minutes until the last service was replaced, and seconds after it.
MEMORY, LINK, FAST = 256, 8, 1024
OPTIONS = (('max_concurrent_live_migrations', 2), ('compute.stop_queued', 'keep'), ('conductor.lease', 5))
CAP = 'compute.service_version_cap'

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def run(site, module, *words):
    """Run a command with the configuration of the API, and return its status and what it prints."""
    command = [sys.executable, '-m', module, '--config-file', str(site.services['api1'].file), *words]
    environment = {'PYTHONPATH': str(sites.TREE), 'PATH': '/usr/bin:/bin', 'HOME': str(site.directory)}
    done = subprocess.run(
        command, cwd=site.directory, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout + done.stderr


def checks(site):
    """Return the status of ``migrator-status upgrade check``, and what it prints."""
    return run(site, 'migrator.cmd.status', 'upgrade', 'check')


def replace(site, name):
    """Stop a service as planned, and start one of the newest version."""
    site.services[name].stop()
    if name.startswith('host'):
        site.configure(name, **{CAP: CURRENT_VERSION})
    site.services[name].start()


@pytest.mark.parametrize(('order', 'versions'), DRAWN, ids=str)
def test_services_replaced_one_by_one_lose_no_migration(
    order, versions, workspace, rabbitmq, postgresql, placement_http
):
    shape = Shape(hosts=2, options=OPTIONS, world=('--vcpus', '64', '--link', str(LINK)))
    site = sites.Site(workspace, shape, rabbitmq, postgresql, placement_http)
    for host, version in zip(NAMES[2:], versions, strict=True):
        site.configure(host, **{CAP: version})
    site.start()
    cloud = ProcessCloud(site)
    try:
        cloud.simulation.run_until(cloud.up)
        guests = [cloud.boot(f'vm-{n}', f'host{1 + n % 2}', MEMORY) for n in range(GUESTS)]
        for number, guest in enumerate(guests):
            assert cloud.live_migrate(guest, f'host{2 - number % 2}').status_int == 202
        status, text = checks(site)
        assert status == 1, text
        for host, version in zip(NAMES[2:], versions, strict=True):
            assert (f'{host} ({version})' in text) == (version < CURRENT_VERSION), text
        for name in order:
            replace(site, name)
        left = cloud.database.migrations.list(in_progress=True)
        for hypervisor in cloud.world.hypervisors.values():
            hypervisor.link = FAST
        cloud.wait()

        assert left, 'the last service was replaced while guests moved'
        found = cloud.migrations()
        assert [one.status for one in found] == ['completed'] * GUESTS, [(one.status, one.failure) for one in found]
        # The version of the lowest host at the request decides to the end.
        assert {one.strategy for one in found} == {Strategy.of_version(min(versions)).value}
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
