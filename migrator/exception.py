# SPDX-License-Identifier: Apache-2.0

"""Every error of migrator, one class each.

``msg_fmt`` is the template of the message: what was wrong, the value, and what to do. Its ``{names}`` are the keyword
arguments of the constructor, which stay readable on the exception as ``kwargs``. An omitted one is ``?`` in the
message.
"""

from __future__ import annotations

from typing import Any


class _NotGiven:
    """A placeholder for an omitted argument, so that the message with the given ones is not lost."""

    def __repr__(self) -> str:
        return '?'


class _Given(dict[str, Any]):
    def __missing__(self, name: str) -> _NotGiven:
        return _NotGiven()


class MigratorException(Exception):
    """Base of every error of migrator."""

    #: The template of the message.
    msg_fmt = 'An unexpected error occurred.'
    #: The HTTP status that the REST API answers with.
    code = 500

    def __init__(self, message: str | None = None, **kwargs: Any) -> None:
        self.kwargs = kwargs
        if message is None:
            message = self.msg_fmt.format_map(_Given(kwargs))
        if not message.isascii():
            # A text of a hypervisor may contain a byte that no log and no database can store.
            message = message.encode('utf-8', 'backslashreplace').decode()
        self.message = message
        super().__init__(message)


def message_of(error: BaseException) -> str:
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

    msg_fmt = 'The request is not acceptable.'

    code = 400


class ValidationError(Invalid):
    """The body or the query of a request does not match its schema."""

    msg_fmt = 'Invalid input for field/attribute {path}. Value: {value}. {detail}'


class InvalidAPIVersion(Invalid):
    """The version header of a request cannot be parsed."""

    msg_fmt = "API version string {version} is of invalid format: give 'latest' or MAJOR.MINOR, such as 2.80."


class VersionNotSupported(MigratorException):
    """The request asks for a microversion outside the supported range."""

    msg_fmt = 'Version {version} is not supported by the API: the minimum is {minimum}, the maximum is {maximum}.'

    code = 406


class ConfigurationError(Invalid):
    """An option has a value that the service cannot start with."""

    msg_fmt = 'Option {option} is {value!r}: {detail}'


class Forbidden(MigratorException):
    """The policy refuses the request."""

    msg_fmt = "Policy doesn't allow {action} to be performed."

    code = 403


class Unauthorized(MigratorException):
    """The request has no valid token."""

    msg_fmt = 'The request has no valid token: send one in X-Auth-Token.'

    code = 401


# --- missing resources -----------------------------------------------------------------------------------------------


class NotFound(MigratorException):
    """The requested resource does not exist."""

    msg_fmt = 'The resource could not be found.'

    code = 404


class InstanceNotFound(NotFound):
    """No instance has this uuid."""

    msg_fmt = 'Instance {instance_uuid} could not be found.'


class MigrationNotFound(NotFound):
    """No migration has this id or uuid."""

    msg_fmt = 'Migration {migration_id} could not be found.'


class MigrationNotFoundForInstance(NotFound):
    """The instance has no migration with this id."""

    msg_fmt = 'Migration {migration_id} not found for instance {instance_uuid}.'


class ServiceNotFound(NotFound):
    """No service has this id."""

    msg_fmt = 'Service {service_id} could not be found.'


class ComputeHostNotFound(NotFound):
    """No compute service is registered under this host name."""

    msg_fmt = 'Compute host {host} could not be found: name one that the list of compute services shows.'


class DrainNotFound(NotFound):
    """No drain has this uuid."""

    msg_fmt = 'Drain {drain} could not be found.'


class HypervisorNotFound(NotFound):
    """No hypervisor has this id."""

    msg_fmt = 'Hypervisor {hypervisor_id} could not be found.'


class ActionNotFound(NotFound):
    """The instance has no action for this request id."""

    msg_fmt = 'Action for request {request_id} on instance {instance_uuid} could not be found.'


class MarkerNotFound(Invalid):
    """The marker of a paged list does not exist."""

    msg_fmt = 'marker [{marker}] not found'


# --- conflicts with the present state --------------------------------------------------------------------------------


class Conflict(MigratorException):
    """The request conflicts with the present state."""

    msg_fmt = 'The request conflicts with the present state.'

    code = 409


class InstanceInvalidState(Conflict):
    """The instance is in a state that does not allow the request."""

    msg_fmt = "Cannot '{method}' instance {instance_uuid} while it is in {attr} {state}: {facts}"


class InstanceIsLocked(Conflict):
    """The instance is locked."""

    msg_fmt = 'Instance {instance_uuid} is locked by {who}.'


class MigrationInProgress(Conflict):
    """The instance already has a migration in progress."""

    msg_fmt = 'Instance {instance_uuid} has a migration in progress already: {facts}'


class InstanceExists(Conflict):
    """An instance with this uuid already exists."""

    msg_fmt = 'Instance {instance_uuid} already exists: {facts}'


class CleanupInProgress(Conflict):
    """A host is running a cleanup that would remove the guest of a new instance."""

    msg_fmt = (
        'Host {host} is running {step}, a deferred cleanup of migration {migration_uuid}, which would remove the '
        'guest of instance {instance_uuid}: create the instance {remedy}.'
    )


class AllocationExists(Conflict):
    """Placement already has another allocation for this consumer."""

    msg_fmt = (
        'Consumer {consumer} already has the allocation {held} in Placement, and {wanted} is wanted: remove it '
        'first, or register the instance with what it holds.'
    )


class InvalidMigrationState(Invalid):
    """The migration is in a status that does not allow the request."""

    msg_fmt = (
        'Migration {migration_id} of instance {instance_uuid} is {state}: {method} is possible only while it is '
        '{wanted}.'
    )


class DrainInProgress(Conflict):
    """The host already has a drain in progress."""

    msg_fmt = 'Host {host} has a drain in progress already, {drain}: wait for it to end, or cancel it.'


class InvalidDrainState(Conflict):
    """The drain is in a status that does not allow the request."""

    msg_fmt = "Cannot '{action}' drain {drain} while it is {status}: {do}."


class NotStuck(Conflict):
    """Only a stuck migration that is not being abandoned can be retried or abandoned."""

    msg_fmt = 'Migration {uuid} is not stuck: {what}'


class CleanupNotFound(Conflict):
    """The deferred cleanup is gone, or is not blocked."""

    msg_fmt = 'Cleanup {id} can be neither retried nor discarded: {what}'


class AbandonedOtherwise(Conflict):
    """Another request already abandons the migration with other arguments."""

    msg_fmt = (
        'Migration {uuid} is being abandoned with its guest on {host} already, as {who} asked {when}: wait for it to '
        'end.'
    )


class TooManyQueued(Forbidden):
    """The queue of the source host is full."""

    msg_fmt = (
        '{which} has {queued} live migrations waiting already, the maximum ([api] max_queued_live_migrations is '
        '{limit}): wait for some to end, or abort some.'
    )


# --- reasons against a live migration --------------------------------------------------------------------------------


class NoValidHost(Invalid):
    """No host can take the instance."""

    msg_fmt = 'No valid host was found. {reason}'


class ComputeServiceUnavailable(Invalid):
    """The compute service of a host is down or disabled."""

    msg_fmt = 'Compute service of {host} is unavailable at this time: {reason}'


class ComputeServiceInUse(Invalid):
    """The host from which a server is evacuated is not down."""

    msg_fmt = (
        'Compute service of {host} is still in use. A server can be evacuated only from a host that is down: fence the '
        'host, set forced_down on its compute service, and try again.'
    )


class InvalidHypervisorType(Invalid):
    """The two hosts have hypervisors of different types."""

    msg_fmt = (
        'The hypervisor of {host} is of type {there}, and that of {source}, where the guest is, of type {here}: only '
        'a host of that type can take it.'
    )


class DestinationHypervisorTooOld(Invalid):
    """The hypervisor of the destination is older than that of the source."""

    msg_fmt = (
        'The hypervisor of {host} has version {there}, and is older than that of {source}, where the guest is: '
        'choose a host with version {here} or newer.'
    )


class UnableToMigrateToSelf(Invalid):
    """The requested destination is the present host."""

    msg_fmt = 'Unable to migrate instance {instance_uuid} to current host {host}: name another host, or none.'


class MigrationPreCheckError(Invalid):
    """A check of the source or of the destination failed."""

    msg_fmt = 'Migration pre-check error: {reason}'


class DestinationTooSmall(MigrationPreCheckError):
    """The destination lacks the resources for the instance."""

    msg_fmt = 'Host {host} has no room for instance {instance_uuid}: {reason}'


class ForcedWithoutHost(Invalid):
    """A forced request names no destination."""

    msg_fmt = 'Force cannot be used without a host: name the destination, or leave force out.'


class ForcedWithNestedAllocations(NoValidHost):
    """A forced request cannot move an allocation on several resource providers."""

    msg_fmt = (
        "The instance's allocation is on {count} resource providers ({providers}; a sharing provider counts), and a "
        'forced migration can move only an allocation on a single provider: leave force out.'
    )


# --- the compute host ------------------------------------------------------------------------------------------------


class LiveMigrationFailed(MigratorException):
    """The hypervisor reported that a live migration failed."""

    msg_fmt = 'Live migration of instance {instance_uuid} failed at {host}: {reason}'


class MoveUnsettled(MigratorException):
    """The driver does not know on which host the guest is."""

    msg_fmt = 'It is not known whether the guest has left {host}: {reason}'


class GuestNotFound(MigratorException):
    """The hypervisor of a host does not have the guest."""

    msg_fmt = 'Host {host} has no guest {instance_uuid}.'


class GuestElsewhere(MigratorException):
    """A guest is registered on one host, and was seen on another one too."""

    msg_fmt = 'Guest {instance_uuid} was last seen on {seen} too: find out which copy is right, and undefine others.'


class GuestStillHere(MigratorException):
    """A step would destroy a guest that runs."""

    msg_fmt = 'Host {host} runs guest {instance_uuid}, which {action} would destroy: nothing was done.'


class DriverError(MigratorException):
    """The hypervisor failed in a way that has no other class."""

    msg_fmt = 'The hypervisor of {host} failed in {phase}: {reason}'


class Cancelled(MigratorException):
    """The work was cancelled before it began."""

    msg_fmt = '{what} was cancelled.'


class QueueClosed(MigratorException):
    """The host stops and accepts no more live migrations."""

    msg_fmt = 'Host {host} is stopping and takes no more live migrations.'


# --- other services --------------------------------------------------------------------------------------------------


class ServiceUnreachable(MigratorException):
    """A service that is needed does not answer."""

    code = 503
    msg_fmt = '{service} is not reachable: {reason}'


class BrokerAway(ServiceUnreachable):
    """The message broker cannot be reached, so the state of the hosts is unknown."""

    msg_fmt = (
        '{server} cannot reach the message broker since {since}{reason}: the state of the hosts is unknown, and no '
        'host counts as down for it. Check the broker, and do not fence hosts; everything continues when the broker '
        'is back.'
    )


class HostNotAsked(ServiceUnreachable):
    """The host of a guest could not be asked before the guest is registered."""

    msg_fmt = (
        'Host {host} could not be asked whether it has guest {instance_uuid}: {reason}. Start its compute service '
        'and try again, or use --force to register the guest without asking the host.'
    )


class AuditInProgress(MigratorException):
    """A conductor runs an audit already."""

    code = 503
    msg_fmt = 'Conductor {server} audits Placement already: try again when it has replied to that request.'


class RPCTimeout(ServiceUnreachable):
    """A service did not answer a call in time."""

    msg_fmt = '{target} did not answer {method} within {timeout} s.'


class ServiceTooOld(MigratorException):
    """The compute service of a host is too old for the request."""

    code = 501
    msg_fmt = (
        '{host} cannot do {method} for a migration that is {status}: its compute service has version {version}, and '
        '{needed} is needed.'
    )


class OddAnswer(MigratorException):
    """A host reported an epoch or a tenure that no conductor has sent."""

    msg_fmt = '{hosts} reported epoch or tenure {seen}, which no conductor has sent: restart the compute service there.'


class RemoteError(MigratorException):
    """The service that was called raised an unexpected error."""

    msg_fmt = '{target} failed in {method}: {kind}: {reason}'


class PlacementUnreachable(ServiceUnreachable):
    """Placement does not answer."""

    msg_fmt = 'Placement is not reachable: {reason}'


class PlacementUnauthorized(PlacementUnreachable):
    """Placement rejects the credentials."""

    msg_fmt = (
        'Placement does not let migrator in ({reason}): look at auth_type and the credentials in [placement], or at '
        'the cloud that is used, and at the roles of that user (admin or service).'
    )


class PlacementError(MigratorException):
    """Placement answered with an unexpected status."""

    msg_fmt = 'Placement answered {status} to {method} {url}: {reason}'


class PlacementConflict(PlacementError):
    """Another writer changed the same consumer or provider first."""

    code = 409
    msg_fmt = (
        'Placement refused {method} {url}, because another writer was faster (placement.concurrent_update): {reason}'
    )


class PlacementRefused(PlacementError):
    """Placement refused a request for good."""

    msg_fmt = 'Placement refused {method} {url} with {status}: {reason}'


class ServiceInUse(Conflict):
    """A service with guests or allocations cannot be deleted."""

    msg_fmt = 'The service of {host} cannot be deleted: {reason}.'


class MachineNotReplaced(Conflict):
    """The machine of a host cannot be replaced now."""

    msg_fmt = 'The machine of {host} cannot be replaced: {reason}.'


class ProviderInUse(Conflict):
    """A resource provider with allocations cannot be deleted."""

    msg_fmt = 'Resource provider {provider} still carries allocations of {consumers}: move or remove them first.'


class DatabaseUnreachable(ServiceUnreachable):
    """The database does not answer."""

    msg_fmt = 'The database is not reachable: {reason}'


class DatabaseReadOnly(DatabaseUnreachable):
    """The database refuses writes."""

    msg_fmt = (
        'The database is read-only: {reason}: make it writable (default_transaction_read_only, read_only, the '
        'permissions of the file), or name a writable server in [database] connection.'
    )


class NoSchema(MigratorException):
    """The database has no schema yet."""

    msg_fmt = 'The database has no schema yet, and this version needs {wanted}: {remedy}.'


class OtherSchema(MigratorException):
    """The database has the schema of another commit of migrator, or of another program."""

    msg_fmt = 'The database cannot be used: {reason}.'


class NoSlot(MigratorException):
    """A bound on migrations leaves no slot for this one now."""

    msg_fmt = 'for {what}'


# --- the protocol ----------------------------------------------------------------------------------------------------


class BootReplaced(MigratorException):
    """Another boot of the host is registered than the one that this boot replaces."""

    msg_fmt = 'Boot {boot_id} of {host} is not registered, because boot {known} is. If it still runs, it calls again.'


class MachineRefused(MigratorException):
    """Another machine has the name of the host, or the machine has another name."""

    msg_fmt = 'Host {host} is not registered: {reason}.'


class NotOwner(MigratorException):
    """Another conductor owns the migration."""

    msg_fmt = 'Migration {migration_uuid} is no longer owned by {owner} in epoch {epoch}: another conductor owns it.'


class NotOwnerOfDrain(NotOwner):
    """Another conductor owns the drain, or a user has requested a change of it meanwhile."""

    msg_fmt = (
        'Drain {drain} is not as {owner} has read it in epoch {epoch}: another conductor owns it, or a user has '
        'requested a change.'
    )


class IllegalMove(MigratorException):
    """The table of legal moves does not have this change of status."""

    msg_fmt = 'Migration {migration_uuid} cannot go from {old} to {new}: the table of legal moves has no such row.'


class IllegalMoveOfDrain(IllegalMove):
    """One of the two tables of legal moves of drains does not have this change of status."""

    msg_fmt = '{what} of drain {drain} cannot go from {old} to {new}: the table of legal moves has no such row.'
