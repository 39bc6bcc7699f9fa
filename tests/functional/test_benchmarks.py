# SPDX-License-Identifier: Apache-2.0


"""The benchmarks run, and what they count is right; how long anything took is not asked."""

import json
import sys

import pytest

from benchmarks import alone, check, control_plane, databases, forecast, libvirt_overhead, maintenance, makespan, rounds
from migrator.drain.maintenance.plan import Limits
from migrator.testing import backends
from tests import forked
from tests.functional import test_cost

pytestmark = pytest.mark.slow

#: What a migration may cost; the messages without the question that settles it, which counts as a poll.
LIMITS = {
    'placement_requests': test_cost.LIMITS['Placement requests'],
    'sql_statements': test_cost.LIMITS['SQL statements'],
    'commits': test_cost.LIMITS['commits'],
}
MESSAGES = test_cost.LIMITS['RPC messages'] - 2
#: The steps whose end a host reports, and those of them whose end may be in the reply.
REPORTS, IN_REPLIES = 5, 3


def messages(costs):
    """Return the messages per migration. Reports that a host has repeated are not counted."""
    repeated = max(0, costs['rpc_by_method']['step_ended cast'] - REPORTS)
    return round(costs['rpc']['messages'] - repeated, 1)


def above(costs):
    counts = {**{name: costs[name] for name in LIMITS}, 'messages': messages(costs)}
    return {name: count for name, count in counts.items() if count > {**LIMITS, 'messages': MESSAGES}[name]}


def test_cost_of_a_migration_does_not_grow_with_the_guests_on_the_source():
    command = [sys.executable, control_plane.__file__, '--on', 'sqlite', '--guests', '1,6', '--quick']
    done = forked.run(command, timeout=100)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found['sqlite']) == {'1', '6'}
    for guests, reported in found['sqlite'].items():
        assert reported['one_at_a_time']['migrations'] == found['migrations'] == 4
        costs = reported['one_at_a_time']['per_migration']
        assert above(costs) == {}
        assert 3 <= costs['placement_requests'] <= 4
        assert MESSAGES - IN_REPLIES <= messages(costs) <= MESSAGES
        assert costs['rpc']['bytes'] > 1000
        assert costs['rpc_polls']['messages'] >= 2
        assert sum(costs['sql_by_table'].values()) == pytest.approx(costs['sql_statements'])
        assert {'api', 'conductor1', 'host1', 'host2', 'placement', 'other'} <= set(costs['cpu_seconds'])
        assert reported['idle']['per_second']['placement_requests'] == 0
        assert reported['idle']['per_second']['rpc']['messages'] == 0
        assert reported['abort_latency']['running']['aborts'] == 2
        assert reported['abort_latency']['queued']['queue'] == int(guests)
    assert found['sqlite']['1']['together'] is None
    together = found['sqlite']['6']['together']
    assert together['migrations'] == 6
    assert above(together['per_migration']) == {}
    assert 'sqlite: 6 guests on the source: 6 leave together' in done.stderr


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        (['--guests', '1,0'], "--guests: is '0': give a whole number of 1 or more"),
        (['--guests', 'many'], "--guests: is 'many'"),
        (['--migrations', '-1'], '--migrations'),
        (['--on', 'mysql'], "--on: invalid choice: 'mysql'"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(capsys, words, said):
    with pytest.raises(SystemExit) as ended:
        control_plane.main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.timeout(600)
def test_check_counts_every_figure_and_none_is_above_its_goal_or_has_grown(capsys):
    status = control_plane.main(['--check', '--quick'])
    head, *lines, last = capsys.readouterr().out.splitlines()
    assert head.split() == ['figure', 'goal', '/', 'here']
    figures = {name.strip(): rest.split() for name, rest in (line.split('  ', 1) for line in lines)}
    assert {
        'one migration alone: statements',
        'abort of a queued one: commits',
        '60 to 120 hosts: POST os-migrateLive, rows',
        '60 to 120 hosts: heartbeats, commits a second',
        '60 to 120 hosts: start of a host, rows',
        '0 to 300 ended: takeover, statements',
        '0 to 300 ended: changes-since, rows',
    } <= figures.keys()
    assert all(float(goal) > 0 <= float(here) for goal, _slash, here, *_verdict in figures.values())
    assert figures['0 to 300 ended: list 50, rows'] == ['1.2', '/', '1']
    assert figures['60 to 120 hosts: heartbeats, commits a second'] == ['1.2', '/', '1']
    assert figures['60 to 120 hosts: choice, each further, rows'] == ['1.2', '/', '1']
    assert figures['makespan, of the shortest: 2 to 3 hosts, 1 slots, 1 conductors, 6 guests'] == ['1.05', '/', '1']
    assert figures['100 queued at a host: named by a poll'] == ['17', '/', '16']
    assert figures['4 conductors: requests of each'][2] == figures['1 conductor: requests of each'][2]
    assert [line for line in lines if check.ABOVE in line or check.GROWN in line] == []
    assert last == f'0 of {len(lines)} figures are too high'
    assert status == 0


def test_check_counts_an_abort_as_the_test_of_its_cost_does():
    with databases.site(databases.SQLITE) as site:
        counted = alone.abort(site)
    names = 'requests', 'messages', 'statements', 'commits'
    assert tuple(counted[name] for name in names) == test_cost.EXACT['an abort in the queue']


def test_figure_is_recorded_if_each_run_finds_the_same():
    assert check.Figure('statements', 10, 1.0).verdicts(0.99) == ['HAS GROWN FROM 0.99']
    assert check.Figure('CPU', 10, 1.0, exact=False).verdicts(0.1) == []


@pytest.mark.parametrize(
    ('here', 'exact', 'before', 'verdicts'),
    [
        (10.0, True, 10, []),
        (10.0, True, None, []),
        (10.0, True, 9, ['HAS GROWN FROM 9']),
        (11.0, True, 11, ['ABOVE ITS GOAL']),
        (12.0, True, 11, ['ABOVE ITS GOAL', 'HAS GROWN FROM 11']),
        (10.0, False, 8, []),
        (10.0, False, 7.9, ['HAS GROWN FROM 7.9']),
    ],
)
def test_figure_above_its_goal_or_above_what_was_reached_is_too_high(capsys, here, exact, before, verdicts):
    figure = check.Figure('statements', 10, here, exact, may_not_grow=True)
    assert figure.verdicts(before) == verdicts
    assert check.show([figure], {} if before is None else {'statements': before}) == bool(verdicts)
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split(maxsplit=4)[4:] == ([', '.join(verdicts)] if verdicts else [])


def test_check_on_a_database_that_is_not_served_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        control_plane.main(['--check', '--on', 'services'])
    assert ended.value.code == 2
    assert "--on: invalid choice: 'services'" in capsys.readouterr().err


def test_makespan_with_bounds_is_near_the_shortest_time(capsys):
    assert makespan.main(['--quick']) == 0
    assert '2 to 3 hosts' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('results', 'good'),
    [
        ([(1, 0.1, False, True)] * 8 + [(1, -0.1, True, False)] * 2, True),
        ([(1, 0.2, False, True)] * 8 + [(1, -0.2, True, False)] * 2, False),
        ([(1, 0.1, False, True)] * 7 + [(1, -0.1, True, False)] * 3, False),
        ([(1, 0.1, False, True)] * 9 + [(1, -0.1, True, False)] * 1, False),
        ([], False),
    ],
)
def test_forecast_is_judged_by_its_median_error_and_by_the_ends_before_p80(capsys, results, good):
    assert forecast.show('10 seeds', results) is good
    assert ('MISSES ITS GOAL' in capsys.readouterr().out) is (bool(results) and not good)


def pair_of_runs(total, downtime):
    virsh = {'total': 10.0, 'arrived': 9.5, 'downtime': 0.1}
    return {'virsh': virsh, 'migrator': {'total': total, 'arrived': 9.8, 'downtime': downtime, 'phases': {}}}


@pytest.mark.parametrize(
    ('total', 'downtime', 'status'), [(10.2, 0.1, 0), (10.21, 0.1, 1), (10.2, 0.101, 1), (9.9, 0.09, 0)]
)
def test_real_guests_are_judged_by_the_median_ratios_of_total_and_downtime(total, downtime, status):
    pairs = [pair_of_runs(total, downtime)] * 2 + [pair_of_runs(20.0, 0.5)]
    assert libvirt_overhead.status(libvirt_overhead.summary(pairs)['ratios']) == status


def test_forecast_of_one_cloud_is_compared_with_what_happens(capsys):
    assert forecast.main(['--seeds', '1', '--first', '2']) == 0
    assert 'median error' in capsys.readouterr().out


def test_maintenance_moves_each_guest_once_and_takes_little_longer_than_it_has_to(tmp_path):
    backend = backends.SharedBackend(str(tmp_path))
    found = rounds.run(maintenance.equal(3, parallel=1, spare=1, guests=4), backend)
    backend.close()
    assert (found.moves, found.bound) == (1, 1)
    assert found.shortest <= found.seconds <= maintenance.MAKESPAN * found.shortest


def test_shortest_time_keeps_the_limits():
    hosts, groups = [('a', 10), ('b', 20), ('c', 5)], {'a': 'x', 'b': 'y', 'c': 'x'}
    assert rounds.shortest(hosts, groups, Limits(1)) == 35
    assert rounds.shortest(hosts, groups, Limits(3)) == 20
    assert rounds.shortest(hosts, groups, Limits(3, per_group=1)) == 20
    assert rounds.shortest([('a', 10), ('c', 15)], groups, Limits(2, per_group=1)) == 25
