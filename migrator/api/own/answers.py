# SPDX-License-Identifier: Apache-2.0

"""The schemas of the answers of ``/migrator/v1``."""

from __future__ import annotations

from migrator.api.schemas.types import Schema, closed, or_null
from migrator.objects import MigrationStatus, MigrationType
from migrator.objects.drain import Direction, DrainOrder, MemberStatus

_TEXT: Schema = {'type': 'string'}
_NUMBER: Schema = {'type': 'integer'}
_SHARE: Schema = {'type': ['number', 'null']}
_FLAG: Schema = {'type': 'boolean'}
_UUID: Schema = {'type': 'string', 'format': 'uuid'}
_TIME: Schema = {'type': 'string', 'description': 'a time in UTC, such as 2026-01-31T13:00:00.000000'}
_TEXT_OR_NULL, _NUMBER_OR_NULL, _UUID_OR_NULL, _TIME_OR_NULL = (or_null(one) for one in (_TEXT, _NUMBER, _UUID, _TIME))
_ANY_OBJECT: Schema = {'type': 'object'}


def _all(**properties: Schema) -> Schema:
    """Return the schema of an object that has all of these properties, and no other."""
    return closed(properties, [*properties])


def _each(names: str, schema: Schema) -> Schema:
    """Return properties that have the same schema.

    :param names: the names, with spaces between them.
    """
    return dict.fromkeys(names.split(), schema)


def _list(schema: Schema) -> Schema:
    return {'type': 'array', 'items': schema}


def _more(schema: Schema, **properties: Schema) -> Schema:
    """Return the schema of an object with further properties."""
    return _all(**schema['properties'], **properties)


def _page(name: str, schema: Schema, **properties: Schema) -> Schema:
    """Return the schema of a page of a list, which has a link if it is full."""
    links = {f'{name}_links': _list(_all(rel={'const': 'next'}, href=_TEXT))}
    return closed({name: _list(schema), **properties, **links}, [name, *properties])


def _of(words: type) -> Schema:
    return {'type': 'string', 'enum': [word.value for word in words]}  # type: ignore[attr-defined]  # an enumeration


_BAND = _all(**_each('p50 p80', _TIME))
_EXPECTED = _all(start=or_null(_BAND), end=or_null(_BAND), reason=_TEXT_OR_NULL)
_PLACE: Schema = {'position': _NUMBER_OR_NULL, 'waits_for': _TEXT_OR_NULL, 'expected': _EXPECTED}

# --- migrations ------------------------------------------------------------------------------------------------------

_VIEW = _all(
    id=_NUMBER,
    uuid=_UUID,
    instance_uuid=_TEXT,
    instance_name=_TEXT_OR_NULL,
    type=_TEXT,
    status=_of(MigrationStatus),
    outcome=_TEXT_OR_NULL,
    attempt=_NUMBER,
    drain=_UUID_OR_NULL,
    requested_host=_TEXT_OR_NULL,
    source=_TEXT,
    destination=_TEXT_OR_NULL,
    progress=_all(
        **_each('memory_total_bytes memory_processed_bytes memory_remaining_bytes', _NUMBER_OR_NULL),
        **_each('disk_total_bytes disk_processed_bytes disk_remaining_bytes', _NUMBER_OR_NULL),
    ),
    statuses=_list(_all(status=_TEXT, at=_TIME_OR_NULL)),
    **_each('waits_for stuck_reason failure', _TEXT_OR_NULL),
    **_each('created_at updated_at queued_at running_at abort_requested_at', _TIME_OR_NULL),
)
_PLACED = closed({**_VIEW['properties'], **_PLACE}, [*_VIEW['required'], 'position', 'expected'])
MIGRATIONS = _page('migrations', closed({**_VIEW['properties'], **_PLACE}, _VIEW['required']))
_STEP = _all(
    **_each('step direction state', _TEXT),
    **_each('attempt tries', _NUMBER),
    **_each('started_at ended_at', _TIME_OR_NULL),
)
MIGRATION = _all(
    migration=_more(
        _PLACED,
        owner=_TEXT_OR_NULL,
        epoch=_NUMBER,
        abort=or_null(_all(requested_at=_TIME, requested_by=_TEXT_OR_NULL, verdict=_TEXT_OR_NULL)),
        abandon=or_null(_all(requested_at=_TIME, requested_by=_TEXT_OR_NULL, guest_on=_TEXT)),
        retry_requested_at=_TIME_OR_NULL,
        steps=_list(_STEP),
    )
)
TIMELINE = _all(
    timeline=_all(
        migration_uuid=_UUID,
        instance_uuid=_TEXT,
        status=_of(MigrationStatus),
        now=_TIME,
        waits=_list(_TEXT),
        events=_list(_all(at=_TIME, conductor=_TEXT_OR_NULL, epoch=_NUMBER_OR_NULL, what=_TEXT)),
        next=_list(_TEXT),
        owner=_all(
            **_each('id server', _TEXT_OR_NULL), epoch=_NUMBER, lease_until=_TIME_OR_NULL, living=_FLAG
        ),
        hosts=_list(_all(**_each('role host state', _TEXT), forced_down=_FLAG, last_seen_up=_TIME_OR_NULL)),
        requests=_list(
            _all(
                **_each('action instance_uuid request_id', _TEXT),
                **_each('user_id project_id migration_uuid message result', _TEXT_OR_NULL),
                **_each('start_time finish_time', _TIME_OR_NULL),
            )
        ),
    )
)  # fmt: skip

# --- actions ---------------------------------------------------------------------------------------------------------

PLAN = _all(dry_run={'const': True}, plan=_list(_TEXT))
MESSAGE = _all(message=_TEXT)
_PURGED: Schema = {'before': _TIME, 'dry_run': _FLAG, 'found': _NUMBER, 'purged': _NUMBER}
PURGED_DRAINS = _all(purge=_all(**_PURGED))
PURGED_MIGRATIONS = _all(purge=_all(**_PURGED, **_each('left saga_log instance_actions kept', _NUMBER)))

# --- hosts, cleanups, services, audits -------------------------------------------------------------------------------

_CLEANUP = _all(
    id=_NUMBER,
    **_each('host step instance_uuid migration_uuid reason', _TEXT),
    state={'type': 'string', 'enum': ['pending', 'blocked']},
    blocked_because=_TEXT_OR_NULL,
    created_at=_TIME_OR_NULL,
)
CLEANUPS, CLEANUP = _page('cleanups', _CLEANUP), _all(cleanup=_CLEANUP)
_DIFFERENCE = _all(
    **_each('instance_uuid name kind', _TEXT),
    host=_TEXT_OR_NULL,
    seen={'type': 'object', 'additionalProperties': _TEXT},
    since=_TIME_OR_NULL,
    **_each('short difference remedy', _TEXT),
)
DIFFERENCES = _page('differences', _DIFFERENCE)
FINDINGS = _all(
    findings=_list(
        _all(
            **_each('consumer consumer_type provider verdict reason remedy', _TEXT),
            resources={'type': 'object', 'additionalProperties': _NUMBER},
            since=_TEXT_OR_NULL,
        )
    )
)
_COUNTS = _all(**_each('pending blocked', _NUMBER))
HOSTS = _page(
    'hosts',
    _all(
        name=_TEXT,
        **_each('up forced_down disabled', _FLAG),
        disabled_reason=_TEXT_OR_NULL,
        drain=_UUID_OR_NULL,
        out=_all(**_each('running prepared waiting', _NUMBER), limit=_NUMBER_OR_NULL),
        **{'in': _all(taken=_NUMBER, **_each('bound bound_of_drains', _NUMBER_OR_NULL))},
        cleanups=_COUNTS,
    ),
)
HOST = _all(
    host=_all(
        name=_TEXT,
        **_each('up disabled', _FLAG),
        **_each('disabled_reason boot_id', _TEXT_OR_NULL),
        limit=_NUMBER_OR_NULL,
        migrations=_list(_PLACED),
        inbound=_list(_UUID),
        cleanups=_list(_more(_CLEANUP, alarm=_TEXT_OR_NULL)),
        differences=_list(_DIFFERENCE),
    )
)
SERVICES = _all(
    services=_list(
        _all(
            uuid=_UUID,
            **_each('host binary', _TEXT),
            version=_NUMBER,
            status={'type': 'string', 'enum': ['enabled', 'disabled']},
            state={'type': 'string', 'enum': ['up', 'down']},
            forced_down=_FLAG,
            **_each('disabled_reason boot_id', _TEXT_OR_NULL),
            **_each('last_seen_up down_since', _TIME_OR_NULL),
            lease=or_null(
                _all(
                    **_each('id server', _TEXT),
                    lease_until=_TIME,
                    broker_away_since=_TIME_OR_NULL,
                    **_each('incarnations sources', _NUMBER),
                )
            ),
            cleanups=_COUNTS,
            differences=_NUMBER,
        )
    ),
    now=_TIME,
    no_reports_because=_TEXT_OR_NULL,
)

# --- drains ----------------------------------------------------------------------------------------------------------

_DRAIN = _all(
    uuid=_UUID,
    host=_TEXT,
    reason=_TEXT_OR_NULL,
    order=_of(DrainOrder),
    priorities={'type': ['object', 'null'], 'additionalProperties': _NUMBER},
    **_each('priority max_attempts', _NUMBER),
    parallel=_NUMBER_OR_NULL,
    destinations=or_null(_list(_TEXT)),
    **_each('requested_by waits_for message', _TEXT_OR_NULL),
    status=_TEXT,
    direction=_of(Direction),
    **_each('include_stopped host_disabled_by_drain', _FLAG),
    **_each('deadline created_at updated_at began_at ended_at', _TIME_OR_NULL),
    guests=_all(**{status.value: _NUMBER for status in MemberStatus}),
    checks=_list(_ANY_OBJECT),
)
_MEMBER = _all(
    instance_uuid=_TEXT,
    **_each('name source', _TEXT),
    status=_of(MemberStatus),
    **_each('attempts size_mb', _NUMBER),
    **_each('destination reason migration_uuid', _TEXT_OR_NULL),
    tried=_list(_TEXT),
    migration=or_null(
        _all(
            uuid=_UUID,
            status=_of(MigrationStatus),
            **_each('memory_total_bytes memory_processed_bytes memory_remaining_bytes', _NUMBER_OR_NULL),
            **_each('destination waits_for stuck_reason', _TEXT_OR_NULL),
        )
    ),
    **_each('not_before began_at ended_at', _TIME_OR_NULL),
    place=_NUMBER_OR_NULL,
    waits_for=_TEXT_OR_NULL,
    expected=_EXPECTED,
)
DRAINS = _page('drains', _DRAIN)
DRAIN = _all(drain=_more(_DRAIN, expected=_EXPECTED, members=_list(_MEMBER)))
MEMBERS = _page('members', _more(_MEMBER, migrations=_list(_VIEW)), expected=_EXPECTED)
DRAIN_EVENTS = _all(
    events=_list(
        {
            **closed({'seq': _NUMBER, 'at': _TIME, 'kind': _TEXT}, ['seq', 'at', 'kind']),
            'additionalProperties': True,
            'description': 'the further properties depend on the kind',
        }
    )
)
_SECONDS = or_null(_all(**_each('p50 p80', _NUMBER)))
DRAIN_PLAN = _all(
    plan=_all(
        host=_TEXT,
        **_each('can_move cannot_move', _NUMBER),
        expected_seconds=_SECONDS,
        guests=_list(
            _all(
                **_each('instance_uuid name', _TEXT),
                size_mb=_NUMBER,
                can_move=_FLAG,
                destination=_TEXT_OR_NULL,
                migration_type=_of(MigrationType),
                obstacle=or_null(_all(kind=_TEXT, reason=_TEXT, remedy=_TEXT_OR_NULL)),
                expected_seconds=_SECONDS,
            )
        ),
    )
)
_CALIBRATED: Schema = {'samples': _NUMBER, **_each('median_error p50_held p80_held', _SHARE)}
CALIBRATION = _all(calibration=_all(**_CALIBRATED, drains=_list(_all(drain=_UUID, host=_TEXT, **_CALIBRATED))))

# --- events ----------------------------------------------------------------------------------------------------------

EVENT = _all(
    of={'type': 'string', 'enum': ['migration', 'drain']},
    uuid=_UUID,
    seq=_NUMBER,
    at=_TIME,
    kind=_TEXT,
    step=_TEXT_OR_NULL,
    payload={**_ANY_OBJECT, 'description': 'the status or the reason of a migration; of a drain its whole event'},
)
STREAM: Schema = {
    'type': 'string',
    'description': 'server-sent events, each with its id and with this object as its data',
    'contentMediaType': 'application/json',
    'contentSchema': EVENT,
}
