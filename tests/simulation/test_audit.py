# SPDX-License-Identifier: Apache-2.0

"""A continuous audit during random runs never reports a valid allocation."""

import os

import pytest

from migrator.conductor import audit as audits
from migrator.placement_client.client import PlacementClient
from migrator.simulator import runs
from migrator.simulator.workloads import cold_migrations, plans
from tests import slow

#: The number of audited migrations, divided among PARTS tests. The seeds are not those of the random runs.
MIGRATIONS = int(os.environ.get('MIGRATOR_AUDITED', '500'))
PARTS = 10
FIRST_SEED = 500_001
#: Seconds of the cloud's clock between two audits, each of which takes a while.
PAUSE = 0.3

pytestmark = pytest.mark.timeout(900)


class Auditor:
    """A thread that audits until the run is over."""

    def __init__(self, pause=PAUSE):
        self.audits, self.wrong, self.pause = 0, [], pause

    def start(self, cloud, over):
        threads = cloud.world.threads
        client = PlacementClient(slow.Slow(cloud.placement.adapter(), threads))

        def audit():
            while not over():
                self.wrong += audits.audit(cloud.database, client)
                self.audits += 1
                threads.sleep(self.pause)

        threads.start(audit, name='audit')


@pytest.mark.nova_bug('audit-deletes-what-moves')
@pytest.mark.parametrize('part', range(PARTS))
def test_audit_reports_no_valid_allocation_during_random_migrations(part, backend, record_property):
    migrations = looks = 0
    seed = FIRST_SEED + part * 1000
    while migrations < MIGRATIONS / PARTS:
        auditor = Auditor()
        plan = plans.of(seed)
        result = runs.run(backend, plan, auditor.start)
        assert not result.violations, runs.described(plan, result)
        reported = [(one.consumer, [finding.verdict for finding in one.findings]) for one in auditor.wrong]
        assert not reported, (seed, reported)
        migrations += len(result.statuses)
        looks += auditor.audits
        seed += 1
    assert looks >= migrations
    record_property('audited', migrations)


@pytest.mark.parametrize(
    ('of', 'seed'),
    # A resize of the second one leaves the guest at its host.
    [(cold_migrations.of_cold_migrations, FIRST_SEED), (cold_migrations.of_resizes, FIRST_SEED + 1)],
    ids=['cold migrations', 'resizes'],
)
def test_audit_reports_no_valid_allocation_during_cold_migrations(of, seed, backend, record_property):
    auditor = Auditor(pause=5.0)
    plan = of(seed)
    result = runs.run(backend, plan, auditor.start)
    assert not result.violations, runs.described(plan, result)
    reported = [(one.consumer, [finding.verdict for finding in one.findings]) for one in auditor.wrong]
    assert not reported, reported
    assert auditor.audits
    record_property('audited', len(result.statuses))
