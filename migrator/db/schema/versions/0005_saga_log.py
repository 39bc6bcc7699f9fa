# SPDX-License-Identifier: Apache-2.0

"""The append-only log of each saga, in place of the changed steps and of the history in the row."""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

from migrator.db import models

revision = '0005'
down_revision = '0004'
branch_labels = None
depends_on = None

_ENDS = ('completed', 'cancelled', 'failed', 'error')
#: The step that begins with a status. The status was written by the conductor's clock, and the step by the database's.
_BEGINS = {
    'preparing': 'move_allocation',
    'queued': 'live_migration',
    'running (post-copy)': 'update_instance_host',
    'post-migrating': 'update_instance_host',
}
#: Places among what was written at one moment. Each step has ten: for its status, its beginning and its end.
_STATUS, _BEGUN, _RUNNING, _DONE, _LAST = -1, 0, 1, 5, 10**9
#: (moment, place, entry): these sort into the order in which the log would have got them.
_Dated = tuple[datetime.datetime, int, dict[str, Any]]

_MIGRATIONS = sa.table(
    'migrations',
    sa.column('uuid', sa.String()),
    sa.column('attempt', sa.Integer()),
    sa.column('history', sa.JSON()),
    sa.column('log_seq', sa.Integer()),
)
_STEPS = sa.table(
    'saga_steps',
    *(sa.column(name, sa.String()) for name in ('saga', 'step', 'direction', 'state', 'owner', 'first_owner')),
    *(sa.column(name, sa.Integer()) for name in ('id', 'epoch', 'attempt', 'tries', 'first_epoch')),
    *(sa.column(name, sa.JSON()) for name in ('input', 'result')),
    *(sa.column(name, models.UTCDateTime()) for name in ('started_at', 'ended_at')),
)


def upgrade() -> None:
    """Convert what is there, migrations in progress too. Conductors are stopped meanwhile."""
    op.add_column('migrations', sa.Column('log_seq', sa.Integer(), nullable=False, server_default='0'))
    log = op.create_table(
        'saga_log',
        sa.Column('migration', sa.String(length=36), nullable=False),
        sa.Column('seq', sa.Integer(), autoincrement=False, nullable=False),
        sa.Column('at', models.UTCDateTime(), nullable=False),
        sa.Column('conductor', sa.String(length=36), nullable=True),
        sa.Column('epoch', sa.Integer(), nullable=False),
        sa.Column('attempt', sa.Integer(), nullable=False),
        sa.Column('kind', sa.String(length=16), nullable=False),
        sa.Column('step', sa.String(length=64), nullable=True),
        sa.Column('payload', sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint('migration', 'seq'),
    )
    assert log is not None
    connection = op.get_bind()
    uuids = connection.execute(sa.select(_MIGRATIONS.c.uuid).where(_MIGRATIONS.c.uuid.is_not(None))).scalars().all()
    for uuid in uuids:
        mine = _MIGRATIONS.c.uuid == uuid
        row = connection.execute(sa.select(_MIGRATIONS.c.history, _MIGRATIONS.c.attempt).where(mine)).one()
        steps = connection.execute(sa.select(_STEPS).where(_STEPS.c.saga == uuid).order_by(_STEPS.c.id)).all()
        dated = [*_of_history(row.history or [], row.attempt, steps)]
        for number, step in enumerate(steps, 1):
            dated += _of_stuck(step) if step.step == 'stuck' else _of_step(step, number * 10)
        dated.sort(key=lambda one: one[:2])
        entries = [
            {'migration': uuid, 'seq': number, 'at': at, **entry} for number, (at, _, entry) in enumerate(dated, 1)
        ]
        if entries:
            connection.execute(sa.insert(log), entries)
            connection.execute(sa.update(_MIGRATIONS).where(mine).values(log_seq=len(entries)))
    op.drop_table('saga_steps')
    op.drop_column('migrations', 'history')


def _entry(
    kind: str, attempt: int, owner: str | None, epoch: int, step: str | None, payload: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        'kind': kind, 'attempt': attempt, 'conductor': owner, 'epoch': epoch, 'step': step, 'payload': dict(payload),
    }  # fmt: skip


def _of_history(history: list[dict[str, Any]], attempt: int, steps: Sequence[Any]) -> Iterator[_Dated]:
    for one in history:
        at, place = _moment(one['at']), _LAST if one['status'] in _ENDS else 0
        step = _BEGINS.get(one['status'], 'live_migration' if one['status'] == 'running' else None)
        for number, found in enumerate(steps, 1):
            if (found.step, found.direction) == (step, 'do'):
                at = max(at, found.started_at) if one['status'] == 'running' else found.started_at
                place = number * 10 + (_RUNNING if one['status'] == 'running' else _STATUS)
                if one['status'] == 'preparing':
                    break  # the first attempt begins with it
        payload = {'status': one['status']}
        yield at, place, _entry('status', attempt, one['owner'], one['epoch'], None, payload)


def _of_step(step: Any, place: int) -> Iterator[_Dated]:
    undo = 'undo_' if step.direction == 'undo' else ''
    input_ = {'input': step.input} if step.input is not None else {}
    result = {'result': step.result} if step.result is not None else {}
    tries = {'tries': step.tries} if step.tries != 1 else {}
    ended = step.state != 'intent'
    if undo or input_ or not ended:  # it was written ahead
        first = step.first_owner or step.owner, step.epoch if step.first_epoch is None else step.first_epoch, step.step
        payload = input_ | ({} if ended or result else tries)
        yield step.started_at, place + _BEGUN, _entry(f'{undo}intent', step.attempt, *first, payload)
        input_ = {}
    last = step.owner, step.epoch, step.step
    if ended:
        at = step.ended_at or step.started_at
        yield at, place + _DONE, _entry(f'{undo}{step.state}', step.attempt, *last, input_ | result | tries)
    elif result:
        yield step.started_at, place + _BEGUN, _entry(f'{undo}tried', step.attempt, *last, result | tries)


def _of_stuck(step: Any) -> Iterator[_Dated]:
    for event in (step.result or {}).get('events', ()):
        at = _moment(event['at'])
        if 'retried_by' in event:
            payload = {'by': event['retried_by'], 'requested_at': event['at']}
            yield at, 0, _entry('retry', step.attempt, None, step.epoch, None, payload)
            continue
        payload = {'reason': event['stuck'], 'boots': event.get('boots', {})} if event['stuck'] else {}
        kind = 'stuck' if event['stuck'] else 'unstuck'
        yield at, 0, _entry(kind, step.attempt, event['owner'], event['epoch'], None, payload)


def _moment(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)
