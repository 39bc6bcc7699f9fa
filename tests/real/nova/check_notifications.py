# SPDX-License-Identifier: Apache-2.0

"""Print as JSON how notifications differ from those that an installed nova sends.

Run by the interpreter of nova's virtual environment. The notifications come as JSON on the standard input.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from nova.notifications.objects import base, exception, flavor, instance
from nova.objects import fields

MODULES = (instance, flavor, exception)


def of_object(given: dict[str, Any], where: str) -> Iterator[str]:
    """Compare one object with the class of its name."""
    name = given['nova_object.name']
    kind = next((vars(module)[name] for module in MODULES if name in vars(module)), None)
    if kind is None or given['nova_object.namespace'] != kind.OBJ_PROJECT_NAMESPACE:
        yield f'{where}: there is no {given["nova_object.namespace"]} {name}'
        return
    if given['nova_object.version'] != kind.VERSION:
        yield f'{where}: {name} is of version {kind.VERSION}'
    data = given['nova_object.data']
    yield from (f'{where}: {name} has no {one}' for one in sorted(data.keys() - kind.fields.keys()))
    yield from (f'{where}: {name} has {one}' for one in sorted(kind.fields.keys() - data.keys()))
    for one in sorted(data.keys() & kind.fields.keys()):
        if isinstance(data[one], dict) and 'nova_object.name' in data[one]:
            yield from of_object(data[one], f'{where} {one}')
            continue
        try:
            kind.fields[one].coerce(None, one, data[one])
        except Exception as error:  # noqa: BLE001 -- each field has its own
            yield f'{where}: {name}.{one} cannot be {data[one]!r}: {error}'


def of_notification(given: dict[str, Any]) -> Iterator[str]:
    """Compare a notification with those of nova."""
    event, publisher = given['event_type'], given['publisher_id']
    _, action, *phase = event.split('.')
    try:
        fields.NotificationActionField().coerce(None, 'action', action)
        fields.NotificationPhaseField().coerce(None, 'phase', *phase or ['start'])
        fields.NotificationSourceField().coerce(None, 'source', publisher.partition(':')[0])
        fields.NotificationPriorityField().coerce(None, 'priority', given['priority'].lower())
    except ValueError as error:
        yield f'{event} of {publisher}: {error}'
    made = base.EventType(object='instance', action=action, phase=phase[0] if phase else None)
    if made.to_notification_event_type_field() != event:
        yield f'{event}: nova calls it {made.to_notification_event_type_field()}'
    yield from of_object(given['payload'], event)


if __name__ == '__main__':
    json.dump([found for one in json.load(sys.stdin) for found in of_notification(one)], sys.stdout)
