# SPDX-License-Identifier: Apache-2.0

"""An audit of a site that shares no code with the product.

It reads by SQL, HTTP and AMQP, and from the socket of the fake hypervisors.

:func:`read` reads, and :func:`judge` compares. At rest, which is when no migration is in progress and no fault is
active, each guest runs on one host, holds its flavor there and nothing else, and no trace of a migration is left.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import socket
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import amqp
import psycopg2

LOST, STUCK, LEAKED, DOUBLED = 'lost', 'stuck', 'leaked', 'doubled'
#: The statuses in which a live migration has ended, with which its history ends too.
ENDS = ('completed', 'cancelled', 'failed', 'error')
#: The states in which a copy of a guest has the processors.
ACTIVE = ('running', 'paused')
#: What a host has of a guest that runs there.
OWN = {'directory', 'connections'}
#: A message may wait for a moment even at rest: hosts report all the time.
BACKLOG = 20


class Finding(NamedTuple):
    """One thing that is wrong.

    :ivar sort: :data:`LOST`, :data:`STUCK`, :data:`LEAKED` or :data:`DOUBLED`.
    """

    sort: str
    what: str


@dataclasses.dataclass(frozen=True)
class Where:
    """Where the parts of a site are.

    :ivar database: a connection string of libpq.
    :ivar broker: the URL of its administrator's API, with a user and a password.
    :ivar amqp: its host and port.
    :ivar world: the path of the socket of the fake hypervisors.
    """

    database: str
    placement: str
    broker: str
    amqp: str
    vhost: str
    world: str


@dataclasses.dataclass
class Seen:
    """What was read of a site.

    :ivar held: provider -> consumer -> resources.
    :ivar used: provider -> resources, as Placement sums them up itself.
    :ivar logs: migration -> what its log contains: ``last`` (its highest number), ``entries``, ``ends`` (how many final
        statuses) and ``shared`` (epochs in which more than one conductor has written).
    :ivar queues: queue -> (messages, consumers).
    """

    instances: list[dict[str, Any]]
    migrations: list[dict[str, Any]]
    drains: list[dict[str, Any]]
    cleanups: list[dict[str, Any]]
    logs: dict[str, dict[str, Any]]
    disabled: list[str]
    held: dict[str, dict[str, dict[str, int]]]
    used: dict[str, dict[str, int]]
    world: dict[str, Any]
    queues: dict[str, tuple[int, int]]


# --- reading ----------------------------------------------------------------------------------------------------------

_TABLES = {
    'instances': 'SELECT uuid, host, vm_state, task_state, flavor FROM instances',
    'migrations': (
        'SELECT uuid, instance_uuid, status, in_progress_instance_uuid AS moving, stuck_kind, wait_kind, failure, '
        'log_seq, owner, epoch, source_compute, dest_compute, '
        "extract(epoch FROM timezone('utc', clock_timestamp()) - created_at)::float AS age FROM migrations"
    ),
    'drains': 'SELECT uuid, host, status, in_progress_host, message FROM drains',
    'cleanups': 'SELECT host, migration_uuid, instance_uuid, step, reason, alarm FROM cleanups',
    'services': 'SELECT host, disabled, forced_down FROM services',
}
_LOGS = """
SELECT migration, max(seq), count(*), count(*) FILTER (WHERE kind = 'status' AND payload->>'status' IN %s)
FROM saga_log GROUP BY migration
"""
_SHARED = """
SELECT migration, epoch FROM saga_log WHERE conductor IS NOT NULL
GROUP BY migration, epoch HAVING count(DISTINCT conductor) > 1
"""


@contextlib.contextmanager
def cursor(database: str) -> Iterator[Any]:
    """Open a read-only transaction that sees one moment."""
    with contextlib.closing(psycopg2.connect(database)) as connection:
        connection.set_session(isolation_level='REPEATABLE READ', readonly=True)
        with connection.cursor() as made:
            yield made


def rows(made: Any, statement: str, *values: Any) -> list[dict[str, Any]]:
    """Return the rows of a query as dictionaries."""
    made.execute(statement, values or None)
    names = [column.name for column in made.description]
    return [dict(zip(names, row, strict=True)) for row in made.fetchall()]


def look(path: str) -> dict[str, Any]:
    """Return what the fake hypervisors have: ``hosts`` and ``violations``."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(path)
        connection.sendall(b'{"call": "look"}\n')
        answer = json.loads(connection.makefile().readline())
    found: dict[str, Any] = answer['result']
    return found


def get(url: str) -> Any:
    """Return the JSON document at a URL of Placement."""
    headers = {'X-Auth-Token': 'admin', 'OpenStack-API-Version': 'placement 1.28'}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, headers=headers), timeout=60) as answer:  # noqa: S310 -- a URL of ours
        return json.load(answer)


def queues(where: Where) -> dict[str, tuple[int, int]]:
    """Return the messages that are ready in each queue, and its consumers."""
    head, _, host = where.broker.partition('://')[2].rpartition('@')
    passwords = urllib.request.HTTPPasswordMgrWithDefaultRealm()
    passwords.add_password(None, f'http://{host}', *head.split(':'))
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPBasicAuthHandler(passwords)
    )
    with opener.open(f'http://{host}/api/queues/{where.vhost}?columns=name', timeout=60) as answer:
        names = [one['name'] for one in json.load(answer)]
    found = {}
    user, password = head.split(':')
    for name in names:
        # one that is deleted meanwhile closes the channel
        with (
            contextlib.suppress(amqp.AMQPError),
            amqp.Connection(where.amqp, user, password, virtual_host=where.vhost, connect_timeout=10) as connection,
        ):
            said = connection.channel().queue_declare(name, passive=True)
            found[name] = (int(said.message_count), int(said.consumer_count))
    return found


def read(where: Where) -> Seen:
    """Read a whole site."""
    with cursor(where.database) as made:
        tables = {name: rows(made, query) for name, query in _TABLES.items()}
        made.execute(_LOGS, (ENDS,))
        logs = {row[0]: {'last': row[1], 'entries': row[2], 'ends': row[3], 'shared': []} for row in made.fetchall()}
        made.execute(_SHARED)
        for migration, epoch in made.fetchall():
            logs[migration]['shared'].append(epoch)
    providers = get(f'{where.placement}/resource_providers')['resource_providers']
    held, used = {}, {}
    for one in providers:
        url = f'{where.placement}/resource_providers/{one["uuid"]}'
        allocations = get(f'{url}/allocations')['allocations']
        held[one['name']] = {consumer: each['resources'] for consumer, each in allocations.items()}
        used[one['name']] = {name: amount for name, amount in get(f'{url}/usages')['usages'].items() if amount}
    return Seen(
        instances=tables['instances'],
        migrations=tables['migrations'],
        drains=tables['drains'],
        cleanups=tables['cleanups'],
        logs=logs,
        disabled=[row['host'] for row in tables['services'] if row['disabled'] or row['forced_down']],
        held=held,
        used=used,
        world=look(where.world),
        queues=queues(where),
    )


# --- judging ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Known:
    """What a site must have, as the operator knows it.

    :ivar guests: the uuids of the guests that were started.
    :ivar drains: the uuids of the drains that the API has accepted.
    :ivar migrations: the uuids of the migrations that were seen at any time.
    """

    guests: set[str] = dataclasses.field(default_factory=set)
    drains: set[str] = dataclasses.field(default_factory=set)
    migrations: set[str] = dataclasses.field(default_factory=set)


def judge(seen: Seen, known: Known) -> list[Finding]:
    """Return all that is wrong with a site at rest."""
    return [
        *_rows(seen, known),
        *_guests(seen),
        *_allocations(seen),
        *_histories(seen),
        *(Finding(LEAKED, f'cleanup {one["step"]} of {one["host"]}: {one["reason"]}') for one in seen.cleanups),
        *(Finding(LEAKED, f'{host} is disabled') for host in seen.disabled),
        *_messages(seen.queues),
    ]


def _rows(seen: Seen, known: Known) -> Iterator[Finding]:
    for what, there, expected in (
        ('guest', {one['uuid'] for one in seen.instances}, known.guests),
        ('drain', {one['uuid'] for one in seen.drains}, known.drains),
        ('migration', {one['uuid'] for one in seen.migrations}, known.migrations),
    ):
        for uuid in sorted(expected - there):
            yield Finding(LOST, f'{what} {uuid} has no row')
    for one in seen.instances:
        if one['task_state'] is not None:
            yield Finding(STUCK, f'guest {one["uuid"]} has the task_state {one["task_state"]}')
        if one['vm_state'] != 'active':
            yield Finding(LOST, f'guest {one["uuid"]} has the vm_state {one["vm_state"]}')
    for one in seen.migrations:
        if one['moving'] is not None or one['status'] not in ENDS:
            reason = one['stuck_kind'] or one['wait_kind'] or 'no reason'
            yield Finding(STUCK, f'migration {one["uuid"]} is {one["status"]} after {one["age"]:.0f} s: {reason}')
        if one['status'] == 'error':
            yield Finding(LOST, f'migration {one["uuid"]} ended in error: {one["failure"]}')
    for one in seen.drains:
        if one['in_progress_host'] is not None:
            yield Finding(STUCK, f'drain {one["uuid"]} of {one["host"]} is {one["status"]}')


def copies(world: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Return the copies of each guest: (host, state)."""
    found: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)
    for host, each in sorted(world['hosts'].items()):
        for uuid, guest in each['guests'].items():
            found[uuid].append((host, guest['state']))
    return found


def doubled(world: Mapping[str, Any]) -> list[Finding]:
    """Return the guests that are active on two hosts, now or at any time.

    There must be none during migrations, too.
    """
    found = [Finding(DOUBLED, text) for text in world['violations']]
    for uuid, there in copies(world).items():
        active = [host for host, state in there if state in ACTIVE]
        if len(active) > 1:
            found.append(Finding(DOUBLED, f'guest {uuid} is active on {" and ".join(active)}'))
    return found


def _guests(seen: Seen) -> Iterator[Finding]:
    yield from doubled(seen.world)
    there = copies(seen.world)
    for one in seen.instances:
        if (one['host'], 'running') not in there.get(one['uuid'], []):
            yield Finding(LOST, f'guest {one["uuid"]} does not run on {one["host"]}: {there.get(one["uuid"])}')
    hosts = {one['uuid']: one['host'] for one in seen.instances}
    for uuid, each in there.items():
        for host, state in each:
            if hosts.get(uuid) != host:
                yield Finding(LEAKED, f'{host} has a copy of guest {uuid} that is {state}')
    for host, each in sorted(seen.world['hosts'].items()):
        for uuid in each['jobs']:
            yield Finding(LEAKED, f'{host} has a job of guest {uuid}')
        for uuid, parts in each['residues'].items():
            if left := set(parts) - (OWN if hosts.get(uuid) == host else set()):
                yield Finding(LEAKED, f'{host} has {", ".join(sorted(left))} of guest {uuid}')


def _allocations(seen: Seen) -> Iterator[Finding]:
    expected: dict[str, dict[str, dict[str, int]]] = {name: {} for name in seen.held}
    for one in seen.instances:
        flavor = one['flavor']
        flavor = flavor.get('data', flavor)
        amounts = {'VCPU': flavor['vcpus'], 'MEMORY_MB': flavor['memory_mb'], 'DISK_GB': flavor['root_gb']}
        expected.setdefault(one['host'], {})[one['uuid']] = {name: many for name, many in amounts.items() if many}
    for name in sorted(expected):
        held = seen.held.get(name, {})
        for consumer in sorted(expected[name].keys() | held.keys()):
            wanted, there = expected[name].get(consumer), held.get(consumer)
            if wanted is None:
                yield Finding(LEAKED, f'{consumer} holds {there} at {name}, and its guest is not there')
            elif there is None:
                yield Finding(LOST, f'guest {consumer} holds nothing at {name}, where it is')
            elif wanted != there:
                sort = DOUBLED if sum(there.values()) > sum(wanted.values()) else LOST
                yield Finding(sort, f'guest {consumer} holds {there} at {name} and not {wanted}')
        total: collections.Counter[str] = collections.Counter()
        for resources in held.values():
            total.update(resources)
        if dict(total) != seen.used.get(name, {}):
            yield Finding(DOUBLED, f'{name} uses {seen.used.get(name)}, and its consumers hold {dict(total)}')


def _histories(seen: Seen) -> Iterator[Finding]:
    for one in seen.migrations:
        log = seen.logs.get(one['uuid'], {'last': 0, 'entries': 0, 'ends': 0, 'shared': []})
        if not log['last'] == log['entries'] == one['log_seq']:
            yield Finding(LOST, f'the log of migration {one["uuid"]} has gaps: {log}, and {one["log_seq"]} entries')
        if one['status'] in ENDS and log['ends'] != 1:
            yield Finding(DOUBLED, f'migration {one["uuid"]} has ended {log["ends"]} times')
        for epoch in log['shared']:
            yield Finding(DOUBLED, f'two conductors have written migration {one["uuid"]} in epoch {epoch}')


def _messages(found: Mapping[str, tuple[int, int]]) -> Iterable[Finding]:
    """Return the queues that are read and yet have a backlog. What a dead process left expires by itself."""
    for name, (messages, consumers) in sorted(found.items()):
        if consumers and messages > BACKLOG:
            yield Finding(STUCK, f'queue {name} has {messages} messages')
