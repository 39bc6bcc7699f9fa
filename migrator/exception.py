# SPDX-License-Identifier: Apache-2.0

"""Every error of migrator, one class each.

The docstring of a class is the template of the message: what was wrong, the value, and what to do. Its ``{names}`` are
the keyword arguments of the constructor, which stay readable on the exception as ``kwargs``. An omitted one is ``?`` in
the message.
"""

from __future__ import annotations

import inspect
from typing import Any


class _NotGiven:
    """A placeholder for an omitted argument, so that the message with the given ones is not lost."""

    def __repr__(self) -> str:
        return '?'


class _Given(dict[str, Any]):
    def __missing__(self, name: str) -> _NotGiven:
        return _NotGiven()


class MigratorException(Exception):
    """An unexpected error occurred."""

    #: The HTTP status that the REST API answers with.
    code = 500

    def __init__(self, message: str | None = None, **kwargs: Any) -> None:
        self.kwargs = kwargs
        if message is None:
            template = inspect.cleandoc(type(self).__doc__ or 'An unexpected error occurred.').replace('\n', ' ')
            message = template.format_map(_Given(kwargs))
        if not message.isascii():
            # A text of a hypervisor may contain a byte that no log and no database can store.
            message = message.encode('utf-8', 'backslashreplace').decode()
        self.message = message
        super().__init__(message)


def told(error: BaseException) -> str:
    """Return the text of an error for an operator.

    An error of another module gets its type in front. Without it the text may mean nothing: that of a KeyError is only
    a key.
    """
    if isinstance(error, MigratorException):
        return error.message
    return f'{type(error).__name__}: {error}' if str(error) else type(error).__name__


# --- errors in the request -------------------------------------------------------------------------------------------


class Invalid(MigratorException):
    """The request is not acceptable."""

    code = 400


class ValidationError(Invalid):
    """Invalid input for field/attribute {path}. Value: {value}. {detail}"""


class InvalidAPIVersion(Invalid):
    """API version string {version} is of invalid format: give 'latest' or MAJOR.MINOR, such as 2.80."""


class VersionNotSupported(MigratorException):
    """Version {version} is not supported by the API: the minimum is {minimum}, the maximum is {maximum}."""

    code = 406


class ConfigurationError(Invalid):
    """Option {option} is {value!r}: {detail}"""


class Forbidden(MigratorException):
    """Policy doesn't allow {action} to be performed."""

    code = 403


class Unauthorized(MigratorException):
    """The request has no valid token: send one in X-Auth-Token."""

    code = 401


# --- missing resources -----------------------------------------------------------------------------------------------


class NotFound(MigratorException):
    """The resource could not be found."""

    code = 404


class InstanceNotFound(NotFound):
    """Instance {instance_uuid} could not be found."""


class MigrationNotFound(NotFound):
    """Migration {migration_id} could not be found."""


class MigrationNotFoundForInstance(NotFound):
    """Migration {migration_id} not found for instance {instance_uuid}."""


class ServiceNotFound(NotFound):
    """Service {service_id} could not be found."""


class ComputeHostNotFound(NotFound):
    """Compute host {host} could not be found: name one that the list of compute services shows."""


class HypervisorNotFound(NotFound):
    """Hypervisor {hypervisor_id} could not be found."""


class ActionNotFound(NotFound):
    """Action for request {request_id} on instance {instance_uuid} could not be found."""


class MarkerNotFound(Invalid):
    """marker [{marker}] not found"""


# --- conflicts with the present state --------------------------------------------------------------------------------


class Conflict(MigratorException):
    """The request conflicts with the present state."""

    code = 409


class InstanceInvalidState(Conflict):
    """Cannot '{method}' instance {instance_uuid} while it is in {attr} {state}: {facts}"""


class InstanceIsLocked(Conflict):
    """Instance {instance_uuid} is locked by {who}."""


class MigrationInProgress(Conflict):
    """Instance {instance_uuid} has a migration in progress already: {facts}"""


class InstanceExists(Conflict):
    """Instance {instance_uuid} already exists: {facts}"""


class CleanupInProgress(Conflict):
    """Host {host} is running {step}, a deferred cleanup of migration {migration_uuid}, which would remove the guest of
    instance {instance_uuid}: create the instance when "migrator-manage cleanup list" no longer shows the cleanup."""


class AllocationExists(Conflict):
    """Consumer {consumer} already has the allocation {held} in Placement, and {wanted} is wanted: remove it first, or
    register the instance with what it holds."""


class InvalidMigrationState(Invalid):
    """Migration {migration_id} of instance {instance_uuid} is {state}: {method} is possible only while it is
    {wanted}."""


class NotStuck(Conflict):
    """Migration {uuid} is not stuck: {what}"""


class CleanupNotFound(Conflict):
    """Cleanup {id} can be neither retried nor discarded: {what}"""


class AbandonedOtherwise(Conflict):
    """Migration {uuid} is being abandoned with its guest on {host} already, as {who} asked
    {when}: wait for it to end."""


class TooManyQueued(Forbidden):
    """Host {host} has {queued} live migrations waiting already, the maximum ([api] max_queued_live_migrations is
    {limit}): wait for some to end, or abort some."""


# --- reasons against a live migration --------------------------------------------------------------------------------


class NoValidHost(Invalid):
    """No valid host was found. {reason}"""


class ComputeServiceUnavailable(Invalid):
    """Compute service of {host} is unavailable at this time: {reason}"""


class InvalidHypervisorType(Invalid):
    """The hypervisor of {host} is of type {there}, and that of {source}, where the guest is, of type {here}: only a
    host of that type can take it."""


class DestinationHypervisorTooOld(Invalid):
    """The hypervisor of {host} has version {there}, and is older than that of {source}, where the guest is: choose a
    host with version {here} or newer."""


class UnableToMigrateToSelf(Invalid):
    """Unable to migrate instance {instance_uuid} to current host {host}: name another host, or none."""


class MigrationPreCheckError(Invalid):
    """Migration pre-check error: {reason}"""


class DestinationTooSmall(MigrationPreCheckError):
    """Host {host} has no room for instance {instance_uuid}: {reason}"""


class ForcedWithoutHost(Invalid):
    """Force cannot be used without a host: name the destination, or leave force out."""


class ForcedWithNestedAllocations(NoValidHost):
    """The instance's allocation is on {count} resource providers ({providers}; a sharing provider counts), and a forced
    live migration can move only an allocation on a single provider: leave force out."""


# --- the compute host ------------------------------------------------------------------------------------------------


class LiveMigrationFailed(MigratorException):
    """Live migration of instance {instance_uuid} failed at {host}: {reason}"""


class LiveMigrationAborted(MigratorException):
    """Live migration of instance {instance_uuid} was aborted."""


class MoveUnsettled(MigratorException):
    """It is not known whether the guest has left {host}: {reason}"""


class GuestNotFound(MigratorException):
    """Host {host} has no guest {instance_uuid}."""


class GuestStillHere(MigratorException):
    """Host {host} runs guest {instance_uuid}, which {action} would destroy: nothing was done."""


class DriverError(MigratorException):
    """The hypervisor of {host} failed in {phase}: {reason}"""


class Cancelled(MigratorException):
    """{what} was cancelled."""


class QueueClosed(MigratorException):
    """Host {host} is stopping and takes no more live migrations."""


# --- other services --------------------------------------------------------------------------------------------------


class ServiceUnreachable(MigratorException):
    """{service} is not reachable: {reason}"""

    code = 503


class BrokerAway(ServiceUnreachable):
    """{server} cannot reach the message broker since {since}{reason}: the state of the hosts is unknown, and no host
    counts as down for it. Check the broker, and do not fence hosts; everything continues when the broker is back."""


class HostNotAsked(ServiceUnreachable):
    """Host {host} could not be asked whether it has guest {instance_uuid}: {reason}. Start its compute service and try
    again, or use --force to register the guest without asking the host."""


class RPCTimeout(ServiceUnreachable):
    """{target} did not answer {method} within {timeout} s."""


class ServiceTooOld(MigratorException):
    """{host} cannot do {method} for a migration that is {status}: its compute service has version {version}, and
    {needed} is needed."""


class OddAnswer(MigratorException):
    """{hosts} reported epoch or tenure {seen}, which no conductor has sent: restart the compute service there."""


class RemoteError(MigratorException):
    """{target} failed in {method}: {kind}: {reason}"""


class PlacementUnreachable(ServiceUnreachable):
    """Placement is not reachable: {reason}"""


class PlacementUnauthorized(PlacementUnreachable):
    """Placement does not let migrator in ({reason}): look at auth_type and the credentials in [placement], and at the
    roles of that user (admin or service)."""


class PlacementError(MigratorException):
    """Placement answered {status} to {method} {url}: {reason}"""


class PlacementConflict(PlacementError):
    """Placement refused {method} {url}, because another writer was faster (placement.concurrent_update): {reason}"""


class PlacementRefused(PlacementError):
    """Placement refused {method} {url} with {status}: {reason}"""


class AllocationsUnexpected(Conflict):
    """The allocations are {state}: instance {instance} holds {held}, and migration {migration} {kept}. Nothing was
    written: compare them with what was to be moved."""


class ServiceInUse(Conflict):
    """The service of {host} cannot be deleted: {reason}."""


class ProviderInUse(Conflict):
    """Resource provider {provider} still carries allocations of {consumers}: move or remove them first."""


class DatabaseUnreachable(ServiceUnreachable):
    """The database is not reachable: {reason}"""


class DatabaseReadOnly(DatabaseUnreachable):
    """The database is read-only: {reason}: make it writable (default_transaction_read_only, read_only, the permissions
    of the file), or name a writable server in [database] connection."""


class SchemaTooOld(MigratorException):
    """The database schema is at {found}, and this release needs {wanted}: run 'migrator-manage db sync'."""


class SchemaTooNew(MigratorException):
    """The database schema is at {found}, which this release does not know (its newest is {wanted}): run the release
    that wrote it."""


# --- the protocol ----------------------------------------------------------------------------------------------------


class BootReplaced(MigratorException):
    """Boot {boot_id} of {host} is not registered, because boot {known} registered meanwhile. If it still runs, it
    calls again."""


class NotOwner(MigratorException):
    """Migration {migration_uuid} is no longer owned by {owner} in epoch {epoch}: another conductor owns it."""


class IllegalMove(MigratorException):
    """Migration {migration_uuid} cannot go from {old} to {new}: the table of legal moves has no such row."""
