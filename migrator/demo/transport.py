# SPDX-License-Identifier: Apache-2.0

"""RPC to the services of a demo that is being served: ``transport_url = migrator-demo:DIRECTORY``.

The services share the process of the demo, and no broker reaches them. A command loads :class:`Driver` as the driver of
oslo.messaging, which sends each message over the socket of the demo. There :func:`deliver` passes it on.
"""

from __future__ import annotations

import pathlib
from typing import Any, NoReturn
from urllib import parse

from migrator import exception
from migrator.context import RequestContext
from migrator.demo import channel
from migrator.objects import base
from migrator.rpc import RPC, Target, fit_to_travel

#: The scheme of the URL, which is the name of the driver's entry point.
SCHEME = 'migrator-demo'
#: Seconds that a command waits beyond the time-out of its call, in which the demo reports the time-out itself.
_MARGIN = 5.0


def url(directory: pathlib.Path) -> str:
    """Return the ``transport_url`` of the demo of a directory."""
    return f'{SCHEME}:{parse.quote(str(directory))}'


class Driver:
    """The driver of oslo.messaging, as far as a client needs it.

    Its errors are those of :mod:`migrator.exception`, which oslo.messaging passes on as they are.

    :ivar conf: read by oslo.messaging.
    """

    def __init__(self, conf: Any, url: Any, **_unused: Any) -> None:
        self.conf = conf
        self._directory = pathlib.Path('/', url.virtual_host or '')

    def require_features(self, **_unused: Any) -> None:
        """Accept what a transport needs."""

    def send(
        self,
        target: Any,
        ctxt: dict[str, Any],
        message: dict[str, Any],
        *,
        wait_for_reply: bool | None = None,
        timeout: float | None = None,
        call_monitor_timeout: float | None = None,
        **_unused: Any,
    ) -> Any:
        """Send a message, and return the result of a call.

        :raises migrator.exception.MigratorException: the error of the called method.
        :raises migrator.exception.RPCTimeout: no answer in time.
        :raises migrator.exception.ServiceUnreachable: the demo does not answer.
        """
        receiver = Target(target.topic, target.server, message.get('version', '1.0'))
        request = {
            'target': [receiver.topic, receiver.server, receiver.version],
            'context': ctxt,
            'method': message['method'],
            'args': message['args'],
            'timeout': (timeout or channel.PATIENCE) if wait_for_reply else None,
            'monitor': call_monitor_timeout,
        }
        patience = (request['timeout'] or 0) + _MARGIN
        try:
            answer = channel.ask(self._directory, {'rpc': request}, patience)
        except TimeoutError:
            raise exception.RPCTimeout(target=str(receiver), method=message['method'], timeout=patience) from None
        except (OSError, ValueError) as error:
            _raise_unreachable(f'the demo of {self._directory} does not answer: {error}')
        if 'refused' in answer:
            _raise_unreachable(f'the demo of {self._directory} has refused a message: {answer["refused"]}')
        if 'error' in answer:
            raise getattr(exception, answer['error'])(answer['message'], **answer['kwargs'])
        return answer['result']

    def cleanup(self) -> None:
        """Do nothing: no connection outlives its message."""


def _raise_unreachable(reason: str) -> NoReturn:
    raise exception.ServiceUnreachable(service='The message broker', reason=reason)


def deliver(rpc: RPC, request: dict[str, Any]) -> dict[str, Any]:
    """Pass a message of :class:`Driver` on, and return the answer to it.

    :param rpc: the RPC of the demo's cloud.
    """
    target, context = Target(*request['target']), RequestContext.from_primitive(request['context'])
    method, timeout = request['method'], request['timeout']
    args = base.from_primitive(request['args'])
    try:
        if timeout is None:
            rpc.cast(context, target, method, **args)
            return {'result': None}
        result = rpc.call(context, target, method, timeout, request['monitor'], **args)
    except exception.MigratorException as error:
        sent = fit_to_travel(error, target, method)
        return {'error': type(sent).__name__, 'message': sent.message, 'kwargs': sent.kwargs}
    return {'result': base.to_primitive(result)}
