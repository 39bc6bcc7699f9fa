# SPDX-License-Identifier: Apache-2.0

"""The log of a service: the sender and the subject of each line."""

from __future__ import annotations

import io
import logging
import re

import pytest
from oslo_config import cfg

from migrator import context, exception
from migrator.runtime import logs
from migrator.testing.cloud import SimulatedCloud


@pytest.fixture
def log(tmp_path):
    """A logger with the setup of a service, and the lines that it wrote."""
    conf = cfg.ConfigOpts()
    logs.register(conf)
    conf(['--log-file', str(tmp_path / 'log')], project='migrator', default_config_files=[], default_config_dirs=[])
    root = logging.getLogger()
    before = list(root.handlers), root.level
    logs.setup(conf)
    yield logging.getLogger('migrator.test'), lambda: (tmp_path / 'log').read_text().splitlines()
    root.handlers[:], root.level = before


def test_a_line_has_the_request_the_migration_and_the_instance_that_it_is_about(log):
    logger, lines = log
    # another's, as a pool's thread has it left over
    context.RequestContext(request_id='req-stale', overwrite=True)
    with context.about(context.RequestContext(request_id='req-1', overwrite=False), 'mig-1', 'inst-1'):
        logger.info('within')
    logger.info('without')
    logger.info('by its call', extra={'migration': 'mig-2'})
    within, without, by_call = lines()
    assert 'req-1 ' in within
    assert '[migration: mig-1] [instance: inst-1] within' in within
    assert '[-] without' in without
    assert '[migration: mig-2] by its call' in by_call


@pytest.mark.parametrize('odd', ['\n', '\r\n', '\x0b', '\x0c', '\x85', '\u2028', '\x1b[2J', '\x00', '\ud800'])
def test_outside_text_makes_no_second_line_and_no_terminal_commands(log, odd):
    logger, lines = log
    forged = f'a{odd}2026-01-01 00:00:00 CRITICAL all is lost'
    user = context.RequestContext(user_id=f'eve{odd.strip()}', request_id='req-1', overwrite=False)
    with context.about(user):
        logger.info('Path %s', forged)
        logger.info(forged)
        logger.info('last')
    assert len(lines()) == 3
    assert all(odd not in line and not line.startswith('2026-01-01 00:00:00') for line in lines())
    assert lines()[0].endswith('all is lost')
    assert '\\' in lines()[0]


def test_traceback_keeps_its_lines_and_escapes_line_breaks_of_values(log):
    logger, lines = log
    try:
        raise ValueError('why\n2026-01-01 00:00:00 CRITICAL all is lost \x1b[2J')
    except ValueError:
        logger.exception('It failed')
        logger.warning('It goes on')
    assert any('Traceback' in line for line in lines())
    assert not any(line.startswith('2026-01-01 00:00:00') or '\x1b' in line for line in lines())


def test_rpc_handler_logs_the_subject_of_its_call(log):
    logger, lines = log
    served = {}

    class RPC:
        def serve(self, target, endpoint):
            served[target] = endpoint

    class Endpoint:
        def wake(self, context, migration_uuid):
            logger.info('woken')
            return migration_uuid

        wake.exposed = True

    logs.with_context(RPC()).serve('topic', Endpoint())
    assert served['topic'].wake.exposed
    assert not hasattr(served['topic'], 'sleep')
    called = served['topic'].wake(context.RequestContext(request_id='req-9', overwrite=False), migration_uuid='mig-9')
    assert called == 'mig-9'
    assert 'req-9' in lines()[0]
    assert '[migration: mig-9] woken' in lines()[0]


def test_no_password_is_logged_neither_in_a_message_nor_in_a_traceback(log):
    logger, lines = log
    for said in ('password = hush', 'auth_token=hush', "{'secret': 'hush'}"):
        logger.info(said)
    logger.info('to %s', 'postgresql://user:hush@host/db and rabbit://u:hush@h')
    try:
        raise RuntimeError('rabbit://user:hush@host')
    except RuntimeError:
        logger.exception('it failed')
    text = '\n'.join(lines())
    assert 'hush' not in text
    assert 'postgresql://***@host/db' in text


def test_outage_is_logged_once_without_a_traceback(log):
    logger, lines = log
    for attempt in range(3):
        try:
            raise exception.DatabaseUnreachable(reason=f'attempt {attempt}')
        except exception.DatabaseUnreachable:
            logger.exception('The sweep failed')
        logging.getLogger('oslo_db.sqlalchemy.engines').error('refused, %s attempts left', attempt)
    assert len(lines()) == 2
    assert lines()[0].endswith('The sweep failed: The database is not reachable: attempt 0')


def test_outage_of_the_broker_is_logged_once_whatever_the_words_and_the_next_one_again():
    now = [0.0]
    once = logs.OncePerOutage(clock=lambda: now[0])

    def said(at: float, text: str) -> bool:
        now[0] = at
        name = 'oslo.messaging._drivers.impl_rabbit'
        return once.filter(logging.LogRecord(name, logging.ERROR, '', 1, f'%s {text}', ('x',), None))

    lines = [(0, 'is unreachable'), (1, 'other'), (30, 'is unreachable'), (85, 'Connection failed')]
    assert [said(*line) for line in lines] == [True, True, False, False]
    assert said(150, 'Unable to connect')


def test_later_outage_and_other_errors_are_logged_again():
    now = [0.0]
    once = logs.OncePerOutage(clock=lambda: now[0])

    def said(name: str) -> bool:
        return once.filter(logging.LogRecord(name, logging.ERROR, '', 1, 'refused', (), None))

    assert [said('keystoneauth.x'), said('keystoneauth.x')] == [True, False]
    now[0] = 61.0
    assert said('keystoneauth.x')
    assert [said('migrator.x'), said('migrator.x')] == [True, True]


@pytest.mark.parametrize('named', [False, True])
def test_outage_noticed_by_many_migrations_is_logged_once(named):
    once = logs.OncePerOutage(clock=lambda: 0.0)
    away = exception.ServiceUnreachable(service='The message broker', reason='it sleeps')
    message = 'Migration %(uuid)s waits: %(error)s' if named else 'Migration %s waits: %s'
    for count, uuid in enumerate(['4a1b0c2d-0000-4000-8000-00000000000a', 'beefcafe-1111-4000-8000-0123456789ab']):
        values = ({'uuid': uuid, 'error': away},) if named else (uuid, away)
        record = logging.LogRecord('migrator.x', logging.WARNING, '', 1, message, values, None)
        assert once.filter(record) is (count == 0)


def test_outage_of_the_database_is_logged_once_whatever_notices_it():
    once = logs.OncePerOutage(clock=lambda: 0.0)

    def written(name, text, error):
        return once.filter(logging.LogRecord(name, logging.WARNING, '', 1, text, (error,), None))

    away, read_only = exception.DatabaseUnreachable(reason='it sleeps'), exception.DatabaseReadOnly(reason='standby')
    assert written('migrator.x', 'Could not renew: %s', read_only)
    assert not written('migrator.y', 'Could not write heartbeats: %s', read_only)
    assert written('migrator.x', 'Could not renew: %s', away)


def test_each_handler_writes_the_line_of_an_outage(tmp_path, capsys):
    """Such as a file and the journal."""
    conf = cfg.ConfigOpts()
    logs.register(conf)
    conf(['--log-file', str(tmp_path / 'log')], project='migrator', default_config_files=[])
    root = logging.getLogger()
    before = list(root.handlers), root.level
    try:
        conf.set_override('use_stderr', True)
        logs.setup(conf)
        logging.getLogger('migrator.test').warning('Waits: %s', exception.DatabaseUnreachable(reason='it sleeps'))
    finally:
        root.handlers[:], root.level = before
    assert 'it sleeps' in (tmp_path / 'log').read_text()
    assert 'it sleeps' in capsys.readouterr().err


def test_log_write_error_is_reported_once_while_it_lasts(log, capsys, monkeypatch):
    logger, lines = log
    (handler,) = [one for one in logging.getLogger().handlers if hasattr(one, 'baseFilename')]
    monkeypatch.setattr(handler, 'reopenIfNeeded', lambda: None)
    usual = handler.stream
    for _ in range(2):
        with io.TextIOWrapper(io.FileIO('/dev/full', 'w'), write_through=True) as handler.stream:
            for number in range(3):
                logger.info('lost %d', number)
        handler.stream = usual
        logger.info('written')
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    for line in said:
        assert f'The log cannot be written to {handler.baseFilename}, and lines are lost: ' in line
        assert 'No space left on device' in line
    assert [line.endswith('written') for line in lines()] == [True, True]


# --- the lines of a migration ----------------------------------------------------------------------------------------


class Cloud(SimulatedCloud):
    """A simulated cloud whose services have RPC as processes have it."""

    def rpc_for(self, name, sender=''):
        return logs.with_context(super().rpc_for(name, sender))


@pytest.fixture
def cloud(backend, log):
    logging.getLogger('migrator').setLevel(logging.DEBUG)
    made = Cloud(backend.directory, hosts=2, backend=backend)
    yield made
    made.stop()
    logging.getLogger('migrator').setLevel(logging.NOTSET)


#: What stands before the message: which logger, which request, which migration, which instance.
LINE = re.compile(
    r'(?P<level>[A-Z]+) (?P<logger>migrator[\w.]*) '
    r'\[(?P<request>[^\]]*)\] (\[migration: (?P<migration>\S+)\] )?(\[instance: (?P<instance>\S+)\] )?'
)


def read(lines):
    """Return the lines that migrator has logged, in their parts."""
    found = [match.groupdict() | {'text': match.string[match.end() :]} for match in map(LINE.search, lines()) if match]
    assert found
    return found


def of(found, logger, word):
    """Return the lines of one kind, of which there is at least one."""
    meant = [line for line in found if line['logger'] == f'migrator.{logger}' and word in line['text']]
    assert meant, f'no line of {logger} with {word!r} in {found}'
    return meant


def all_are_about(found, instance, migration):
    for line in found:
        named = (line['migration'], line['instance'])
        assert named == (migration.uuid, instance.uuid), line
        assert migration.request_id in line['request'], line


def faults(cloud, host):
    return cloud.world.hypervisors[host].faults


def moves(cloud, log, host=None):
    """Ask for a migration, and return its row and a way to its lines."""
    instance = cloud.boot('guest', 'host1', memory_mb=4096)
    assert cloud.live_migrate(instance, host).status_int == 202
    return instance, cloud.migrations(instance)[0]


def test_each_log_line_of_a_migration_has_its_instance_and_request(cloud, log):
    instance, migration = moves(cloud, log)
    cloud.wait()
    found = read(log[1])
    whole = [*of(found, 'conductor.takeover', 'Took over'), *of(found, 'conductor.runner', 'Migration has ended')]
    all_are_about(whole, instance, migration)
    # And no line that is about it lacks it.
    mentioned = [line for line in found if migration.uuid in line['text']]
    all_are_about(mentioned, instance, migration)


def test_lines_of_two_migrations_have_their_own_subjects(cloud, log):
    both = [moves(cloud, log) for _ in range(2)]
    cloud.wait()
    found = read(log[1])
    for instance, migration in both:
        all_are_about([line for line in found if migration.uuid in line['text']], instance, migration)
        all_are_about([line for line in found if line['migration'] == migration.uuid], instance, migration)


def test_failure_at_a_host_is_logged_with_migration_and_request(cloud, log):
    faults(cloud, 'host2').fail('pre_live_migration', reason='no such bridge')
    faults(cloud, 'host1').fail('copying', reason='the cable')
    instance, migration = moves(cloud, log)
    cloud.wait()
    all_are_about(of(read(log[1]), 'compute.step_runner', 'no such bridge'), instance, migration)


def test_abort_refused_by_a_driver_is_logged_with_the_migration(cloud, log):
    faults(cloud, 'host1').fail('live_migration_abort', reason='the monitor is busy')
    instance, migration = moves(cloud, log)
    cloud.simulation.run_until(lambda: cloud.migrations(instance)[0].status == 'running')
    assert cloud.request('DELETE', f'/servers/{instance.uuid}/migrations/{migration.id}').status_int == 202
    cloud.wait()
    (line,) = {tuple(line.items()) for line in of(read(log[1]), 'compute.step_runner', 'the monitor is busy')}
    found = dict(line)
    assert (found['migration'], found['instance']) == (migration.uuid, instance.uuid)


def test_lost_report_is_logged_with_the_migration(cloud, log):
    cloud.bus.faults = lambda message: 'refuse' if message.method == 'step_ended' else None
    instance, migration = moves(cloud, log)
    cloud.wait()
    all_are_about(of(read(log[1]), 'compute.step_runner', 'Could not send a report'), instance, migration)


def test_poll_without_an_answer_of_the_driver_is_logged_with_the_migration(cloud, log):
    instance, migration = moves(cloud, log)
    cloud.simulation.run_until(lambda: cloud.migrations(instance)[0].status == 'running')
    faults(cloud, 'host1').fail('get_guest', sticky=True)
    cloud.simulation.advance(5)
    faults(cloud, 'host1').clear()
    cloud.wait()
    for line in of(read(log[1]), 'compute.status', 'Could not poll the hypervisor'):
        assert (line['migration'], line['instance']) == (migration.uuid, instance.uuid)


def test_adopted_job_is_logged_with_its_migration(cloud, log):
    instance, migration = moves(cloud, log)
    cloud.simulation.run_until(lambda: cloud.migrations(instance)[0].status == 'running')
    cloud.kill('host1')
    stall = faults(cloud, 'host1').stall('attach_live_migration')
    faults(cloud, 'host1').fail('attach_live_migration', after=True)
    cloud.start_compute('host1')
    cloud.simulation.run_until(cloud.up)
    cloud.simulation.run_ready()
    stall.release()
    cloud.wait()
    for line in of(read(log[1]), 'compute.steps', 'Could not attach to the job'):
        assert (line['migration'], line['instance']) == (migration.uuid, instance.uuid)


def test_wait_and_deferred_cleanup_are_logged_with_the_migration(cloud, log):
    instance, migration = moves(cloud, log)
    cloud.simulation.run_until(lambda: cloud.migrations(instance)[0].status == 'running')
    cloud.kill('host1')
    cloud.simulation.advance(90)
    waiting = of(read(log[1]), 'conductor.periodics', 'has not answered since')
    all_are_about(waiting, instance, migration)
    cloud.wait(900)
    assert cloud.database.cleanups.list(), 'a cleanup was deferred'
    cloud.start_compute('host1')
    cloud.simulation.run_until(lambda: not cloud.database.cleanups.list())
    done = of(read(log[1]), 'conductor.cleanups', 'is done')
    assert {(line['migration'], line['instance']) for line in done} == {(migration.uuid, instance.uuid)}
