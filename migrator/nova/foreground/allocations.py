# SPDX-License-Identifier: Apache-2.0

"""``migrator-drain audit`` and ``heal``: the allocations of Nova's guests in Placement."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from migrator import exception
from migrator.nova.foreground.session import Session
from migrator.operator.cli import command

if TYPE_CHECKING:  # imported where it is used, so that the help is fast
    from migrator.nova.audit import Audited, Finding

#: Seconds between the two readings of what looks wrong.
_SETTLE = 10
_RIGHT = 'its allocations are correct, or are changing at this moment.'
_UNKNOWN = 'Nova does not know it, and it holds nothing in Placement: check the uuid.'


@dataclasses.dataclass(frozen=True)
class Audit:
    """An audit, as it is shown."""

    document: dict[str, Any]
    lines: list[str]
    is_wrong: bool


def audit(asked: Session) -> int:
    """Show the wrong allocations and the remedy of each; change nothing."""
    found = look(asked)
    asked.answer(found.document, command.printable_lines(found.lines))
    return command.WRONG if found.is_wrong else command.RIGHT


def look(asked: Session) -> Audit:
    """Return the wrong allocations, and the remedy of each."""
    found = _audit(asked)
    lines = [line for finding in found.findings for line in _lines(finding, finding.remedy)]
    if found.others:
        rows = [(one.name, one.consumer, one.verdict, one.reason) for one in found.others]
        lines += [*command.table(('Server', 'UUID', 'No error', 'Reason'), rows).splitlines(), '']
    lines += [*_unreadable(found), _sum(asked, found.findings)]
    document = {
        'findings': [one.as_dict() for one in found.findings],
        'others': [one.as_dict() for one in found.others],
        'unreadable': found.unreadable,
    }
    return Audit(document, lines, bool(found.findings or found.unreadable))


def heal(asked: Session) -> int:
    """Correct the findings of an audit, each in one write, which is shown before.

    Without ``--yes`` only show the writes. Exit 1 if a finding is left, if a server was not audited, or if
    ``--consumer`` names an unknown consumer.
    """
    from migrator.nova.audit import repairable

    given, named = asked.arguments, set(asked.arguments.consumer or ())
    found = _audit(asked)
    findings = [one for one in found.findings if not named or one.holders & named]
    without_finding = sorted(named.difference(*(one.holders for one in findings)))
    healed, consumers = 0, []
    for finding in findings:
        may, text = repairable(finding, named)
        if not given.json:
            # Printed before the write, so that the output is complete if the write fails.
            print(command.printable_lines([*_lines(finding), *(_request(finding) if may else ())]), flush=True)
        if may and given.yes:
            may, text = _heal(asked, finding, named)
        healed += may
        consumers.append({'consumer': finding.consumer, 'healed': may and given.yes, 'says': text})
        if not given.json:
            prefix = 'Not corrected' if not may else 'Done' if given.yes else 'Would be done'
            print(command.printable_lines([f'  {prefix}: {text.rstrip(".")}.', '']), flush=True)
    left = len(findings) - healed
    unknown = [uuid for uuid in without_finding if not _is_known(asked, uuid)]
    lines = [f'{uuid}: {_UNKNOWN if uuid in unknown else _RIGHT}' for uuid in without_finding]
    lines += _unreadable(found)
    if findings and given.yes:
        lines += [f'{healed} corrected, {left} left.']
    elif findings:
        lines += ['Nothing was changed.' + (' To do it: the same with --yes.' if healed else '')]
    elif not without_finding:
        lines += [_sum(asked, findings)]
    document = {
        'dry_run': not given.yes,
        'findings': [one.as_dict() for one in findings],
        'consumers': consumers,
        'unknown': unknown,
        'unreadable': found.unreadable,
    }
    asked.answer(document, command.printable_lines(lines))
    return command.WRONG if left or unknown or found.unreadable else command.RIGHT


def _audit(asked: Session) -> Audited:
    from migrator.nova import audit

    return audit.audit(*asked.cloud, asked.threads, getattr(asked.arguments, 'settle', _SETTLE))


def _heal(asked: Session, finding: Finding, named: Collection[str]) -> tuple[bool, str]:
    from migrator.nova import audit

    try:
        return audit.heal(*asked.cloud, finding, named)
    except exception.MigratorException as error:
        return False, f'the correction may or may not be done ({error}): audit again'


def _is_known(asked: Session, uuid: str) -> bool:
    from migrator.placement_client import allocations

    nova, placement = asked.cloud
    known = nova.server(uuid) is not None or nova.remembers_migration(uuid)
    return known or bool(allocations.read(placement, uuid).allocations)


def _lines(finding: Finding, remedy: str | None = None) -> Iterator[str]:
    yield f'consumer {finding.consumer}' if finding.name is None else f'server {finding.name} {finding.consumer}'
    yield f'  {finding.verdict}: {finding.reason}'
    for one in finding.holdings:
        resources = ', '.join(f'{amount} {name}' for name, amount in one.resources.items())
        where = f'{one.host or "no compute host"} (provider {one.provider})'
        yield f'    {one.consumer_type.lower()} {one.consumer} holds {resources} on {where}'
    if finding.right is not None:
        yield f'  it must hold {finding.right}'
    if remedy is not None:
        yield f'  remedy: {remedy}'
        yield ''


def _request(finding: Finding) -> Iterator[str]:
    if finding.request is not None:
        yield f'  {finding.request["method"]} {finding.request["url"]} {json.dumps(finding.request["body"])}'


def _unreadable(found: Audited) -> list[str]:
    if not found.unreadable:
        return []
    return [f'Not audited: {found.unreadable} servers, because the database of their cell does not answer.']


def _sum(asked: Session, findings: Collection[Finding]) -> str:
    if not findings:
        return 'No wrong allocation was found.'
    count = len(findings)
    have = 'guests or consumers have' if count > 1 else 'guest or consumer has'
    return f'{count} {have} wrong allocations. To see the corrections: {asked.command} heal'


def audit_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``audit``."""
    parser.add_argument(
        '--settle',
        type=command.at_least(0),
        default=_SETTLE,
        metavar='SECONDS',
        help=f'the time between the two readings of what looks wrong; default {_SETTLE}',
    )


def heal_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``heal``."""
    audit_arguments(parser)
    help_ = (
        'only this guest, migration or consumer, may be repeated; one in doubt is corrected only if it is named here'
    )
    parser.add_argument('--consumer', type=command.uuid, action='append', metavar='UUID', help=help_)
    do = parser.add_mutually_exclusive_group()
    do.add_argument('--yes', action='store_true', help='do it; without --yes, only show what would be done')
    do.add_argument('--dry-run', action='store_true', help='only show what would be done, as without --yes')
