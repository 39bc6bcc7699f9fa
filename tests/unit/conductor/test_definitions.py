# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

from collections.abc import Callable

import pytest

from migrator.conductor import definitions
from tests.unit.conductor import stage as stages

Stage = stages.Stage


def test_driver_may_take_more_than_a_second(stage: Stage) -> None:
    stall = stage.host('host1').faults.stall('get_definition')
    stage.until(stall.reached.is_set, 20)
    stage.simulation.advance(1.5)
    stall.release()
    stage.until(lambda: stage.database.definitions.get(stage.instance.uuid, 'host1'), 10)


def test_host_is_not_asked_for_all_of_its_guests_at_once(
    build: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions, '_OF_A_HOST', 2)
    stage = build()
    guests = [stage.instance, *(stage.cloud.boot(name, 'host1') for name in ('two', 'three', 'four', 'five'))]
    stored = stage.database.definitions
    known: list[int] = []

    def all_known() -> bool:
        known.append(sum(bool(stored.get(guest.uuid, 'host1')) for guest in guests))
        return known[-1] == len(guests)

    stage.until(all_known, 60)
    assert set(known) >= {2, 4, 5}


def test_guest_that_cannot_be_moved_live_is_named_once_for_each_reason(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions, 'KEPT', 400.0)

    def said() -> list[str]:
        texts = [record.getMessage() for record in caplog.records if record.name == definitions.__name__]
        return [text.partition('moved live: ')[2] for text in texts if 'guest (' in text]

    guest = stage.host('host1').guests[stage.instance.uuid]
    for reason, times in (('it has a pci device', 1), ('it has a pci device', 1), ('it has a snapshot', 2), ('', 2)):
        guest.immovable = reason
        stage.simulation.advance(500)
        stage.until(lambda reason=reason: _reported(stage) == (reason or None), 60)  # type: ignore[misc] -- mypy cannot infer a lambda with a default
        assert len(said()) == times
    assert said() == ['it has a pci device', 'it has a snapshot']


def _reported(stage: Stage) -> str | None:
    found = stage.database.definitions.reported([stage.instance.uuid])
    return found[stage.instance.uuid].immovable if found else ''
