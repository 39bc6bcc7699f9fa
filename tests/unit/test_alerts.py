# SPDX-License-Identifier: Apache-2.0

"""The alerts and the dashboard name metrics, commands and pages that exist.

In tests/real/test_alerts.py Prometheus itself judges them.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess

import prometheus_client
import pytest
import yaml
from oslo_config import cfg

from migrator import executors
from migrator.cmd import api, compute, manage
from migrator.conductor import metrics
from migrator.runtime import process
from migrator.testing.hypervisor.driver import FakeDriver
from migrator.testing.hypervisor.hypervisor import FakeWorld
from tests import alerts

NAME = re.compile(r'\b(?:migrator|process)_[a-z_]+|\bup\b')
RULES = {rule['alert']: rule for rule in alerts.rules()}


@pytest.fixture(scope='module')
def served():
    """Return the names of the metrics that the services have, as Prometheus stores them."""
    service = process.Process('migrator-compute', cfg.ConfigOpts(), executors.NativeThreads())
    monitor, conductor = service.monitor, metrics.Metrics(list)
    monitor.time_statements()
    monitor.time_requests()
    api.count_attention(service.monitor, lambda: {'stuck': 1})
    monitor.timed_adapter(None)
    monitor.timed_rpc(None)
    metrics.Audits(conductor.registry)
    metrics.Guests(conductor.registry)
    metrics.watch_notifications(conductor.registry, float)
    monitor.registry.register(conductor.registry)
    hypervisor = FakeDriver(FakeWorld(service.threads).add('host1'), service.threads)
    compute._add_metrics(service, executors.BoundedExecutor(1, service.threads), hypervisor)
    suffixes = {'gauge': [''], 'counter': ['_total'], 'histogram': ['_count', '_sum', '_bucket']}
    registry: prometheus_client.CollectorRegistry = monitor.registry
    return {
        family.name + suffix
        for family in registry.collect()
        if family.name.startswith(('migrator_', 'process_'))
        for suffix in suffixes[family.type]
    }


def test_alerts_read_only_metrics_that_are_served(served):
    read = {name for rule in RULES.values() for name in NAME.findall(rule['expr'])}
    assert read - served == {'up'}


def test_reference_lists_every_metric_and_no_other(served):
    listed = set(re.findall(r'\* - ``(migrator_\w+)', (alerts.ROOT / 'doc/source/metrics.rst').read_text()))
    assert listed == {re.sub('_(count|sum|bucket)$', '', name) for name in served if name.startswith('migrator_')}


@pytest.mark.parametrize('name', RULES)
def test_commands_of_an_alert_are_commands(name):
    for quoted in re.findall('"migrator-manage ([^"]+)"', RULES[name]['annotations']['action']):
        manage.make_parser().parse_args(quoted.replace('ID', '1').split())


@pytest.mark.parametrize('name', RULES)
def test_alert_names_a_page_that_exists(name):
    page, _, section = RULES[name]['annotations']['runbook_url'].partition('#')
    text = (alerts.ROOT / 'doc/source' / page.replace('.html', '.rst')).read_text()
    titles = re.findall(r'^(\S.*)\n[=~-]{3,}$', text, re.MULTILINE)
    ids = {re.sub('[^a-z0-9]+', '-', title.lower()).strip('-') for title in titles}
    assert not section or section in ids | set(re.findall(r'^\.\. _([a-z-]+):$', text, re.MULTILINE))


def test_command_of_the_page_makes_every_runbook_a_link(tmp_path):
    page = (alerts.ROOT / 'doc/source/monitor.rst').read_text()
    (command,) = re.findall(r'^    (sed -i .* alerts\.yaml)$', page, re.MULTILINE)
    file = tmp_path / 'alerts.yaml'
    shutil.copy(alerts.FILE, file)
    subprocess.run(shlex.split(command), cwd=tmp_path, check=True)
    (group,) = yaml.safe_load(file.read_text())['groups']
    address = 'https://docs.example.com/migrator/'
    for rule in group['rules']:
        assert rule['annotations']['runbook_url'] == address + RULES[rule['alert']]['annotations']['runbook_url']


def test_each_alert_has_a_cause_and_a_severity():
    assert set(RULES) == set(alerts.CAUSES)
    assert {rule['labels']['severity'] for rule in RULES.values()} == {'page', 'ticket'}
    assert {series for series, _ in alerts.CAUSES.values()} <= set(alerts.HEALTHY)


def test_dashboard_reads_only_metrics_that_are_served(served):
    read = {name for expression in alerts.expressions() for name in NAME.findall(expression)}
    assert read - served == {'up'}


def test_dashboard_shows_each_metric_of_the_reference():
    text = (alerts.ROOT / 'doc/source/metrics.rst').read_text()
    listed = set(re.findall(r'\* - ``(migrator_\w+)', text))
    shown = {re.sub('_(count|bucket)$', '', name) for one in alerts.expressions() for name in NAME.findall(one)}
    #: Not shown: what is the sum of others, or concerns the audit itself, which alerts watch.
    assert listed - shown == {
        'migrator_live_migrations_limit',
        'migrator_migrations_held',
        'migrator_placement_audit_time_seconds',
        'migrator_placement_audit_duration_seconds',
        'migrator_placement_audits_total',
    }


def test_each_panel_has_an_id_of_its_own_and_the_data_source_that_its_user_chooses():
    dashboard = alerts.dashboard()
    ids = [panel['id'] for panel in dashboard['panels']]
    assert len(ids) == len(set(ids))
    (variable,) = dashboard['templating']['list']
    assert (variable['name'], variable['type'], variable['query']) == ('datasource', 'datasource', 'prometheus')
    chosen = {'type': 'prometheus', 'uid': '${datasource}'}
    assert all(part['datasource'] == chosen for one in alerts.panels() for part in [one, *one['targets']])


def test_panel_that_counts_events_counts_each_in_one_bar():
    counts = [one for one in alerts.panels() if one.get('description', '').startswith('Per interval')]
    assert len(counts) == 5
    for panel in counts:
        assert all('[$__interval]' in target['expr'] for target in panel['targets']), panel['title']
        assert (panel['interval'], panel['fieldConfig']['defaults']['custom']['drawStyle']) == ('1m', 'bars')


def test_panel_of_a_comparison_that_is_off_shows_no_data():
    audits = [one for one in alerts.expressions() if 'placement_findings' in one or 'guest_differences' in one]
    assert audits
    assert not [one for one in audits if 'vector(0)' in one]


def test_panels_do_not_overlap():
    cells = [
        (x, y)
        for place in (panel['gridPos'] for panel in alerts.dashboard()['panels'])
        for x in range(place['x'], place['x'] + place['w'])
        for y in range(place['y'], place['y'] + place['h'])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


@pytest.mark.parametrize('panel', alerts.panels(), ids=lambda panel: panel['title'])
def test_commands_of_a_panel_are_commands(panel):
    for quoted in re.findall(r'migrator-manage ([a-z -]+?)(?: shows| names|$)', panel.get('description', '')):
        manage.make_parser().parse_args([*quoted.split(), *(['1'] if quoted.endswith('migration show') else [])])
