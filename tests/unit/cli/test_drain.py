# SPDX-License-Identifier: Apache-2.0

"""migrator-manage drain: what the plan says about time."""

from __future__ import annotations


def test_plan_shows_how_long_it_takes_once_that_is_known(operator):
    cloud = operator.cloud  # its links carry 1024 MiB/s
    guests = [cloud.boot(f'guest{number}', 'host1', memory_mb=10240) for number in range(3)]
    out = operator.observed('drain', 'plan', 'host1')
    assert out.splitlines()[-1].endswith('How long that takes is not known: too few live migrations have completed.')
    for guest in guests:
        assert cloud.live_migrate(guest, 'host2').status_int == 202
    cloud.wait()
    plan = operator.json('drain', 'plan', 'host2')
    assert plan['guests'][0]['expected_seconds']['p50'] == 10
    assert plan['expected_seconds'] == {'p50': 30, 'p80': 30}
    assert 'That is expected to take ' in operator.observed('drain', 'plan', 'host2').splitlines()[-1]
