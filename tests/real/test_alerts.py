# SPDX-License-Identifier: Apache-2.0

"""Prometheus itself reads the alerts and the dashboard.

No alert fires on a healthy site, and each alone on its cause. Each expression of the dashboard finds something.
"""

import json
import os
import shutil
import subprocess

import pytest

from tests import alerts


@pytest.fixture
def promtool():
    found = shutil.which('promtool')
    if found is None and not os.environ.get('CI'):
        pytest.skip('promtool is not installed (tools/packages.sh real installs it)')
    assert found is not None, 'promtool is missing'
    return found


def case(cause):
    """Return a test of promtool: of a site that is healthy except for one series."""
    series = dict(alerts.HEALTHY)
    if cause is not None:
        series.update([alerts.CAUSES[cause]])
    judged = [
        {
            'expr': f'count(ALERTS{{alertname="{name}", alertstate="firing"}}) or vector(0)',
            'eval_time': f'{alerts.MINUTE}m',
            'exp_samples': [{'labels': '{}', 'value': int(name == cause)}],
        }
        for name in alerts.CAUSES
    ]
    return {
        'name': cause or 'healthy',
        'interval': '1m',
        'input_series': [{'series': name, 'values': values} for name, values in series.items()],
        'promql_expr_test': judged,
    }


def test_each_alert_fires_on_its_cause_and_no_other(promtool, tmp_path):
    cases = [case(cause) for cause in (None, *alerts.CAUSES)]
    file = tmp_path / 'tests.json'  # JSON is YAML
    file.write_text(json.dumps({'rule_files': [str(alerts.FILE)], 'evaluation_interval': '1m', 'tests': cases}))
    subprocess.run([promtool, 'check', 'rules', str(alerts.FILE)], check=True, capture_output=True)
    done = subprocess.run([promtool, 'test', 'rules', str(file)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def shown(expressions, series):
    """Return a test of promtool: that each expression finds something in these series."""
    finds = [{'labels': '{}', 'value': 1}]
    judged = [
        {'expr': f'clamp_max(count({one}), 1)', 'eval_time': f'{alerts.MINUTE}m', 'exp_samples': finds}
        for one in expressions
    ]
    series = [{'series': name, 'values': values} for name, values in series.items()]
    return {'interval': '1m', 'input_series': series, 'promql_expr_test': judged}


def test_each_expression_of_the_dashboard_finds_something_on_a_site_that_is_used(promtool, tmp_path):
    file = tmp_path / 'tests.json'
    busy = shown(alerts.expressions(), alerts.HEALTHY | alerts.BUSY)
    file.write_text(json.dumps({'evaluation_interval': '1m', 'tests': [busy]}))
    done = subprocess.run([promtool, 'test', 'rules', str(file)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_expression_with_a_wrong_label_is_found(promtool, tmp_path):
    file = tmp_path / 'tests.json'
    wrong = shown(['max(migrator_slots_limit{bound="inwards"})'], alerts.BUSY)
    file.write_text(json.dumps({'evaluation_interval': '1m', 'tests': [wrong]}))
    done = subprocess.run([promtool, 'test', 'rules', str(file)], check=False, capture_output=True, text=True)
    assert done.returncode != 0


def test_rule_that_never_fires_is_found(promtool, tmp_path):
    late = case('MigratorHostDown')
    late['input_series'] = [one for one in late['input_series'] if 'computes_down' not in one['series']]
    file = tmp_path / 'tests.json'
    file.write_text(json.dumps({'rule_files': [str(alerts.FILE)], 'evaluation_interval': '1m', 'tests': [late]}))
    done = subprocess.run([promtool, 'test', 'rules', str(file)], check=False, capture_output=True, text=True)
    assert done.returncode != 0
    assert 'MigratorHostDown' in done.stdout + done.stderr
