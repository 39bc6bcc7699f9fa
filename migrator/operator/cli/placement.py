# SPDX-License-Identifier: Apache-2.0

"""``migrator-manage placement``: the audit and correction of allocations in Placement."""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from migrator import exception
from migrator.operator.cli import command, instance
from migrator.operator.cli.command import Asked, Verb

if TYPE_CHECKING:
    from migrator.conductor.audit import Wrong
    from migrator.placement_client.client import PlacementClient


_RIGHT = 'its allocation is correct, or is changing at this moment.'
_UNKNOWN = 'it is neither an instance nor a migration here, and holds nothing in Placement: check the uuid.'


def audit(asked: Asked) -> int:
    """Show the wrong allocations and the remedy of each; change nothing."""
    from migrator.conductor import audit

    found = audit.audit(asked.database, asked.placement())
    lines = [line for wrong in found for line in _lines(wrong)]
    lines.append(_sum(found))
    asked.answer({'findings': _findings(found)}, command.printable_lines(lines))
    return command.WRONG if found else command.RIGHT


def heal(asked: Asked) -> int:
    """Correct the findings of an audit, each consumer in one write.

    Without ``--yes`` only show what would be done. Exit 1 if a finding is left, or if ``--consumer`` names an unknown
    consumer.
    """
    from migrator.conductor import audit

    given, client = asked.arguments, asked.placement()
    found = audit.audit(asked.database, client)
    without_finding = sorted(set(given.consumer or ()) - {wrong.consumer for wrong in found})
    if given.consumer:
        found = [wrong for wrong in found if wrong.consumer in given.consumer]
    unknown = [uuid for uuid in without_finding if not _is_known(asked, client, uuid)]
    lines = [f'{uuid}: {_UNKNOWN if uuid in unknown else _RIGHT}' for uuid in without_finding]
    healed, document = 0, []
    for wrong in found:
        done, observed = _heal(asked, client, wrong)
        healed += done
        document.append({'consumer': wrong.consumer, 'healed': done and given.yes, 'says': observed})
        if not given.json:
            # Printed at once, so that the output is complete if the next correction fails.
            print(command.printable_lines([*_lines(wrong, remedy=False), f'  {observed.rstrip(".")}.', '']), flush=True)
    left = len(found) - healed
    if not given.yes and healed:
        lines += ['Nothing was changed. To do it: the same with --yes.']
    elif not given.yes and found:
        lines += ['Nothing was changed.']
    elif found:
        lines += [f'{healed} corrected, {left} left.']
    elif not found and not without_finding:
        lines += [_sum(found)]
    answer = {'dry_run': not given.yes, 'findings': _findings(found), 'consumers': document, 'unknown': unknown}
    asked.answer(answer, command.printable_lines(lines))
    return command.WRONG if left or unknown else command.RIGHT


def _is_known(asked: Asked, client: PlacementClient, uuid: str) -> bool:
    """Return whether a uuid is an instance or a migration here, or holds an allocation."""
    for get in (asked.database.instances.get, asked.database.migrations.get):
        with contextlib.suppress(exception.NotFound):
            get(uuid)
            return True
    from migrator.placement_client import allocations

    return bool(allocations.read(client, uuid).allocations)


def _findings(found: Iterable[Wrong]) -> list[dict[str, Any]]:
    return [finding.as_dict() for wrong in found for finding in wrong.findings]


def _heal(asked: Asked, client: PlacementClient, wrong: Wrong) -> tuple[bool, str]:
    """Return whether a consumer is or would be corrected, and a text that says how."""
    from migrator.conductor import audit

    named = asked.arguments.consumer or ()
    ask = functools.partial(instance.list_guests, asked)
    try:
        if not asked.arguments.yes:
            found = audit.remedy(asked.database, client, wrong, named, ask)
            return (
                found.write is not None,
                f'Would be done: {found.observed}' if found.write else f'Not corrected: {found.observed}',
            )
        done, observed = audit.heal(asked.database, client, wrong, named, ask)
    except exception.MigratorException as error:
        return False, f'The correction may or may not be done ({error}): audit again'
    return done, f'Done: {observed}' if done else f'Not corrected: {observed}'


def _lines(wrong: Wrong, remedy: bool = True) -> Iterator[str]:
    kind = wrong.findings[0].consumer_type.lower()
    yield f'{kind} {wrong.consumer}'
    for finding in wrong.findings:
        held = ', '.join(f'{amount} {name}' for name, amount in finding.resources.items())
        since = f', since {finding.since}' if finding.since else ''
        yield f'  {finding.verdict}{since}: {held} at provider {finding.provider}'
        yield f'    {finding.reason}'
    if remedy:
        for text in dict.fromkeys(finding.remedy for finding in wrong.findings):
            yield f'  remedy: {text}'
        yield ''


def _sum(found: list[Wrong]) -> str:
    if not found:
        return 'Every allocation is correct.'
    count = len(found)
    have = 'consumers have' if count > 1 else 'consumer has'
    return f'{count} {have} wrong allocations; "placement heal" corrects those that it can.'


def _heal_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--consumer',
        type=command.uuid,
        action='append',
        metavar='UUID',
        help='only this consumer, may be repeated; an unknown consumer is removed only if it is named here',
    )
    parser.add_argument('--yes', action='store_true', help='do it; without --yes, only show what would be done')


#: The verbs of the allocations.
VERBS: tuple[command.Verb, ...] = (
    Verb('audit', 'show which allocations are wrong', audit),
    Verb('heal', 'correct wrong allocations, each consumer in one write', heal, _heal_arguments),
)
