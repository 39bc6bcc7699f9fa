# SPDX-License-Identifier: Apache-2.0

"""The bus of notifications: oslo.messaging's Notifier, which reports here what the bus did not accept.

The Notifier drops a message that it could not send, and gives each a random id. So its transport is replaced by one
that keeps the error and sets the id.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import oslo_messaging
from oslo_config import cfg
from oslo_messaging.transport import NotificationTransport

from migrator import exception, executors, rpc
from migrator.conductor.notifications.payload import Notification

#: The further attempts to reach the bus. The conductor itself tries again later.
_RETRIES = 1
#: Seconds in which the bus has to accept a message.
_ACCEPTED_WITHIN = 5.0
#: Drivers that lose messages without an error. routing calls others. It ignores what it does not find, and logs errors.
#: test only keeps messages in the memory of the process.
_REFUSED = {'routing', 'test'}


def drivers(conf: cfg.ConfigOpts) -> list[str]:
    """Return the drivers that are configured, without noop, by name."""
    rpc.register_notification_opts(conf)
    return sorted({*conf.oslo_messaging_notifications.driver} - {'noop'})


def is_on(conf: cfg.ConfigOpts) -> bool:
    """Return whether notifications are on: a driver other than noop, and a format that migrator has."""
    return bool(drivers(conf)) and conf.notifications.notification_format != 'unversioned'


class _Transport(NotificationTransport):  # type: ignore[misc]  # oslo.messaging has no types
    """A transport that sends one notification at a time.

    :ivar sending: the notification.
    :ivar error: why the bus has not accepted it, or None.
    """

    def __init__(self, inner: Any) -> None:
        super().__init__(inner._driver)
        self.sending: Notification | None = None
        self.error: Exception | None = None

    def _send_notification(self, target: Any, ctxt: Any, message: Any, version: Any, retry: Any = None) -> None:
        assert self.sending is not None
        message |= {'message_id': self.sending.message_id, 'timestamp': str(self.sending.at.replace(tzinfo=None))}
        try:
            super()._send_notification(target, ctxt, message, version, retry)
        except Exception as error:  # noqa: BLE001 -- the driver would log it and drop the message
            self.error = error


class Notifier:
    """A sender that puts notifications on the bus that is configured.

    :raises migrator.exception.ConfigurationError: the URL of the bus is not valid, or there is no such driver.
    """

    def __init__(self, conf: cfg.ConfigOpts, threads: executors.Threads) -> None:
        self._threads = threads
        self._transport = _Transport(rpc.get_notification_transport(conf))
        self._sender = executors.BoundedExecutor(1, threads, 'notifier')
        self._notifier = oslo_messaging.Notifier(
            self._transport,
            serializer=rpc.ObjectSerializer(),
            retry=_RETRIES,
            topics=conf.notifications.versioned_notifications_topics,
        )
        self._check_drivers(conf.oslo_messaging_notifications.driver)

    def _check_drivers(self, configured: Iterable[str]) -> None:
        """Refuse a driver with which messages would be lost: the Notifier ignores one that it does not find."""
        manager = self._notifier._driver_mgr
        for name in configured:
            if name in _REFUSED or name not in manager.names():
                known = sorted({one.name for one in manager.list_entry_points()} - _REFUSED)
                raise exception.ConfigurationError(
                    option='[oslo_messaging_notifications] driver',
                    value=name,
                    detail=f'use one of {", ".join(known)}',
                )

    def send(self, notification: Notification) -> None:
        """Put a notification on the bus, and wait until the bus has accepted it.

        It may still arrive after an error.

        :raises migrator.exception.ServiceUnreachable: the bus has not accepted it.
        """
        if self._sender.running:
            raise _unreachable('it has not yet accepted the previous notification')
        try:
            rpc.send_within(_ACCEPTED_WITHIN, self._threads, self._sender, lambda: self._send(notification))
        except exception.ServiceUnreachable as error:
            # The error names the message broker, and this bus may be another one.
            raise _unreachable(error.kwargs['reason']) from error
        if self._transport.error is not None:
            raise _unreachable(str(self._transport.error)) from self._transport.error

    def _send(self, notification: Notification) -> None:
        self._transport.sending, self._transport.error = notification, None
        notifier = self._notifier.prepare(publisher_id=notification.publisher_id)
        emit = notifier.error if notification.priority == 'ERROR' else notifier.info
        emit(notification.context, notification.event_type, notification.payload)

    def close(self) -> None:
        """Close the connections."""
        self._sender.shutdown(wait=False)
        self._transport.cleanup()


def _unreachable(reason: str) -> exception.ServiceUnreachable:
    return exception.ServiceUnreachable(service='The bus of notifications', reason=reason)
