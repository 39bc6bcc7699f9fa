# SPDX-License-Identifier: Apache-2.0

"""What ``openstack resource provider ...`` shows of a migration: the real client and Placement."""

import contextlib
import json
import pathlib
import sys
from typing import NamedTuple

import pytest

from migrator.runtime import http_server
from migrator.virt import driver
from tests import backends
from tests.functional import commands, migration_requests, state

pytestmark = [pytest.mark.slow, pytest.mark.real_placement]

OPENSTACK = pathlib.Path(sys.executable).with_name('openstack')
HOSTS = ('host1', 'host2')


@contextlib.contextmanager
def served(app):
    """Serve a WSGI application on a port of its own; yield its URL."""
    server = http_server.listen(app, '127.0.0.1', 0)
    try:
        yield server.url
    finally:
        server.stop()


@pytest.fixture
def url(cloud):
    """Where the cloud's Placement is: where it is served already, or served for the test."""
    if hasattr(cloud, 'site'):
        yield cloud.site.placement.url
    else:
        with served(cloud.placement.app) as found:
            yield found


@pytest.fixture
def openstack(url, tmp_path):
    """Give the client several commands at once on its standard input; return their answers in order."""
    if not OPENSTACK.exists():
        backends.left_out('python-openstackclient is not installed')
    reported = {
        'OS_AUTH_TYPE': 'admin_token',
        'OS_ENDPOINT': url,
        'OS_TOKEN': 'admin',
    }

    def openstack(*lines, version='1.38'):
        env = commands.environment(tmp_path, OS_PLACEMENT_API_VERSION=version, **reported)
        ended = commands.client([str(OPENSTACK)], env, ''.join(f'{line} -f json\n' for line in lines))
        # its exit status says nothing when it reads its commands
        assert ended.stderr == ''
        return list(documents(ended.stdout, len(lines)))

    return openstack


def documents(text, count):
    """Return the JSON documents that follow each other in a text."""
    decoder, rest = json.JSONDecoder(), text.lstrip()
    for _ in range(count):
        document, end = decoder.raw_decode(rest)
        yield document
        rest = rest[end:].lstrip()
    assert rest == ''


class Shown(NamedTuple):
    """What the client has shown; hosts by their names, and a host without a part left out.

    :ivar instance: host -> what the instance holds there.
    :ivar migration: the same of its newest migration.
    :ivar usage: host -> resource class -> what is used there, by all consumers.
    """

    instance: dict
    migration: dict
    usage: dict


@pytest.fixture
def show(cloud, openstack):
    """Have the client show what an instance and its newest migration hold, and what is used of the hosts."""
    names = {driver.node_uuid(host): host for host in HOSTS}

    def held(rows, kind):
        assert {row['consumer_type'] for row in rows} <= {kind}
        return {names[row['resource_provider']]: row['resources'] for row in rows}

    def show(instance):
        consumers = [instance.uuid, *(one.uuid for one in cloud.migrations(instance)[-1:])]
        *holders, at_host1, at_host2 = openstack(
            *(f'resource provider allocation show {uuid}' for uuid in consumers),
            *(f'resource provider usage show {uuid}' for uuid in names),
        )
        usage = [{row['resource_class']: row['usage'] for row in rows} for rows in (at_host1, at_host2)]
        migration = holders[1] if len(holders) > 1 else []
        return Shown(held(holders[0], 'INSTANCE'), held(migration, 'MIGRATION'), dict(zip(HOSTS, usage, strict=True)))

    return show


def used(*counts):
    """Return what is used if that number of guests hold something, by host."""
    return {
        host: {name: count * amount for name, amount in state.CLAIM.items()}
        for host, count in zip(HOSTS, counts, strict=True)
    }


AT_HOST1, AT_HOST2 = ({host: state.CLAIM} for host in HOSTS)
BEFORE = Shown(AT_HOST1, {}, used(1, 0))
UNDER_WAY = Shown(AT_HOST2, AT_HOST1, used(1, 1))
AFTER = Shown(AT_HOST2, {}, used(0, 1))
#: The strategy of old: the instance holds both.
UNDER_WAY_DOUBLED = Shown({**AT_HOST1, **AT_HOST2}, {}, used(1, 1))
OLD = pytest.mark.cloud(options={'compute.service_version_cap': 1})

STRATEGIES = [
    pytest.param(UNDER_WAY, id='migration-owned'),
    pytest.param(UNDER_WAY_DOUBLED, id='doubled', marks=OLD),
]


@pytest.mark.parametrize('under_way', STRATEGIES)
def test_allocations_are_shown_before_during_and_after_a_move(cloud, show, under_way):
    instance = cloud.boot('one', 'host1')
    assert show(instance) == BEFORE
    migration_requests.running(cloud, instance)
    assert show(instance) == under_way
    migration_requests.go_on(cloud)
    cloud.wait()
    migration_requests.completed(cloud, instance)
    assert show(instance) == AFTER


@pytest.mark.parametrize('under_way', STRATEGIES)
def test_a_move_that_is_aborted_while_it_runs_is_shown_as_if_it_had_not_been(cloud, show, under_way):
    instance = cloud.boot('one', 'host1')
    migration_requests.running(cloud, instance)
    assert show(instance) == under_way
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.wait()
    assert state.migration(cloud, instance)['status'] == 'cancelled'
    assert show(instance) == BEFORE


def test_a_move_that_waits_in_the_queue_holds_both_sides_until_it_is_aborted_there(cloud, show):
    first, instance = cloud.boot('first', 'host1'), cloud.boot('one', 'host1')
    migration_requests.running(cloud, first)
    assert state.migration(cloud, first)['dest_compute'] == 'host2'
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    state.when(cloud, instance, 'queued')
    assert show(instance) == UNDER_WAY._replace(usage=used(2, 2))
    assert migration_requests.abort(cloud, instance).status_int == 202
    cloud.simulation.run_until(lambda: cloud.migrations(instance)[-1].ended)
    assert state.migration(cloud, instance)['status'] == 'cancelled'
    assert show(instance) == BEFORE._replace(usage=used(2, 1)), 'the other one still runs'
    assert show(first) == UNDER_WAY._replace(usage=used(2, 1))
    migration_requests.go_on(cloud)
    cloud.wait()
    assert show(first) == AFTER._replace(usage=used(1, 1))


def test_allocation_keeps_its_owner_if_an_administrator_migrates_the_guest(cloud, openstack):
    """An administrator migrates it; the allocation counts for its owner before and afterwards."""
    instance = cloud.boot('one', 'host1')
    assert (instance.project_id, instance.user_id) == ('demo', 'demo')

    def shown():
        rows, usage = openstack(
            f'resource provider allocation show {instance.uuid}',
            'resource usage show demo --user-id demo',
            # from 1.38 on, Placement on PostgreSQL answers the second with 500
            version='1.37',
        )
        owners = {(row['project_id'], row['user_id']) for row in rows}
        return owners, {row['resource_class']: row['usage'] for row in usage}

    assert shown() == ({('demo', 'demo')}, state.CLAIM)
    assert cloud.live_migrate(instance, 'host2').status_int == 202
    cloud.wait()
    migration_requests.completed(cloud, instance)
    assert shown() == ({('demo', 'demo')}, state.CLAIM)
