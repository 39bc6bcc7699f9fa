# SPDX-License-Identifier: Apache-2.0

"""``migrator-manage placement``: what is wrong in Placement, and putting it right."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from migrator import exception
from migrator.cli import command
from migrator.cli.command import Asked, Verb

if TYPE_CHECKING:
    from migrator.conductor import audit as audits
    from migrator.placement_client.client import PlacementClient

    Wrong = audits.Wrong


_RIGHT = 'nothing is wrong with it, or it comes, goes or moves at this moment.'
_UNHEARD_OF = 'it is neither an instance nor a migration here, and holds nothing in Placement: is it the right uuid?'


def audit(asked: Asked) -> int:
    """Say which allocations have no living reason, and what puts each right; change nothing."""
    from migrator.conductor import audit as audits

    found = audits.audit(asked.database, asked.placement())
    lines = [line for wrong in found for line in _told(wrong)]
    lines.append(_sum(found))
    asked.answer({'findings': _findings(found)}, _text(lines))
    return command.WRONG if found else command.RIGHT


def heal(asked: Asked) -> int:
    """Put what an audit finds right, each consumer in one write; without ``--yes`` only say what would be done.

    Exit 1 if something is left that is wrong, or a consumer was named of whom nobody has heard.
    """
    from migrator.conductor import audit as audits

    given, client = asked.arguments, asked.placement()
    found = audits.audit(asked.database, client)
    strange = sorted(set(given.consumer or ()) - {wrong.consumer for wrong in found})
    if given.consumer:
        found = [wrong for wrong in found if wrong.consumer in given.consumer]
    unknown = [uuid for uuid in strange if not _is_known(asked, client, uuid)]
    lines = [f'{uuid}: {_UNHEARD_OF if uuid in unknown else _RIGHT}' for uuid in strange]
    healed, document = 0, []
    for wrong in found:
        done, observed = _heal(asked, client, wrong)
        healed += done
        document.append({'consumer': wrong.consumer, 'healed': done and given.yes, 'says': observed})
        if not given.json:
            # At once: should the next one break off, this one has been said.
            print(_text([*_told(wrong, remedy=False), f'  {observed.rstrip(".")}.', '']), flush=True)
    left = len(found) - healed
    if not given.yes and healed:
        lines += ['Nothing was changed. To do it: the same with --yes.']
    elif not given.yes and found:
        lines += ['Nothing was changed.']
    elif found:
        lines += [f'{healed} {"is" if healed == 1 else "are"} put right, {left} left.']
    elif not found and not strange:
        lines += [_sum(found)]
    answer = {'dry_run': not given.yes, 'findings': _findings(found), 'consumers': document, 'unknown': unknown}
    asked.answer(answer, _text(lines))
    return command.WRONG if left or unknown else command.RIGHT


def _is_known(asked: Asked, client: PlacementClient, uuid: str) -> bool:
    """Whether it is an instance or a migration here, or holds anything."""
    for get in (asked.database.instances.get, asked.database.migrations.get):
        with contextlib.suppress(exception.NotFound):
            get(uuid)
            return True
    from migrator.placement_client import allocations

    return bool(allocations.read(client, uuid).allocations)


def _findings(found: Iterable[Wrong]) -> list[dict[str, Any]]:
    return [finding.as_dict() for wrong in found for finding in wrong.findings]


def _heal(asked: Asked, client: PlacementClient, wrong: Wrong) -> tuple[bool, str]:
    """Return whether it is, or would be, put right, and what is to be said of it."""
    from migrator.conductor import audit as audits

    named = asked.arguments.consumer or ()
    try:
        if not asked.arguments.yes:
            found = audits.remedy(asked.database, client, wrong, named)
            return (
                found.write is not None,
                f'Would be done: {found.observed}' if found.write else f'Left: {found.observed}',
            )
        done, observed = audits.heal(asked.database, client, wrong, named)
    except exception.MigratorException as error:
        return False, f'Not known whether it was done ({error}): audit again'
    return done, f'Done: {observed}' if done else f'Left: {observed}'


def _told(wrong: Wrong, remedy: bool = True) -> Iterator[str]:
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
        return 'Every allocation has a living reason.'
    count = len(found)
    have = 'consumers have' if count > 1 else 'consumer has'
    return f'{count} {have} wrong allocations; "placement heal" puts right what it can.'


def _text(lines: list[str]) -> str:
    return '\n'.join(command.printable(line) if line else '' for line in lines)


def _heal_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--consumer',
        type=command.uuid,
        action='append',
        metavar='UUID',
        help='this one only, may be given again; one that nobody knows here is removed only if it is named',
    )
    parser.add_argument('--yes', action='store_true', help='do it; without it, what would be done is told')


#: What can be done to the allocations.
VERBS: tuple[command.Verb, ...] = (
    Verb('audit', 'say which allocations have no living reason', audit),
    Verb('heal', 'put wrong allocations right, each consumer in one write', heal, _heal_arguments),
)
