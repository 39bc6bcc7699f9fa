# SPDX-License-Identifier: Apache-2.0

"""The schema on SQLite, PostgreSQL and MariaDB, and the values that each of them holds."""

import uuid

import pytest
import sqlalchemy as sa
from alembic import autogenerate
from alembic.runtime import migration as alembic_migration

from migrator import exception
from migrator.db import models, saga_log
from migrator.db.cleanups import Cleanup
from migrator.db.migrations import Write
from migrator.db.schema import sync
from migrator.objects import ComputeNode, ProviderInventory, protocol
from migrator.saga import log
from tests.real.rows import CONTEXT, accepted, instance, migration, owner
from tests.reasons import stuck_for, waiting_for

ODD = ['nul', 'surrogate', 'long', 'emoji']


def test_the_schema_that_the_versions_make_from_nothing_is_that_of_the_models(url, new_database):
    database = new_database(url)
    sync.sync(database.engine)
    with database.engine.sa_engine.connect() as connection:
        # MariaDB stores the default of a boolean column as a number, which alembic takes for another default.
        options = {'compare_type': True, 'compare_server_default': connection.dialect.name != 'mysql'}
        found = alembic_migration.MigrationContext.configure(connection, opts=options)
        assert autogenerate.compare_metadata(found, models.Base.metadata) == []
    assert sync.version(database.engine) == sync.head()
    assert sync.sync(database.engine) == sync.head()
    sync.check(database.engine)


def test_empty_or_other_schema_is_reported(url, new_database):
    made = new_database(url)
    with pytest.raises(exception.NoSchema, match='no schema yet'):
        sync.check(made.engine)
    sync.sync(made.engine)
    with made.engine.writer() as session:
        session.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    for function in (sync.check, sync.sync):
        with pytest.raises(exception.OtherSchema, match='9999'):
            function(made.engine)


def test_values_are_read_with_their_type(database):
    guest = instance(database)
    found = database.instances.get(guest.uuid)
    assert found == guest
    assert found.launched_at.tzinfo is not None
    assert found.flavor.name == 'm1'
    one = migration(guest)
    database.migrations.accept(CONTEXT, one, 'live-migration')
    (listed,) = database.migrations.list({'host': 'source'})
    assert (listed.uuid, listed.force, listed.block_migration) == (one.uuid, False, None)
    history = saga_log.history(database.migrations.read_log(listed.uuid))
    assert [entry['status'] for entry in history] == ['accepted']


@pytest.mark.parametrize('odd', ['a\0b', 'a\ud800b', 'x' * 100_000, '\U0001f600' * 70_000], ids=ODD)
def test_texts_of_hosts_and_drivers_are_stored_escaped_and_cut(database, odd):
    """A text that a database cannot hold keeps no host from registering, and no migration from settling."""
    provider = ProviderInventory(uuid=str(uuid.uuid4()), name=odd, inventory={'VCPU': {'total': odd}})
    node = ComputeNode(
        uuid=provider.uuid, host='source', node=odd, hypervisor_type=odd, hypervisor_version=2**64, host_ip=odd,
        cpu_info={odd: [odd, float('nan')]}, providers=[provider],
    )  # fmt: skip
    report = protocol.HostReport(host='source', boot_id=str(uuid.uuid4()), version=2**64, node=node)
    database.migrations.begin_boot(report, database.services)
    assert database.services.get_compute('source').version == 2**31 - 1
    (found,) = database.services.list_nodes()
    assert (found.hypervisor_version, len(found.hypervisor_type)) == (2**31 - 1, min(64, len(found.hypervisor_type)))
    database.services.update(1, disabled=True, disabled_reason=odd)
    moved = accepted(database)
    database.instances.update(moved.instance_uuid, locked_by='admin', locked_reason=odd)
    known = database.takeovers.adopt([moved.uuid], owner(database)).owned[0].migration
    figures = {'memory_total': 2**64, 'disk_remaining': -(2**64), **waiting_for(odd)}
    assert database.migrations.note_progress(known, figures)
    record = log.StepRecord(
        step='check', direction=log.DO, attempt=1, state='done', input={odd: odd}, result={'a': odd}
    )
    cleanup = Cleanup('source', moved.uuid, moved.instance_uuid, 'step', odd, 1, blocked_because=odd, input={'a': odd})
    fields = {'status': 'error', 'failure': odd, **stuck_for(odd), 'abort_text': odd}
    database.migrations.commit(known, Write(fields, records=[record], cleanups=[cleanup]))
    ended = database.migrations.get(moved.uuid)
    assert (ended.status, ended.memory_total, ended.disk_remaining) == ('error', 2**63 - 1, -(2**63))
    for text in (
        ended.failure,
        database.cleanups.list()[0].reason,
        database.actions.list(moved.instance_uuid)[0].message,
    ):
        assert text[0] == odd[0]
        assert text.encode('utf-8')
        assert len(text) < 20_000


def test_a_document_that_is_nested_too_deep_is_stored_without_its_depths(database):
    deep = {}
    for _ in range(60):
        deep = {'in': [deep]}
    uuid_ = str(uuid.uuid4())
    node = ComputeNode(
        uuid=uuid_, host='source', node='source', hypervisor_type='kvm', hypervisor_version=1, host_ip='',
        cpu_info=deep, providers=[],
    )  # fmt: skip
    with database.engine.writer() as session:
        database.services.write_node(session, node)
    assert database.services.get_node(uuid_).cpu_info.keys() == {'in'}


def test_texts_are_equal_only_if_each_character_is(database):
    guest = instance(database)
    names = ['Source', 'sourc\u00e9', 'source ', 'source']
    found = {name: [one.uuid for one in database.instances.list({'host': name})] for name in names}
    assert found == {name: [] for name in names} | {'source': [guest.uuid]}
    for name in names:
        database.services.report(name, 'nova-compute', 1)
    assert {one.host for one in database.services.list()} == {*names}


@pytest.mark.parametrize('odd', ['a\0b', '\ud800', 'x' * 300], ids=ODD[:3])
def test_lookup_of_an_impossible_value_finds_nothing(database, odd):
    instance(database)
    with pytest.raises(exception.InstanceNotFound):
        database.instances.get(odd)
    assert database.instances.list({'host': odd, 'project_id': [odd, 'red']}) == []
    assert database.services.list(host=odd) == []
