# SPDX-License-Identifier: Apache-2.0

"""``migrator-drain audit`` and ``heal``: the wrong allocations in Placement, and their repair."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from migrator import exception
from migrator.cli import command
from migrator.foreground.session import Session

if TYPE_CHECKING:
    from migrator.nova.audit import Audited, Finding

#: Seconds between the two readings of an audit.
_SETTLE = 5.0


def audit(asked: Session) -> int:
    """Show the wrong allocations and the remedy of each; change nothing."""
    found = _read(asked)
    lines = [line for one in found.findings for line in (*_lines(one), f'  remedy: {one.remedy}', '')]
    lines += [_about(one) for one in found.others]
    document = {
        'findings': [one.as_dict() for one in found.findings],
        'others': [one.as_dict() for one in found.others],
        'unreadable': found.unreadable,
    }
    asked.answer(document, _text([*lines, *_sum(asked, found)]))
    return command.WRONG if found.findings or found.unreadable else command.RIGHT


def heal(asked: Session) -> int:
    """Repair the findings of an audit, each in one write. Without ``--yes`` only show the writes.

    Exit 1 if a finding is left, or if ``--consumer`` names a consumer without one.
    """
    from migrator.nova import audit

    given, (nova, placement) = asked.arguments, asked.cloud
    found = _read(asked)
    named = set(given.consumer or ())
    chosen = [one for one in found.findings if not named or one.holders & named]
    unknown = sorted(named - {uuid for one in chosen for uuid in one.holders})
    repaired, documents = 0, []
    for one in chosen:
        done, says = audit.repairable(one, named)
        if done and given.yes:
            try:
                done, says = audit.heal(nova, placement, one, named)
            except exception.ServiceUnreachable as error:
                done, says = False, f'the write may or may not be done ({error}): audit again'
        repaired += done
        documents.append({'finding': one.as_dict(), 'healed': done and given.yes, 'says': says})
        if not given.json:
            # Printed at once, so that the output is complete if the next repair fails.
            print(
                _text([*_lines(one), *_writes(one, given.yes), f'  {_outcome(done, given.yes, says)}', '']), flush=True
            )
    lines = [f'{uuid}: no finding names it.' for uuid in unknown]
    left = len(chosen) - repaired
    if chosen and not given.yes:
        lines.append('Nothing was changed.' + (' To do it: the same with --yes.' if repaired else ''))
    elif chosen:
        lines.append(f'{repaired} repaired, {left} left.')
    else:
        lines += _sum(asked, found)
    asked.answer({'dry_run': not given.yes, 'findings': documents, 'unknown': unknown}, _text(lines))
    return command.WRONG if left or unknown else command.RIGHT


def _read(asked: Session) -> Audited:
    from migrator.nova import audit

    nova, placement = asked.cloud
    return audit.audit(nova, placement, asked.threads, _SETTLE)


def _about(finding: Finding) -> str:
    name = f' ({finding.name})' if finding.name else ''
    return f'{finding.consumer}{name}: {finding.verdict}: {finding.reason}'


def _lines(finding: Finding) -> Iterator[str]:
    yield _about(finding)
    for one in finding.holdings:
        amounts = ', '.join(f'{amount} {name}' for name, amount in sorted(one.resources.items()))
        where = one.host or f'provider {one.provider}'
        yield f'  {one.consumer_type.lower()} {one.consumer} holds {amounts} at {where}'
    if finding.right is not None:
        yield f'  right: {finding.right}'


def _writes(finding: Finding, done: bool) -> Iterator[str]:
    if finding.request is not None and not done:
        yield f'  {finding.request["method"]} {finding.request["url"]} {json.dumps(finding.request["body"])}'


def _outcome(done: bool, yes: bool, says: str) -> str:
    if not done:
        return f'Not repaired: {says}.'
    return f'Done: {says}.' if yes else f'Would be done: {says}.'


def _sum(asked: Session, found: Audited) -> list[str]:
    count, unreadable = len(found.findings), found.unreadable
    lines = (
        [f'{unreadable} servers were not audited: the database of their cell does not answer.'] if unreadable else []
    )
    if not count:
        return [*lines, 'Every other allocation is correct.' if unreadable else 'Every allocation is correct.']
    return [*lines, f'{count} wrong. To see how they would be repaired: {asked.command} heal']


def _text(lines: Sequence[str]) -> str:
    return '\n'.join(command.printable(line) if line else '' for line in lines)


def heal_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of :func:`heal`."""
    help_ = 'only this consumer, may be repeated; a doubtful one is repaired only if it is named here'
    parser.add_argument('--consumer', type=command.uuid, action='append', metavar='UUID', help=help_)
    parser.add_argument('--yes', action='store_true', help='do it; without --yes, only show what would be done')
