# SPDX-License-Identifier: Apache-2.0

"""The names, the objects and the values of notifications are those of the nova that is installed."""

from __future__ import annotations

import datetime
import json
import subprocess
import uuid
from typing import Any

import pytest

from migrator.conductor.notifications import payload, phases
from migrator.objects import Flavor, Instance, Migration
from tests.real.nova import lab as labs

AT = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def notifications() -> list[dict[str, Any]]:
    """Return a notification of each action and phase, as JSON."""
    one = str(uuid.uuid4())
    flavor = Flavor(name='m1', extra_specs={'hw:cpu_policy': 'dedicated'})
    who = {'project_id': 'blue', 'user_id': 'ada'}
    guest = Instance(uuid=one, name='My VM', host='a', node='a', flavor=flavor, created_at=AT, launched_at=AT, **who)
    row = Migration(uuid=one, instance_uuid=one, source_compute='a', source_node='a', request_id='req-1', **who)
    found = []
    for action, known in phases.ACTIONS.items():
        for phase in [None] if action == 'evacuate' else [phases.START, phases.END, phases.ERROR]:
            task = known.after if phase == phases.END else known.during
            fault = 'no disk' if phase == phases.ERROR else None
            made = phases.Phase(1, AT, action, phase, 'a', 'a', 'a', False, task, 'resized', fault)
            sent = payload.notification(row, guest, made, 'conductor1')
            names = ('publisher_id', 'event_type', 'priority', 'payload')
            found.append({name: getattr(sent, name) for name in names})
    return found


def differences(given: list[dict[str, Any]]) -> list[str]:
    """Return how notifications differ from those of the installed nova."""
    program = [labs.PYTHON, '-W', 'ignore', labs.HERE / 'check_notifications.py']
    text = json.dumps(given)
    found = subprocess.run(program, input=text, capture_output=True, text=True, check=True, timeout=300)
    return list(json.loads(found.stdout))


@pytest.mark.usefixtures('_need_nova')
def test_notifications_are_those_of_the_installed_nova() -> None:
    given = notifications()
    assert differences(given) == []
    # The comparison finds a field that nova does not have, one that is missing, and a wrong value.
    data = given[0]['payload']['nova_object.data']
    data['cell'] = data.pop('host')
    data['state'] = 'resting'
    found = differences(given[:1])
    assert len(found) == 3, found
