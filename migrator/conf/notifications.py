# SPDX-License-Identifier: Apache-2.0

"""The options of notifications, with nova's names. The options of the bus are oslo.messaging's."""

from __future__ import annotations

from oslo_config import cfg

from migrator.conf import sections

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        'notification_format',
        default='versioned',
        choices=[
            ('versioned', 'the versioned notifications of nova'),
            ('both', 'the same, because migrator has no unversioned notifications'),
            ('unversioned', 'no notifications, for the same reason'),
        ],
        help="""
Which notifications conductors send, if [oslo_messaging_notifications] driver is set.

One word; default versioned. Without that driver, or with noop, conductors send none.
""",
    ),
    cfg.ListOpt(
        'versioned_notifications_topics',
        default=['versioned_notifications'],
        help="""
The topics to which conductors send each notification.

Names, separated by commas; default versioned_notifications. With messagingv2 on RabbitMQ, a notification goes to the
queue TOPIC.info, or TOPIC.error for an error. [oslo_messaging_notifications] topics has no effect.
""",
    ),
]

register_opts, list_opts = sections.of(notifications=OPTS)
