# SPDX-License-Identifier: Apache-2.0

"""Check the demo's JSON report on stdin: the drain is completed, and the audit found nothing."""

from __future__ import annotations

import json
import sys
from typing import Any


def wrong(report: dict[str, Any]) -> list[str]:
    """Say what is wrong with a report."""
    drain = report['drain']
    found = []
    if drain['status'] != 'completed':
        found.append(f'the drain ended {drain["status"]}: {drain["message"]}')
    found += [f'{check["what"]}: {check["left"]}' for check in drain['checks'] if check['left']]
    found += [
        f'{one["name"]} is {one["status"]}: {one["reason"]}' for one in drain['members'] if one['status'] != 'moved'
    ]
    if report['left'] or not drain['checks']:
        found.append(f'the host has {report["left"]} guests, and the checks are {drain["checks"]}')
    attempts = sorted(one['attempts'] for one in drain['members'])
    if attempts != [1] * (len(attempts) - 1) + [2]:
        found.append(f'the attempts are {attempts}, and only one guest needs a second one')
    ends = [migration['status'] for migration in report['migrations']]
    if sorted(ends) != ['completed'] * len(drain['members']) + ['failed']:
        found.append(f'the migrations ended {ends}, and only one fails in the demo')
    found += [f'audit: {finding}' for finding in report['audit']['findings']]
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
    print(f'{len(report["drain"]["members"])} guests moved, one at its second attempt; audit without findings')
    for name, value in report['counts']['per_migration'].items():
        print(f'  {name} per migration: {value}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
