# SPDX-License-Identifier: Apache-2.0

"""The errors of a client of Nova's REST API."""

from __future__ import annotations

from migrator import exception


class NovaUnreachable(exception.ServiceUnreachable):
    """Nova or Keystone does not answer, or not now. Whether a write was done is not known."""

    msg_fmt = (
        'Nova is not reachable: {reason}. Check the compute endpoint in the service catalog, and that this machine '
        'reaches it.'
    )


class IdentityUnreachable(NovaUnreachable):
    """The identity service does not answer, or not now."""

    msg_fmt = (
        'The identity service is not reachable: {reason}. Check the auth_url of the cloud, and that this machine '
        'reaches it.'
    )


class NovaUntrusted(NovaUnreachable):
    """The TLS certificate of Nova or Keystone cannot be verified."""

    msg_fmt = (
        'The TLS certificate is not trusted ({reason}): name its CA by OS_CACERT, or by cacert in '
        'clouds.yaml; in migrator.conf by cafile in the section [nova].'
    )


class NovaUnauthorized(NovaUnreachable):
    """Nova or Keystone does not accept the credentials, or Nova's policy does not allow the request."""

    msg_fmt = (
        'Nova does not let this user in ({reason}): check the credentials. The user needs the role admin in its '
        'project, or a policy of Nova that allows the same.'
    )


class IdentityRefused(NovaUnauthorized):
    """The identity service does not accept the credentials."""

    msg_fmt = (
        'The identity service refuses the credentials: {reason}. Check user, password and project with their domains, '
        'and the auth_url, in clouds.yaml or in the OS_* variables.'
    )


class HostReports(exception.ServiceUnreachable):
    """The nova-compute of a host whose guests would be evacuated reports, or may report."""

    msg_fmt = 'The evacuation of {host} does not begin or go on: {reason}'


class NovaTooOld(exception.MigratorException):
    """The cloud lacks a microversion of Nova that is needed."""

    msg_fmt = (
        'Nova at {url} has microversions {least} to {newest}, and {wanted} is needed (Rocky, 2018): upgrade Nova, or '
        'name another cloud.'
    )


class NovaRefused(exception.MigratorException):
    """Nova refused a request; nothing was done.

    :ivar status: the HTTP status.
    :ivar reason: Nova's message.
    """

    msg_fmt = 'Nova refused {method} {url} with {status}: {reason}'

    def __init__(self, message: str | None = None, *, status: int, reason: str, **kwargs: str) -> None:
        super().__init__(message, status=status, reason=reason, **kwargs)
        self.status, self.reason = status, reason
