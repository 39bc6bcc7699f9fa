# SPDX-License-Identifier: Apache-2.0

"""The errors of a client of ``/migrator/v1``."""

from __future__ import annotations

from migrator import exception


class ApiUnreachable(exception.ServiceUnreachable):
    """The REST API does not answer, or answers that it cannot serve the request now."""

    msg_fmt = '{url} does not answer: {reason}. Check that migrator-api runs there, and that this machine reaches it.'


class ApiRefused(exception.MigratorException):
    """The REST API refuses the request."""

    msg_fmt = '{url} refuses the request: {reason}'
