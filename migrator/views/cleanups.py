# SPDX-License-Identifier: Apache-2.0

"""Deferred cleanups: their documents, and what the requests of an operator for a blocked one mean."""

from __future__ import annotations

from typing import Any

from migrator.db.cleanups import Cleanup
from migrator.objects.steps import AFTER_EVACUATION


def state(cleanup: Cleanup) -> str:
    """Return ``blocked`` or ``pending``."""
    return 'blocked' if cleanup.blocked_because is not None else 'pending'


def document(cleanup: Cleanup) -> dict[str, Any]:
    """Return a cleanup as JSON."""
    shown = ('id', 'host', 'step', 'instance_uuid', 'migration_uuid', 'reason', 'blocked_because', 'created_at')
    return {name: getattr(cleanup, name) for name in shown} | {'state': state(cleanup)}


def effect(cleanup: Cleanup) -> str:
    """Return what a cleanup may do to the guest at its host, in a sentence."""
    if cleanup.may_end_copy:
        return (
            "A conductor first polls the guest's host. Only if that reports that it has the guest, the copy at "
            f'{cleanup.host} is ended, even if it runs. Disks that are or may be shared are kept.'
        )
    return 'The host observes first, and stops no guest that could run.'


def plan_retry(cleanup: Cleanup) -> str:
    """Return what the retry of a blocked cleanup does next."""
    return (
        f'A conductor would have {cleanup.host} do {cleanup.step} again. {effect(cleanup)} The '
        'cleanup is blocked again if it would remove the guest from the host where the database has the instance.'
    )


def retried(cleanup: Cleanup) -> str:
    """Return what was done when a cleanup was unblocked."""
    return f'Cleanup {cleanup.id} is unblocked: with its next sweep a conductor has {cleanup.host} do {cleanup.step}.'


def plan_discard(cleanup: Cleanup) -> str:
    """Return what it would mean to discard a blocked cleanup."""
    plan = (
        f'No conductor would ever have {cleanup.host} do {cleanup.step}. Whatever is left there of guest '
        f'{cleanup.instance_uuid} would stay: look at {cleanup.host} first.'
    )
    if cleanup.step == AFTER_EVACUATION:
        plan += f' Then the evacuation is completed, and releases its allocation at {cleanup.host}.'
    return plan


def discarded(cleanup: Cleanup) -> str:
    """Return what was done when a cleanup was discarded."""
    return f'Cleanup {cleanup.id} is discarded: no conductor has {cleanup.host} do {cleanup.step}.'
