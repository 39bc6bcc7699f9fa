# SPDX-License-Identifier: Apache-2.0

"""The schemas of the answers of ``/migrator/v1``."""

from __future__ import annotations

from migrator.api.schemas.types import Schema, closed, each, many, or_null, whole
from migrator.drain.maintenance.turns import Guests, Prefer, ReturnedBy, Stopped, TurnStatus
from migrator.objects import MigrationStatus, MigrationType
from migrator.objects.drain import Direction, DrainOrder, Locked, MemberStatus
from migrator.objects.reasons import StuckKind, WaitKind
from migrator.views.attention import Attention

_TEXT: Schema = {'type': 'string'}
_NUMBER: Schema = {'type': 'integer'}
_SHARE: Schema = {'type': ['number', 'null']}
_FLAG: Schema = {'type': 'boolean'}
_UUID: Schema = {'type': 'string', 'format': 'uuid'}
_TIME: Schema = {'type': 'string', 'description': 'a time in UTC, such as 2026-01-31T13:00:00.000000'}
_TEXT_OR_NULL, _NUMBER_OR_NULL, _UUID_OR_NULL, _TIME_OR_NULL = (or_null(one) for one in (_TEXT, _NUMBER, _UUID, _TIME))
_ANY_OBJECT: Schema = {'type': 'object'}


def _more(schema: Schema, **properties: Schema) -> Schema:
    """Return the schema of an object with further properties."""
    return whole(**schema['properties'], **properties)


def _page(name: str, schema: Schema, **properties: Schema) -> Schema:
    """Return the schema of a page of a list, which has a link if it is full."""
    links = {f'{name}_links': many(whole(rel={'const': 'next'}, href=_TEXT))}
    return closed({name: many(schema), **properties, **links}, [name, *properties])


def _of(words: type) -> Schema:
    return {'type': 'string', 'enum': [word.value for word in words]}  # type: ignore[attr-defined]  # an enumeration


_BAND = whole(**each('p50 p80', _TIME))
_EXPECTED = whole(start=or_null(_BAND), end=or_null(_BAND), reason=_TEXT_OR_NULL)
_PLACE: Schema = {'position': _NUMBER_OR_NULL, 'waits_for': _TEXT_OR_NULL, 'expected': _EXPECTED}

_CLEANUP = whole(
    id=_NUMBER,
    **each('host step instance_uuid migration_uuid reason', _TEXT),
    state={'type': 'string', 'enum': ['pending', 'blocked']},
    blocked_because=_TEXT_OR_NULL,
    created_at=_TIME_OR_NULL,
)

# --- what needs an operator ------------------------------------------------------------------------------------------

ATTENTION = whole(
    attention=many(
        whole(
            id=_TEXT,
            kind=_of(Attention),
            failed=_FLAG,
            since=_TIME_OR_NULL,
            **each('title text', _TEXT),
            commands=many(_TEXT),
            otherwise=or_null(whole(text=_TEXT, commands=many(_TEXT))),
            **each('host instance_uuid instance_name migration_uuid drain_uuid maintenance_uuid', _TEXT_OR_NULL),
        )
    ),
    count=_NUMBER,
)

# --- migrations ------------------------------------------------------------------------------------------------------

_VIEW = whole(
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
    downtime=or_null({'type': 'number'}),
    source=_TEXT,
    destination=_TEXT_OR_NULL,
    progress=whole(
        **each('memory_total_bytes memory_processed_bytes memory_remaining_bytes', _NUMBER_OR_NULL),
        **each('disk_total_bytes disk_processed_bytes disk_remaining_bytes', _NUMBER_OR_NULL),
    ),
    statuses=many(whole(status=_TEXT, at=_TIME_OR_NULL)),
    **each('waits_for stuck_reason failure', _TEXT_OR_NULL),
    wait_kind=or_null(_of(WaitKind)),
    stuck_kind=or_null(_of(StuckKind)),
    **each('wait_hosts stuck_hosts', many(_TEXT)),
    **each('created_at updated_at queued_at running_at abort_requested_at', _TIME_OR_NULL),
)
_PLACED = closed({**_VIEW['properties'], **_PLACE}, [*_VIEW['required'], 'position', 'expected'])
MIGRATIONS = _page('migrations', closed({**_VIEW['properties'], **_PLACE}, _VIEW['required']))
_STEP = whole(
    **each('step direction state', _TEXT),
    **each('attempt tries', _NUMBER),
    **each('started_at ended_at', _TIME_OR_NULL),
)
MIGRATION = whole(
    migration=_more(
        _PLACED,
        owner=_TEXT_OR_NULL,
        epoch=_NUMBER,
        abort=or_null(whole(requested_at=_TIME, requested_by=_TEXT_OR_NULL, verdict=_TEXT_OR_NULL)),
        abandon=or_null(whole(requested_at=_TIME, requested_by=_TEXT_OR_NULL, guest_on=_TEXT)),
        retry_requested_at=_TIME_OR_NULL,
        allocations=_TEXT_OR_NULL,
        steps=many(_STEP),
        cleanups=many(_CLEANUP),
    )
)
TIMELINE = whole(
    timeline=whole(
        migration_uuid=_UUID,
        instance_uuid=_TEXT,
        status=_of(MigrationStatus),
        now=_TIME,
        waits=many(_TEXT),
        events=many(whole(at=_TIME, conductor=_TEXT_OR_NULL, epoch=_NUMBER_OR_NULL, what=_TEXT)),
        next=many(_TEXT),
        owner=whole(
            **each('id server', _TEXT_OR_NULL), epoch=_NUMBER, lease_until=_TIME_OR_NULL, living=_FLAG
        ),
        hosts=many(whole(**each('role host state', _TEXT), forced_down=_FLAG, last_seen_up=_TIME_OR_NULL)),
        requests=many(
            whole(
                **each('action instance_uuid request_id', _TEXT),
                **each('user_id project_id migration_uuid message result', _TEXT_OR_NULL),
                **each('start_time finish_time', _TIME_OR_NULL),
            )
        ),
    )
)  # fmt: skip

# --- actions ---------------------------------------------------------------------------------------------------------

PLAN = whole(dry_run={'const': True}, plan=many(_TEXT))
MESSAGE = whole(message=_TEXT)
_PURGED: Schema = {'before': _TIME, 'dry_run': _FLAG, 'found': _NUMBER, 'purged': _NUMBER}
PURGED_DRAINS = whole(purge=whole(**_PURGED))
PURGED_MIGRATIONS = whole(purge=whole(**_PURGED, **each('left saga_log instance_actions kept', _NUMBER)))

# --- hosts, cleanups, services, audits -------------------------------------------------------------------------------

CLEANUPS, CLEANUP = _page('cleanups', _CLEANUP), whole(cleanup=_CLEANUP)
_DIFFERENCE = whole(
    **each('instance_uuid name kind', _TEXT),
    host=_TEXT_OR_NULL,
    seen={'type': 'object', 'additionalProperties': _TEXT},
    since=_TIME_OR_NULL,
    **each('short difference remedy', _TEXT),
)
DIFFERENCES = _page('differences', _DIFFERENCE)
FINDINGS = whole(
    findings=many(
        whole(
            **each('consumer consumer_type provider verdict reason remedy', _TEXT),
            resources={'type': 'object', 'additionalProperties': _NUMBER},
            since=_TEXT_OR_NULL,
        )
    )
)
_COUNTS = whole(**each('pending blocked', _NUMBER))
HOSTS = _page(
    'hosts',
    whole(
        name=_TEXT,
        **each('up forced_down disabled', _FLAG),
        disabled_reason=_TEXT_OR_NULL,
        drain=_UUID_OR_NULL,
        out=whole(**each('running prepared waiting', _NUMBER), limit=_NUMBER_OR_NULL),
        **{'in': whole(taken=_NUMBER, **each('bound bound_of_drains', _NUMBER_OR_NULL))},
        cleanups=_COUNTS,
    ),
)
HOST = whole(
    host=whole(
        name=_TEXT,
        **each('up disabled', _FLAG),
        **each('disabled_reason boot_id', _TEXT_OR_NULL),
        limit=_NUMBER_OR_NULL,
        migrations=many(_PLACED),
        inbound=many(_UUID),
        cleanups=many(_CLEANUP),
        differences=many(_DIFFERENCE),
    )
)
SERVICES = whole(
    services=many(
        whole(
            uuid=_UUID,
            **each('host binary', _TEXT),
            version=_NUMBER,
            status={'type': 'string', 'enum': ['enabled', 'disabled']},
            state={'type': 'string', 'enum': ['up', 'down']},
            forced_down=_FLAG,
            **each('disabled_reason boot_id identity', _TEXT_OR_NULL),
            **each('last_seen_up down_since', _TIME_OR_NULL),
            refused=or_null(whole(**each('host identity', _TEXT), at=_TIME)),
            replaced=many(
                whole(identity=_TEXT_OR_NULL, declared_off_at=_TIME, declared_off_by=_TEXT, guests=many(_UUID))
            ),
            lease=or_null(
                whole(
                    **each('id server', _TEXT),
                    lease_until=_TIME,
                    broker_away_since=_TIME_OR_NULL,
                    **each('boots sources', _NUMBER),
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

_DRAIN = whole(
    uuid=_UUID,
    host=_TEXT,
    reason=_TEXT_OR_NULL,
    order=_of(DrainOrder),
    locked=_of(Locked),
    priorities={'type': ['object', 'null'], 'additionalProperties': _NUMBER},
    **each('priority max_attempts', _NUMBER),
    parallel=_NUMBER_OR_NULL,
    destinations=or_null(many(_TEXT)),
    only_guests=or_null(many(_UUID)),
    **each('retry_of retried_by', _UUID_OR_NULL),
    **each('requested_by waits_for message', _TEXT_OR_NULL),
    status=_TEXT,
    direction=_of(Direction),
    **each('include_stopped spread host_disabled_by_drain', _FLAG),
    **each('deadline created_at updated_at began_at ended_at', _TIME_OR_NULL),
    guests=whole(**{status.value: _NUMBER for status in MemberStatus}),
    checks=many(_ANY_OBJECT),
)
_MEMBER = whole(
    instance_uuid=_TEXT,
    **each('name source', _TEXT),
    status=_of(MemberStatus),
    **each('attempts size_mb', _NUMBER),
    **each('host destination reason remedy migration_uuid', _TEXT_OR_NULL),
    tried=many(_TEXT),
    migration=or_null(
        whole(
            uuid=_UUID,
            status=_of(MigrationStatus),
            **each('memory_total_bytes memory_processed_bytes memory_remaining_bytes', _NUMBER_OR_NULL),
            **each('destination waits_for stuck_reason', _TEXT_OR_NULL),
            wait_kind=or_null(_of(WaitKind)),
            stuck_kind=or_null(_of(StuckKind)),
            **each('wait_hosts stuck_hosts', many(_TEXT)),
        )
    ),
    **each('not_before began_at ended_at', _TIME_OR_NULL),
    place=_NUMBER_OR_NULL,
    waits_for=_TEXT_OR_NULL,
    expected=_EXPECTED,
)
DRAINS = _page('drains', _DRAIN)
DRAIN = whole(drain=_more(_DRAIN, expected=_EXPECTED, members=many(_MEMBER)))
MEMBERS = _page('members', _more(_MEMBER, migrations=many(_VIEW)), expected=_EXPECTED)
DRAIN_EVENTS = whole(
    events=many(
        {
            **closed({'seq': _NUMBER, 'at': _TIME, 'kind': _TEXT}, ['seq', 'at', 'kind']),
            'additionalProperties': True,
            'description': 'the further properties depend on the kind',
        }
    )
)
DRAIN_REPORT = whole(
    report=whole(
        uuid=_UUID,
        **each('host status', _TEXT),
        reason=_TEXT_OR_NULL,
        retry_of=_UUID_OR_NULL,
        runs=many(
            whole(
                status=_TEXT,
                direction=_of(Direction),
                **each('requested_by message', _TEXT_OR_NULL),
                requested_at=_TIME,
                **each('began_at ended_at', _TIME_OR_NULL),
                guests=_DRAIN['properties']['guests'],
                checks=many(_ANY_OBJECT),
                members=many(
                    whole(
                        **each('name instance_uuid source', _TEXT),
                        status=_of(MemberStatus),
                        attempts=_NUMBER,
                        **each('destination reason', _TEXT_OR_NULL),
                        moved_by=_UUID_OR_NULL,
                        **each('began_at ended_at', _TIME_OR_NULL),
                        **each('seconds downtime', or_null({'type': 'number'})),
                    )
                ),
                requests=many(whole(at=_TIME, action=_TEXT, by=_TEXT_OR_NULL)),
            )
        ),
    )
)
_SECONDS = or_null(whole(**each('p50 p80', _NUMBER)))
DRAIN_PLAN = whole(
    plan=whole(
        host=_TEXT,
        **each('can_move cannot_move locked', _NUMBER),
        expected_seconds=_SECONDS,
        guests=many(
            whole(
                **each('instance_uuid name', _TEXT),
                size_mb=_NUMBER,
                can_move=_FLAG,
                destination=_TEXT_OR_NULL,
                migration_type=_of(MigrationType),
                obstacle=or_null(whole(kind=_TEXT, reason=_TEXT, remedy=_TEXT_OR_NULL)),
                expected_seconds=_SECONDS,
            )
        ),
        copies=many(whole(instance_uuid=_TEXT, **each('name guest_on reason remedy', _TEXT))),
        not_judged=many(_TEXT),
    )
)
_CALIBRATED: Schema = {'samples': _NUMBER, **each('median_error p50_held p80_held', _SHARE)}
CALIBRATION = whole(calibration=whole(**_CALIBRATED, drains=many(whole(drain=_UUID, host=_TEXT, **_CALIBRATED))))

# --- maintenances ----------------------------------------------------------------------------------------------------

_MAINTENANCE = whole(
    uuid=_UUID,
    status=_TEXT,
    **each('requested_by reason waits_for message window', _TEXT_OR_NULL),
    **each('created_at cancel_requested_at ended_at deadline', _TIME_OR_NULL),
    **each('in_order despite_trouble', _FLAG),
    **each('parallel max_failures', _NUMBER),
    prefer=_of(Prefer),
    guests=_of(Guests),
    per_group=_NUMBER_OR_NULL,
    groups={'type': 'object', 'additionalProperties': many(_TEXT)},
    reserve={'type': 'object', 'additionalProperties': _NUMBER},
    **each('wait_for_room settle', _SHARE),
    **each('work_timeout return_timeout', {'type': 'number'}),
    returned_by=_of(ReturnedBy),
    stopped=or_null(_of(Stopped)),
    drain=_ANY_OBJECT,
    turns=whole(**{status.value: _NUMBER for status in TurnStatus}),
)
_TURN = whole(
    **each('host group', _TEXT),
    position=_NUMBER,
    status=_of(TurnStatus),
    **each('drain claim', _UUID_OR_NULL),
    **each('claimed_by reason', _TEXT_OR_NULL),
    **each('claimed_at claim_lapses_at began_at ready_at work_ended_at ended_at', _TIME_OR_NULL),
    **each('out_of_service claim_has_lapsed', _FLAG),
)
MAINTENANCES = _page('maintenances', _MAINTENANCE)
MAINTENANCE = whole(maintenance=_more(_MAINTENANCE, hosts=many(_TURN)))
MAINTENANCE_HOST = whole(host=_TURN)
MAINTENANCE_PLAN = whole(
    plan=whole(
        fits=_FLAG,
        **each('guests moves most_parallel', _NUMBER),
        **each('moves_per_guest least_moves_per_guest', {'type': 'number'}),
        waits_for=_TEXT_OR_NULL,
        hosts=many(
            whole(
                **each('host group', _TEXT),
                **each('beside without_room short_of_reserve', many(_TEXT)),
                out_because=_TEXT_OR_NULL,
                **each('moves moves_again without_room_count cannot_move_count', _NUMBER),
                short_at={'type': 'object', 'additionalProperties': _NUMBER},
                cannot_move=many(whole(**each('instance_uuid name reason', _TEXT), remedy=_TEXT_OR_NULL)),
            )
        ),
    )
)

# --- events ----------------------------------------------------------------------------------------------------------

EVENT = whole(
    of={'type': 'string', 'enum': ['migration', 'drain', 'maintenance']},
    uuid=_UUID,
    seq=_NUMBER,
    at=_TIME,
    kind=_TEXT,
    step=_TEXT_OR_NULL,
    payload={
        **_ANY_OBJECT,
        'description': 'the status or the reason of a migration; of a drain or a maintenance its whole event',
    },
)
STREAM: Schema = {
    'type': 'string',
    'description': 'server-sent events, each with its id and with this object as its data',
    'contentMediaType': 'application/json',
    'contentSchema': EVENT,
}
