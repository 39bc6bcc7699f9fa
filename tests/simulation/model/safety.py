# SPDX-License-Identifier: Apache-2.0
"""Invariants of every state, of a state in which nothing goes on by itself, and of a good end."""

from __future__ import annotations

from typing import Any

from migrator.objects.migration import MigrationStatus as Status
from tests.simulation.model.search import Invariant
from tests.simulation.model.state import BACK, FORWARD, Allocations, Destination, Message, Phase, Row, Source, Up

_HERE = ('here', 'job')
_BUSY = ('queued', 'started', 'unwanted', 'calling')


def _runs(name: str, destinations: tuple[Destination, ...]) -> bool:
    return any(host.guest == 'runs' for host, its in zip(destinations, 'DE', strict=False) if name in ('', its))


def one_guest(source: Source, *destinations: Destination) -> str:
    """The guest runs on one host, and is nowhere destroyed."""
    running = sum(host.guest == 'runs' for host in destinations)
    if (source.guest in _HERE) + running > 1:
        return 'the guest runs on two hosts'
    return 'the guest is destroyed' if source.guest == 'absent' and not running else ''


def outcome_is_true(row: Row, source: Source, *destinations: Destination) -> str:
    """The outcome is what has happened."""
    if row.host != 'S' and not _runs(row.host, destinations):
        return 'the database has the guest on the destination, which does not run it'
    if row.outcome == BACK and _runs('', destinations):
        return 'outcome back while the destination runs the guest'
    if row.outcome == FORWARD and source.guest in _HERE:
        return 'outcome forward while the source has the guest'
    if row.phase == Phase.LIVE_INTENDED and source.guest in ('job', 'cutover'):
        if destinations['DE'.index(row.destination)].guest == 'none':
            return 'the destination was cleaned under a job'
    return ''


def nothing_left_at_source(row: Row, source: Source) -> str:
    """What has ended leaves no work, and no guest paused, at a source without a deferred cleanup."""
    if not row.ended or row.cleanup_s:
        return ''
    if source.work in _BUSY or source.guest in ('job', 'cutover'):
        return 'work at the source after the end'
    return 'the guest is left paused after the end' if source.guest == 'paused' and row.host == 'S' else ''


def stop_is_requested(row: Row, source: Source) -> str:
    """What a planned stop has cancelled is unwound because of its abort request, which is committed."""
    unwound = row.outcome == BACK and row.phase == Phase.LIVE_INTENDED and source.by_stop
    return 'unwound after a stop without an abort request' if unwound and not row.abort else ''


def nothing_left_at_destination(row: Row, *destinations: Destination) -> str:
    """What was given up leaves nothing at a destination without a deferred cleanup."""
    for name, host in zip('DE', destinations, strict=False):
        tried = row.attempt > 'DE'.index(name) + 1 or (row.ended and row.destination == name)
        debris = host.guest != 'none' or host.work in ('checking', 'preparing', 'clearing')
        if tried and debris and row.host != name and not (name == 'D' and row.cleanup_d):
            return 'debris at a destination that was given up'
    return ''


def allocations_are_right(row: Row, allocations: Allocations) -> str:
    """The consumers hold what they should."""
    if row.ended and allocations.migration:
        return 'an ended migration holds an allocation'
    if row.ended and allocations.instance != row.host:
        return "the instance's allocation is not on its host after the end"
    if allocations.migration == 'S' and allocations.instance == 'S':
        return 'both hold the source'
    return ''


def covered(allocations: Allocations, row: Row, source: Source, *destinations: Destination) -> str:
    """Return what neither an allocation nor a deferred cleanup covers at a host, or an empty text."""
    if source.guest != 'absent' and 'S' not in (allocations.instance, allocations.migration) and not row.cleanup_s:
        if source.up == Up.UP:
            return 'the guest at the source is not covered'
    for name, host in zip('DE', destinations, strict=False):
        has_cleanup = name == 'D' and row.cleanup_d
        if host.guest != 'none' and allocations.instance != name and not has_cleanup and host.up == Up.UP:
            return 'what is at the destination is not covered'
    return ''


def newest_boot(row: Row, source: Source, *destinations: Destination) -> str:
    """A host that takes commands is registered, and no older boot of it is instead."""
    hosts = zip((row.boot_s, row.boot_d), (source, *destinations), strict=False)
    older = any(host.up == Up.UP and registered != host.boot for registered, host in hosts)
    return 'an older boot than the one that runs is registered' if older else ''


def reported_truth(row: Row) -> str:
    """An end says what it was: cancelled if that was asked for, and only then."""
    if row.status == Status.CANCELLED and not row.abort:
        return 'cancelled, but no abort was requested'
    return ''


def at_rest(row: Row, net: tuple[Message, ...], source: Source, *destinations: Destination) -> str:
    """What must be so when only a fault, a user or an operator changes anything."""
    if waits_for_a_hang(row, source, *destinations):
        return ''
    if not row.ended:
        return 'nothing goes on, and it has not ended'
    if net:
        return 'a call is left'
    for name, cleanup in (('S', row.cleanup_s), ('D', row.cleanup_d)):
        if cleanup is not None:
            return f'a cleanup is left at {name}: {cleanup.what}'
    left = [name for name, host in zip('DE', destinations, strict=False) if host.guest != 'none' and name != row.host]
    if left:
        return f'something is left at {left}'
    if source.guest != ('here' if row.host == 'S' else 'absent'):
        return 'the source does not have the guest, or still has something of it'
    return ''


def waits_for_a_hang(row: Row, source: Source, *destinations: Destination) -> bool:
    """Whether nothing is left to do before a hypervisor of a destination answers.

    An abort is left to do until the source has ended its work: that needs no destination.
    """
    works = source.work in _BUSY or source.guest in ('job', 'cutover')
    if row.abort and row.outcome == '' and works:
        return False
    needed = {'' if row.ended else row.destination, 'D' if row.cleanup_d else ''}
    return any(host.hangs and name in needed for host, name in zip(destinations, 'DE', strict=False))


def well_over(row: Row) -> str:
    """'' if it has ended, and no cleanup is deferred."""
    return '' if row.ended and not row.cleanup_s and not row.cleanup_d else 'not yet'


def invariants(destinations: tuple[str, ...]) -> tuple[Invariant, ...]:
    """Return what must hold in every state. :param destinations: the parts that are destinations, D first."""
    return (
        Invariant(('source', *destinations), one_guest),
        Invariant(('row', 'source', *destinations), outcome_is_true),
        Invariant(('row', 'source'), nothing_left_at_source),
        Invariant(('row', 'source'), stop_is_requested),
        Invariant(('row', *destinations), nothing_left_at_destination),
        Invariant(('row', 'allocations'), allocations_are_right),
        Invariant(('allocations', 'row', 'source', *destinations), covered),
        Invariant(('row', 'source', *destinations), newest_boot),
        Invariant(('row',), reported_truth),
    )


def rest(destinations: tuple[str, ...]) -> Invariant:
    """Return what must be so when nothing goes on by itself."""
    return Invariant(('row', 'net', 'source', *destinations), at_rest)


def over(destinations: tuple[str, ...], hangs: bool) -> Invariant:
    """Return what decides whether all is well and over. :param hangs: whether a hypervisor may hang."""
    if not hangs:
        return Invariant(('row',), well_over)

    def over_or_waits(row: Row, *hosts: Any) -> str:
        return '' if waits_for_a_hang(row, *hosts) else well_over(row)

    return Invariant(('row', 'source', *destinations), over_or_waits)
