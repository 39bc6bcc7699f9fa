# SPDX-License-Identifier: Apache-2.0

"""Wrong allocations are shown in the metrics of a conductor that audits, until they are healed."""

import functools

import pytest

from migrator.conductor import audit
from migrator.placement_client.audit import VERDICTS
from migrator.testing.placement_faults import Fault
from tests.functional.test_audit import plant

pytestmark = [
    pytest.mark.simulated(
        reason='it writes wrong allocations by hand, and reads the metrics of a conductor in this process'
    ),
    pytest.mark.breaks('I2', 'I3', 'I4', 'I5', 'I6', reason='the test writes allocations by hand'),
    pytest.mark.cloud(options={'conductor.audit_interval': 30}),
]

#: One way to be wrong for each verdict.
WRONG = {
    'leaked': 'a migration that has ended holds its source',
    'unknown consumer': 'an unknown migration holds something',
    'missing': 'an instance holds nothing',
    'wrong host': 'an instance holds another host',
    'wrong amount': 'an instance holds less',
    'doubled': 'an instance holds two hosts',
}


def reported(cloud, name, **labels):
    """Return a number of the conductor's."""
    return cloud.conductors['conductor1'].metrics.registry.get_sample_value(name, labels)


def findings(cloud):
    """Return the verdicts of which there is something, and how much."""
    numbers = {verdict: reported(cloud, 'migrator_placement_findings', verdict=verdict) for verdict in VERDICTS}
    return {verdict: number for verdict, number in numbers.items() if number}


def number_of(cloud, result):
    return reported(cloud, 'migrator_placement_audits_total', result=result)


def audited(cloud, result='done'):
    """Let it run until one more audit has had that result."""
    before = number_of(cloud, result)
    cloud.simulation.run_until(lambda: number_of(cloud, result) > before, timeout=40)


def heal(cloud, named=()):
    for wrong in audit.audit(cloud.database, cloud.placement_client):
        ask = functools.partial(cloud.conductors['conductor1'].tools.lists.of_all, None)
        assert audit.heal(cloud.database, cloud.placement_client, wrong, named, ask)[0]


@pytest.mark.parametrize('verdict', VERDICTS)
def test_wrong_allocations_are_counted_by_verdict_until_they_are_healed(cloud, verdict):
    consumer, planted = plant(cloud, WRONG[verdict])
    assert planted == verdict
    assert findings(cloud) == {}
    audited(cloud)
    assert findings(cloud) == {verdict: 1}
    heal(cloud, named=[consumer])
    audited(cloud)
    assert findings(cloud) == {}


def test_while_placement_is_away_what_was_found_stays_and_so_does_when(cloud):
    plant(cloud, WRONG['leaked'])
    audited(cloud)
    when = reported(cloud, 'migrator_placement_audit_time_seconds')
    cloud.adapter.inject(Fault.UNREACHABLE, method='GET', url='/resource_providers')
    audited(cloud, 'failed')
    assert findings(cloud) == {'leaked': 1}
    assert reported(cloud, 'migrator_placement_audit_time_seconds') == when
    audited(cloud)
    assert reported(cloud, 'migrator_placement_audit_time_seconds') > when
    heal(cloud)
