# SPDX-License-Identifier: Apache-2.0

"""The alerts for Prometheus, what each is to fire on, and the dashboard of Grafana."""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILE = ROOT / 'etc/migrator/alerts.yaml'
DASHBOARD = ROOT / 'etc/migrator/grafana.json'

#: What a scrape of a site without a fault finds, one value for each minute.
HEALTHY = {
    'up{job="migrator-api", instance="a"}': '1+0x200',
    'up{job="migrator-compute", instance="drained"}': '0+0x200',
    'process_start_time_seconds{job="migrator-api", instance="a"}': '5+0x200',
    'migrator_started{job="migrator-compute", instance="h"}': '1+0x200',
    'migrator_check_ok{job="migrator-api", instance="a", what="database"}': '1+0x200',
    'migrator_broker_away_seconds{instance="c"}': '0+0x200',
    'migrator_notifications_wait_seconds{instance="c"}': '0+0x200',
    'migrator_computes_down{instance="c"}': '0+0x200',
    'migrator_migrations_stuck{instance="c"}': '0+0x200',
    'migrator_cleanups{instance="c", blocked="yes"}': '0+0x200',
    'migrator_guest_differences{instance="c", kind="moved"}': '0+0x200',
    'migrator_guest_differences{instance="c", kind="power"}': '3+0x200',
    'migrator_placement_findings{instance="c", verdict="leaked"}': '0+0x200',
    'migrator_placement_audit_time_seconds{instance="c"}': '0+60x200',
    'migrator_placement_audits_total{instance="c", result="done"}': '0+1x200',
    'migrator_placement_audits_total{instance="c", result="failed"}': '0+1x200',
    'migrator_migrations_ended_total{instance="c", type="live-migration", status="completed"}': '0+0x200',
    'migrator_leases_lost_total{instance="c"}': '0+0x200',
    'migrator_live_migrations_oldest_wait_seconds{instance="h"}': '600+0x200',
    'migrator_http_request_seconds_count{instance="a", code="200"}': '0+60x200',
    'migrator_http_request_seconds_count{instance="a", code="500"}': '0+0x200',
}

#: Each alert -> the series that differs, and the values at which it fires.
CAUSES = {
    'MigratorServiceGone': ('up{job="migrator-api", instance="a"}', '0+0x200'),
    'MigratorServiceRestarts': ('process_start_time_seconds{job="migrator-api", instance="a"}', '5+60x200'),
    'MigratorServiceNotStarted': ('migrator_started{job="migrator-compute", instance="h"}', '0+0x200'),
    'MigratorServiceWaits': ('migrator_check_ok{job="migrator-api", instance="a", what="database"}', '0+0x200'),
    'MigratorBrokerAway': ('migrator_broker_away_seconds{instance="c"}', '0+60x200'),
    'MigratorNotificationsWait': ('migrator_notifications_wait_seconds{instance="c"}', '0+60x200'),
    'MigratorHostDown': ('migrator_computes_down{instance="c"}', '1+0x200'),
    'MigratorMigrationStuck': ('migrator_migrations_stuck{instance="c"}', '1+0x200'),
    'MigratorCleanupBlocked': ('migrator_cleanups{instance="c", blocked="yes"}', '1+0x200'),
    'MigratorGuestElsewhere': ('migrator_guest_differences{instance="c", kind="moved"}', '2+0x200'),
    'MigratorAllocationsWrong': ('migrator_placement_findings{instance="c", verdict="leaked"}', '1+0x200'),
    'MigratorAuditFails': ('migrator_placement_audits_total{instance="c", result="done"}', '0+0x200'),
    'MigratorAuditOld': ('migrator_placement_audit_time_seconds{instance="c"}', '60+0x200'),
    'MigratorLeaseLost': ('migrator_leases_lost_total{instance="c"}', '0+1x200'),
    'MigratorQueueWaits': ('migrator_live_migrations_oldest_wait_seconds{instance="h"}', '0+60x200'),
    'MigratorApiErrors': ('migrator_http_request_seconds_count{instance="a", code="500"}', '0+30x200'),
}

#: What a site shows besides, on which guests move: each panel of the dashboard has something to show.
BUSY = {
    'migrator_check_ok{job="migrator-api", instance="a", what="message broker"}': '0+0x200',
    'migrator_started{job="migrator-compute", instance="h2"}': '0+0x200',
    'migrator_http_request_seconds_count{instance="a", code="404", route="/v2.1/servers/{server_id}"}': '0+1x200',
    'process_resident_memory_bytes{job="migrator-api", instance="a"}': '1+0x200',
    'migrator_migrations_in_progress{instance="c", type="live-migration", status="running"}': '2+0x200',
    'migrator_migrations_waiting{instance="c", what="slot"}': '1+0x200',
    'migrator_slots_used{instance="c", bound="cluster"}': '2+0x200',
    'migrator_slots_used{instance="c", bound="inbound", host="h2"}': '2+0x200',
    'migrator_slots_used{instance="c", bound="source", host="h"}': '2+0x200',
    'migrator_slots_limit{instance="c", bound="cluster"}': '4+0x200',
    'migrator_slots_limit{instance="c", bound="inbound"}': '2+0x200',
    'migrator_drains{instance="c", status="running"}': '1+0x200',
    'migrator_attention{instance="a", kind="guest-blocked"}': '1+0x200',
    'migrator_drains_ended_total{instance="c", status="completed"}': '0+1x200',
    'migrator_migrations_ended_total{instance="c", type="live-migration", status="failed"}': '0+1x200',
    'migrator_next_attempts_total{instance="c"}': '0+1x200',
    'migrator_takeovers_total{instance="c"}': '0+1x200',
    'migrator_live_migrations_running{instance="h"}': '2+0x200',
    'migrator_live_migrations_waiting{instance="h"}': '2+0x200',
    'migrator_step_seconds_count{instance="c", step="live_migration", direction="do", result="failed"}': '0+1x200',
    'migrator_rpc_call_seconds_count{job="migrator-conductor", method="wake", result="failed"}': '0+1x200',
    'migrator_placement_request_seconds_count{instance="c", method="GET", code="200"}': '0+1x200',
    'migrator_database_statement_seconds_count{job="migrator-conductor"}': '0+1x200',
    **{
        f'migrator_{name}_bucket{{{labels}, le="{bound}"}}': '0+1x200'
        for name, labels in (
            ('step_seconds', 'step="live_migration", direction="do", result="done"'),
            ('live_migration_downtime_seconds', 'instance="h"'),
            ('live_migration_bytes_per_second', 'instance="h"'),
            ('http_request_seconds', 'method="GET", route="/v2.1/servers", code="200"'),
            ('placement_request_seconds', 'method="GET", code="200"'),
            ('rpc_call_seconds', 'method="wake", result="answered"'),
            ('database_statement_seconds', 'job="migrator-api"'),
        )
        for bound in ('1', '+Inf')
    },
}

#: The minute at which the alerts are judged.
MINUTE = 180


def rules() -> list[dict[str, Any]]:
    """Return the alerts."""
    (group,) = yaml.safe_load(FILE.read_text())['groups']
    found: list[dict[str, Any]] = group['rules']
    return found


def dashboard() -> dict[str, Any]:
    """Return the dashboard."""
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard, without the rows."""
    return [panel for panel in dashboard()['panels'] if panel['type'] != 'row']


def expressions() -> list[str]:
    """Return the expressions of the dashboard, as Grafana sends them to Prometheus."""
    times = {'$__rate_interval': '5m', '$__interval': '1m'}
    found = [target['expr'] for panel in panels() for target in panel['targets']]
    return [functools.reduce(lambda text, time: text.replace(*time), times.items(), one) for one in found]
