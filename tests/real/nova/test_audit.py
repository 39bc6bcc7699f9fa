# SPDX-License-Identifier: Apache-2.0

"""The audit of a stock nova's allocations finds what nova leaves wrong, and nothing while all is well."""

import threading

import pytest

from migrator import executors
from migrator.nova import audit, clouds
from tests.real.nova import lab as labs
from tests.real.nova.command import Command
from tests.real.servers import process

pytestmark = [pytest.mark.timeout(1200)]


@pytest.fixture
def drain(lab, tmp_path):
    """Return the command, with a state of its own."""
    return Command(lab, tmp_path / 'state.sqlite')


def hosts_of(lab, consumer):
    """Return the hosts where Placement has allocations of a consumer."""
    providers = lab.ask_placement('GET', '/resource_providers')['resource_providers']
    names = {one['uuid']: one['name'] for one in providers}
    return {names[uuid] for uuid in lab.ask_placement('GET', f'/allocations/{consumer}')['allocations']}


def test_wrong_allocations_after_a_kill_are_found_and_healed(lab, drain):
    healthy = lab.guests(2, 'host1')
    runs, waits = lab.guests(2, 'host1', move_seconds='60')
    rows = {}
    for guest, status in ((runs, 'running'), (waits, 'queued')):
        lab.move(guest, 'host2')
        process.wait_until(lambda guest=guest, status=status: lab.migration(guest)['status'] == status, status, 60)
        rows[guest] = lab.migration(guest)
    drain.run('audit')  # both are in flight
    lab.services['host1'].kill()
    lab.services['host1'].start()
    process.wait_until(
        lambda: all(lab.ask('GET', f'/servers/{one}')['server']['OS-EXT-STS:task_state'] is None for one in rows),
        'nova-compute to find its guests', 60,
    )  # fmt: skip

    assert lab.truth()['host1'] == {*healthy, runs, waits}
    found = drain.read('audit', status=1)
    assert {one['consumer'] for one in found['findings']} == {runs, waits}, found
    assert {one: hosts_of(lab, one) for one in rows} == {one: {'host2'} for one in rows}
    with pytest.raises(process.ServerError, match='can be deleted'):
        lab.manage('placement', 'audit', '--verbose')
    drain.run('heal', status=1)
    assert {one: hosts_of(lab, one) for one in rows} == {one: {'host2'} for one in rows}, 'without --yes it only shows'

    drain.run('heal', '--yes', status=1)
    # nova-compute may have it in its queue still, as after a reset of its state, so that its repair has to be named
    assert {one: hosts_of(lab, one) for one in rows} == {runs: {'host1'}, waits: {'host2'}}
    drain.run('heal', '--yes', '--consumer', waits)

    assert {one: hosts_of(lab, one) for one in (*healthy, *rows)} == {one: {'host1'} for one in (*healthy, *rows)}
    assert [hosts_of(lab, row['uuid']) for row in rows.values()] == [set(), set()]
    drain.run('audit')
    lab.manage('placement', 'audit', '--verbose')


@pytest.mark.slow
def test_audit_has_no_finding_during_twenty_healthy_moves(lab, drain, monkeypatch):
    for name, value in lab.environment.items():
        monkeypatch.setenv(name, value)
    nova, placement = clouds.find(labs.CLOUD).clients()
    guests = lab.guests(10, 'host1')
    done, audits = threading.Event(), []

    def look():
        while not done.is_set():
            audits.append(audit.audit(nova, placement, executors.NativeThreads(), 1.0))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        drain.run('start', 'host1')
        assert lab.truth()['host1'] == set()
        (listed,) = drain.read('list')['drains']
        drain.run('restore', listed['uuid'])
    finally:
        done.set()
        looking.join()
    assert lab.truth()['host1'] == set(guests)
    assert [one.findings for one in audits] == [[]] * len(audits)
    assert len(audits) > 5
    assert any(one.others for one in audits), 'no audit has seen a move'
