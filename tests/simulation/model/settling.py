# SPDX-License-Identifier: Apache-2.0
"""The product's table, asked with the reports of the modelled hosts; nothing is decided here."""

from __future__ import annotations

import functools

from migrator.conductor.migration import settle_table
from migrator.objects.migration import MigrationStatus
from migrator.objects.protocol import Entry, GuestState
from tests.simulation.model.state import WORK_ENDS, Destination, Phase, Row, Source

#: What stands for the report of a host that is down, of one whose hypervisor hangs, and what a planned stop of the
#: source has left in its place.
DOWN = settle_table.Host(settle_table.Observed.DOWN)
MISSING = settle_table.Host(settle_table.Observed.MISSING)
CALLED_OFF = settle_table.Host(settle_table.Observed.RETURNED)

_GUEST = {
    'here': GuestState.RUNNING,
    'job': GuestState.RUNNING,
    'cutover': GuestState.CUTOVER,
    'paused': GuestState.CUTOVER,
    'absent': GuestState.ABSENT,
    'none': GuestState.ABSENT,
    'checked': GuestState.ABSENT,
    'waiting': GuestState.WAITING,
    'runs': GuestState.RUNNING,
}
_ENTRY = {
    'queued': Entry.QUEUED,
    # Its Future is cancelled, but the host reports that only after a conductor has committed the abort request.
    'called off': Entry.QUEUED,
    'started': Entry.STARTED,
    'unwanted': Entry.STARTED,
    'calling': Entry.STARTED,
}
_VERDICTS = frozenset({'completed', 'failed', 'aborted'})


@functools.cache
def source_report(guest: str, work: str, hasty: bool = False) -> settle_table.Host:
    """Return what the source's answer to a poll comes to, as settle_table.source_observed has it.

    :param hasty: planted: between the queue and the driver's call it reports nothing.
    """
    entry = Entry.RETURNED if work in WORK_ENDS else _ENTRY.get(work, Entry.NONE)
    if hasty and entry == Entry.STARTED:
        entry = Entry.NONE
    observed = settle_table.source_observed(_GUEST[guest], guest in ('job', 'cutover'), entry)
    return settle_table.Host(observed, verdict=work if work in _VERDICTS else '')


@functools.cache
def destination_report(guest: str, work: str) -> settle_table.Host:
    """Return what the destination's answer comes to."""
    return settle_table.Host(settle_table.destination_observed(_GUEST[guest], work == 'preparing'))


def of_source(source: Source, hasty: bool = False) -> settle_table.Host:
    """Return the report of a source as it now is."""
    return source_report(source.guest, source.work, hasty)


def of_destination(destination: Destination) -> settle_table.Host:
    """Return the report of a destination as it now is."""
    return MISSING if destination.hangs else destination_report(destination.guest, destination.work)


def column(row: Row) -> settle_table.Column:
    """Return where a migration stands, as tasks/live_migrate.py has it."""
    if row.phase < Phase.LIVE_INTENDED:
        return settle_table.Column.NOT_SENT
    return settle_table.Column.QUEUED if row.status == MigrationStatus.QUEUED else settle_table.Column.RUNNING


@functools.cache
def decide(
    source: settle_table.Host, destination: settle_table.Host, where: settle_table.Column, must_abort: bool, again: bool
) -> settle_table.Act:
    """Return the product's decision."""
    return settle_table.decide(source, destination, where, must_abort, again).act
