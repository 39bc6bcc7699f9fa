# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
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
METHODS = [*steps.COMMANDS, *(name for name in PUBLIC if name != 'send')]
POLL = 'poll_live_migrations'
REPORTS = ('get_diagnostics', 'get_host_uptime')


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
        'definition': {},
        'destination': 'beta',
        'migrate_data': None,
        'commands': [],
        'acks': [],
        'timeout': 2.0,
        'instance_uuids': ['i'],
    }
    if method in steps.COMMANDS:
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
    assert target.version == '1.0'
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
        ('preparing', 3, True),
        ('running', 1, True),
        ('running', 3, True),
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


def test_version_of_a_host_is_read_once_for_each_boot() -> None:
    recorder, queried = Recorder(), []
    versions = iter((2, 3))

    def version_of(host: str) -> int:
        queried.append(host)
        return next(versions)

    api = rpcapi.ComputeAPI(recorder, version_of=version_of)
    for boot_id in ('first', 'first', 'second', 'second'):
        command = command_of('live_migration_abort', boot_id)
        with contextlib.suppress(exception.ServiceTooOld):
            api.send(scene.CONTEXT, 'alpha', command, migration('queued'), instance=scene.instance())
    assert queried == ['alpha', 'alpha']
    assert len(recorder.calls) == 2


def test_each_step_that_a_host_runs_has_the_role_of_that_host() -> None:
    declared = [step for saga in sagas().values() for step in saga.steps]
    names = {step.name for step in declared} | {step.undo.__name__ for step in declared if step.undo is not None}
    assert names & set(METHODS) == steps.AT_SOURCE | steps.AT_DESTINATION
    assert not steps.AT_SOURCE & steps.AT_DESTINATION
