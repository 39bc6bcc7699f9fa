# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""An audit of Placement's books that goes on all the time beside random runs never finds a living allocation wrong."""

import os

import pytest

from migrator.conductor import audits
from migrator.placement_client import client as placement_client
from migrator.testing import plans, simulate
from tests import slow

#: How many migrations are audited, in so many tests; these seeds are other ones than those of the random runs.
MIGRATIONS = int(os.environ.get('MIGRATOR_AUDITED', '500'))
PARTS = 10
FIRST_SEED = 500_001
#: Seconds of the cloud's clock between two audits, each of which takes a while.
PAUSE = 0.3

pytestmark = pytest.mark.timeout(900)


class Auditor:
    """Audits until it is over."""

    def __init__(self):
        self.audits, self.wrong = 0, []

    def start(self, cloud, over):
        threads = cloud.world_threads
        client = placement_client.PlacementClient(slow.Slow(cloud.placement.adapter(), threads))

        def audit():
            while not over():
                self.wrong += audits.audit(cloud.database, client)
                self.audits += 1
                threads.sleep(PAUSE)

        threads.start(audit, name='audit')


@pytest.mark.nova_bug('audit-deletes-what-moves')
@pytest.mark.parametrize('part', range(PARTS))
def test_it_reports_no_living_allocation_during_random_migrations_aborts_and_failures(part, ground, record_property):
    migrations = looks = 0
    seed = FIRST_SEED + part * 1000
    while migrations < MIGRATIONS / PARTS:
        auditor = Auditor()
        plan = plans.of(seed)
        result = simulate.run(ground, plan, auditor.start)
        assert not result.violations, simulate.told(plan, result)
        told = [(one.consumer, [finding.verdict for finding in one.findings]) for one in auditor.wrong]
        assert not told, (seed, told)
        migrations += len(result.statuses)
        looks += auditor.audits
        seed += 1
    assert looks >= migrations
    record_property('audited', migrations)
