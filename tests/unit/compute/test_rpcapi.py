# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import inspect
from typing import Any

import oslo_messaging
import pytest

from migrator import exception
from migrator.compute import manager, rpcapi
from migrator.conductor.tasks import sagas
from migrator.objects import Migration, protocol, steps
from tests.unit.compute import scene

PUBLIC = [name for name, _ in inspect.getmembers(rpcapi.ComputeAPI, inspect.isfunction) if not name.startswith('_')]
METHODS = [*rpcapi.COMMANDS, *(name for name in PUBLIC if name != 'send')]
POLL = 'poll_live_migrations'
REPORTS = ('get_diagnostics', 'get_host_uptime')
EVACUATION = [name for name in METHODS if 'evacuat' in name or name == 'get_definitions']
HERE = ['check_can_resize', 'resize', 'confirm_resize', 'revert_resize']
COLD = [name for name, version in rpcapi.COMMANDS.items() if version == '1.5']
END_OF_MOVE = [name for name in METHODS if name.startswith(('post', 'rollback')) and name not in EVACUATION]
#: Newer method -> the service version and the version of the RPC API that it needs.
NEEDED = {
    name: needed
    for names, needed in ((EVACUATION, (6, '1.2')), (REPORTS, (8, '1.4')), (COLD, (9, '1.5')), (HERE, (11, '1.6')))
    for name in names
}


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, str, float, float | None, dict[str, Any]]] = []

    def call(
        self, context: Any, target: Any, method: str, timeout: float, monitor: float | None = None, **args: Any
    ) -> Any:
        self.calls.append((target, method, timeout, monitor, args))
        return protocol.Answer()

    def cast(self, *args: Any, **kwargs: Any) -> None:
        raise AssertionError('every command is acknowledged')

    def serve(self, target: Any, endpoint: object) -> Any:
        raise AssertionError('the RPC API of a client serves nothing')


def migration(status: str) -> Migration:
    return Migration(
        uuid='m', instance_uuid='i', project_id='p', user_id='u', source_compute='alpha', source_node='alpha',
        status=status,
    )  # fmt: skip


def command_of(step: str, boot_id: str = 'first') -> protocol.Command:
    return protocol.Command(
        migration_uuid='m', instance_uuid='i', step=step, epoch=1, owner='o', reply_to='c', boot_id=boot_id
    )


def call(method: str, api: rpcapi.ComputeAPI) -> None:
    given: dict[str, Any] = {
        'context': scene.CONTEXT,
        'host': 'alpha',
        'instance': scene.instance(),
        'block_migration': None,
        'disk_over_commit': False,
        'destination': 'beta',
        'migrate_data': None,
        'commands': [],
        'acks': [],
        'timeout': 2.0,
        'instance_uuids': ['i'],
        'version': None,
    }
    if method in rpcapi.COMMANDS:
        arguments = {name: value for name, value in given.items() if name in parameters_of(method)}
        api.send(scene.CONTEXT, 'alpha', command_of(method), **arguments)
        return
    function = getattr(api, method)
    function(**{name: given[name] for name in inspect.signature(function).parameters})


def parameters_of(method: str) -> set[str]:
    """Return the parameters of an RPC method. That of a step has a command where its body has the work."""
    found = {*inspect.signature(getattr(manager.ComputeManager, method)).parameters} - {'self', 'context'}
    if 'work' in found:
        found = found - {'work'} | {'command'} | ({'wait'} if method.startswith('check') else set())
    return found


def exposed() -> list[str]:
    policy = oslo_messaging.ExplicitRPCAccessPolicy()
    return [
        name
        for name, _ in inspect.getmembers(manager.ComputeManager, inspect.isfunction)
        if policy.is_allowed(manager.ComputeManager, name)
    ]


def test_rpc_api_and_endpoint_have_the_same_methods() -> None:
    assert sorted(METHODS) == sorted(exposed())


@pytest.mark.parametrize('method', METHODS)
def test_each_call_goes_to_the_named_host_with_the_endpoints_arguments(method: str) -> None:
    recorder = Recorder()
    call(method, rpcapi.ComputeAPI(recorder, timeout=60.0, long_timeout=1800.0, monitor=30.0))
    ((target, called, timeout, monitor, args),) = recorder.calls
    assert (str(target), called) == ('compute.alpha', method)
    newer = (
        {'list_guests': '1.3'} | dict.fromkeys(REPORTS, '1.4') | dict.fromkeys(COLD, '1.5') | dict.fromkeys(HERE, '1.6')
    )
    older = '1.2' if method in EVACUATION else '1.1' if method in END_OF_MOVE else '1.0'
    assert target.version == newer.get(method, older)
    assert set(args) == parameters_of(method)
    if method.startswith('check'):
        assert (timeout, monitor, args['wait']) == (1800.0, 30.0, rpcapi.CHECK_WAIT)
    elif method in (POLL, 'get_definitions', 'list_guests', *REPORTS):
        assert (timeout, monitor, args['wait']) == (2.0, None, 1.0)
    else:
        assert (timeout, monitor) == (60.0, None)


@pytest.mark.parametrize(
    ('status', 'version', 'sent'),
    [
        ('accepted', 2, False),
        ('preparing', 2, False),
        ('queued', 2, False),
        ('queued', 3, True),
        ('preparing', 4, True),
        ('running', 1, True),
        ('running', 4, True),
    ],
)
def test_abort_is_sent_only_to_a_host_that_supports_it_in_that_status(status: str, version: int, sent: bool) -> None:
    recorder = Recorder()
    api = rpcapi.ComputeAPI(recorder, version_of={'alpha': version}.__getitem__)
    given: Any = (scene.CONTEXT, 'alpha', command_of('live_migration_abort'), migration(status))
    if sent:
        api.send(*given, instance=scene.instance())
    else:
        with pytest.raises(exception.ServiceTooOld, match=f'alpha .* {status}: .* version {version}, and 3 is needed'):
            api.send(*given, instance=scene.instance())
    assert len(recorder.calls) == sent


@pytest.mark.parametrize('method', END_OF_MOVE)
@pytest.mark.parametrize(
    ('service_version', 'pin', 'version'),
    [(4, None, '1.1'), (4, '1.1', '1.1'), (4, '1.0', '1.0'), (3, None, '1.0'), (1, '1.1', '1.0')],
)
def test_post_and_rollback_are_plain_calls_below_version_4_or_if_pinned(
    method: str, service_version: int, pin: str | None, version: str
) -> None:
    recorder = Recorder()
    version_of = {'alpha': service_version}.__getitem__
    call(method, rpcapi.ComputeAPI(recorder, 60.0, 1800.0, 30.0, version_of=version_of, pin=pin))
    ((target, _, *waits, args),) = recorder.calls
    assert (target.version, waits) == (version, [60.0, None])
    assert set(args) == {'command', 'instance', 'migrate_data'}


@pytest.mark.parametrize('method', NEEDED)
@pytest.mark.parametrize('of', ['an older host', 'an older pin', 'the pin', 'no pin'])
def test_newer_method_is_sent_only_to_a_host_that_supports_it(method: str, of: str) -> None:
    needed, version = NEEDED[method]
    older = f'1.{int(version.removeprefix("1.")) - 1}'
    pin = {'an older pin': older, 'the pin': version}.get(of)
    reason = {
        'an older host': f'its compute service has version {needed - 1}, and {needed} is needed: upgrade it',
        'an older pin': rf'\[upgrade_levels\] compute is {older}, and {version} is needed: remove',
    }.get(of)
    recorder = Recorder()
    api = rpcapi.ComputeAPI(recorder, version_of={'alpha': needed - (of == 'an older host')}.__getitem__, pin=pin)
    if reason is None:
        call(method, api)
    else:
        with pytest.raises(exception.ServiceTooOld, match=f'^alpha is not asked for {method}: {reason}'):
            call(method, api)
    assert len(recorder.calls) == (reason is None)


@pytest.mark.parametrize(
    ('service_version', 'version'),
    [(1, '1.0'), (3, '1.0'), (4, '1.1'), (5, '1.1'), (6, '1.2'), (7, '1.3'), (8, '1.4')],
)
def test_host_serves_the_newest_version_of_its_service_version(service_version: int, version: str) -> None:
    assert rpcapi.served_by(service_version) == version


def test_version_of_a_host_is_read_once_for_each_boot() -> None:
    recorder, queried = Recorder(), []
    versions = iter((3, 4))

    def version_of(host: str) -> int:
        queried.append(host)
        return next(versions)

    api = rpcapi.ComputeAPI(recorder, version_of=version_of)
    for boot_id in ('first', 'first', 'second', 'second'):
        command = command_of('post_live_migration_at_source', boot_id)
        api.send(scene.CONTEXT, 'alpha', command, instance=scene.instance(), migrate_data=None)
    assert queried == ['alpha', 'alpha']
    assert [call[0].version for call in recorder.calls] == ['1.0', '1.0', '1.1', '1.1']


def test_each_step_that_a_host_runs_has_the_role_of_that_host() -> None:
    declared = [step for saga in sagas().values() for step in saga.steps]
    names = {step.name for step in declared} | {step.undo.__name__ for step in declared if step.undo is not None}
    assert names & set(METHODS) == steps.AT_SOURCE | steps.AT_DESTINATION
    assert not steps.AT_SOURCE & steps.AT_DESTINATION
