# SPDX-License-Identifier: Apache-2.0

"""Migrations without a uuid, as an earlier release has left them."""

from __future__ import annotations

from collections.abc import Callable

#: The row that such a release wrote for an ended migration.
COLUMNS = {
    'instance_uuid': "'11111111-1111-4111-8111-111111111111'",
    'project_id': "'blue'",
    'user_id': "'ada'",
    'migration_type': "'live-migration'",
    'status': "'completed'",
    'source_compute': "'host1'",
    'source_node': "'host1'",
    'dest_compute': "'host2'",
    'hidden': 'false',
    'force': 'false',
    'allows_disabled': 'false',
    'disk_over_commit': 'false',
    'strategy': "'migration-owned'",
    'epoch': '1',
    'attempt': '1',
    'created_at': "'2026-01-01 00:00:00.000000'",
}


def insert(execute: Callable[[str], object], number: int = 1, quote: str = '"') -> None:
    """Write that number of rows.

    :param execute: has the database do what a text says.
    :param quote: what stands around a name.
    """
    names, values = ', '.join(f'{quote}{name}{quote}' for name in COLUMNS), ', '.join(COLUMNS.values())
    for _ in range(number):
        execute(f'INSERT INTO migrations ({names}) VALUES ({values})')  # noqa: S608 -- what stands above
