# SPDX-License-Identifier: Apache-2.0

"""What the requests and the run of a maintenance raise."""

from __future__ import annotations

from migrator import exception


class MaintenanceNotFound(exception.NotFound):
    """No maintenance has this uuid."""

    msg_fmt = 'Maintenance {maintenance} could not be found.'


class InvalidTurn(exception.Conflict):
    """A host of a maintenance, or the maintenance, is in a status that does not allow the request."""

    msg_fmt = "Cannot '{action}' {what} of maintenance {maintenance}, which is {status}: {do}."


class NotOwnerOfMaintenance(exception.NotOwner):
    """The maintenance was changed since it was read, or has another owner."""

    msg_fmt = 'Maintenance {maintenance} was changed since it was read (epoch {epoch}). Nothing was written. Retry.'


class IllegalMoveOfMaintenance(exception.IllegalMove):
    """One of the two tables of legal moves of a maintenance does not have this change of status."""

    msg_fmt = (
        '{what} of maintenance {maintenance} cannot go from {old} to {new}: the table of legal moves has no such row.'
    )


class HostInMaintenance(exception.Conflict):
    """A host has another maintenance in progress."""

    msg_fmt = 'Host {host} is in maintenance {maintenance}: wait until that has ended, or cancel it first.'


class TurnNotDue(exception.Conflict):
    """The maintenance does not need the drain of a host any more."""

    msg_fmt = 'Maintenance {maintenance} does not need drain {drain} of {host} any more.'
