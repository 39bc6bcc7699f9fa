# SPDX-License-Identifier: Apache-2.0

"""The errors of a client of ``/migrator/v1``."""

from __future__ import annotations

from migrator import exception


class ApiUnreachable(exception.ServiceUnreachable):
    """The REST API or the identity service does not answer, or cannot serve the request now."""

    msg_fmt = (
        'The request to {url} failed: {reason}. Check that the service runs there, and that this machine reaches it.'
    )


class ApiUntrusted(ApiUnreachable):
    """The TLS certificate of the REST API or of the identity service cannot be verified."""

    msg_fmt = (
        'The request to {url} failed, since its TLS certificate is not trusted ({reason}): name its CA by OS_CACERT, '
        'or by cacert in clouds.yaml.'
    )


class ApiRefused(exception.MigratorException):
    """The REST API refuses the request, or the cloud has no such API."""

    msg_fmt = 'The request to {url} failed: {reason}'


class ApiInvalid(ApiRefused):
    """The REST API answers that the request has a wrong value, such as a name that fits two drains."""
