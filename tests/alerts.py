# SPDX-License-Identifier: Apache-2.0

"""The alerts for Prometheus, and what each is to fire on."""

from __future__ import annotations

import pathlib
from typing import Any

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILE = ROOT / 'etc/migrator/alerts.yaml'

#: What a scrape of a site without a fault finds, one value for each minute.
HEALTHY = {
    'up{job="migrator-api", instance="a"}': '1+0x200',
    'up{job="migrator-compute", instance="drained"}': '0+0x200',
    'process_start_time_seconds{job="migrator-api", instance="a"}': '5+0x200',
    'migrator_started{job="migrator-compute", instance="h"}': '1+0x200',
    'migrator_check_ok{job="migrator-api", instance="a", what="database"}': '1+0x200',
    'migrator_broker_away_seconds{instance="c"}': '0+0x200',
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

#: The minute at which the alerts are judged.
MINUTE = 180


def rules() -> list[dict[str, Any]]:
    """Return the alerts."""
    (group,) = yaml.safe_load(FILE.read_text())['groups']
    found: list[dict[str, Any]] = group['rules']
    return found
