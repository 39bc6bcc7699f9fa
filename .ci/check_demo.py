# SPDX-License-Identifier: Apache-2.0

"""Check the demo's JSON report on stdin: all migrations completed, and the audit found nothing."""

from __future__ import annotations

import json
import sys
from typing import Any


def wrong(report: dict[str, Any]) -> list[str]:
    """Say what is wrong with a report."""
    found = [
        f'migration {migration["uuid"]} of {migration["instance"]} ended {migration["status"]}: {migration["history"]}'
        for migration in report['migrations']
        if migration['status'] != 'completed'
    ]
    found += [f'audit: {finding}' for finding in report['audit']['findings']]
    if not report['migrations']:
        found.append('the demo migrated nothing')
    return found


def main() -> int:
    """Read, judge and print."""
    text = sys.stdin.read()
    try:
        report = json.loads(text)
    except ValueError as error:
        print(f'the demo printed no JSON report ({error}): {text[:500]!r}', file=sys.stderr)
        return 1
    found = wrong(report)
    for line in found:
        print(line, file=sys.stderr)
    if found:
        return 1
    print(f'{len(report["migrations"])} migrations completed, audit without findings')
    for name, value in report['counts']['per_migration'].items():
        print(f'  {name} per migration: {value}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
