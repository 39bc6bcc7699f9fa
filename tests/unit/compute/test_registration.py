# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

from __future__ import annotations

import logging

import pytest

from tests.unit.compute import scene as scene_module

Scene = scene_module.Scene


def test_the_call_is_repeated_until_a_conductor_answers(scene: Scene) -> None:
    host = scene.host(start=False)
    host.events.unreachable = True
    host.start()
    scene.simulation.advance(5)
    assert host.poll().refusal == 'starting'
    host.events.unreachable = False
    scene.simulation.advance(1)
    assert len(host.events.started) == 1
    assert host.poll().refusal is None


def test_many_messages_for_another_boot_make_one_call_at_a_time(scene: Scene) -> None:
    host = scene.host()
    gate = host.process.event()
    host.events.hang = gate.wait
    for number in range(5):
        host.call('pre_live_migration', number, boot_id='another')
    scene.simulation.run_ready()
    gate.set()
    scene.simulation.run_ready()
    assert len(host.events.started) == 2
    assert host.poll().refusal is None


def test_a_stopped_host_calls_no_more_and_beats_no_more(scene: Scene) -> None:
    host = scene.host(start=False)
    host.events.unreachable = True
    host.start()
    host.manager.cleanup_host()
    host.events.unreachable = False
    scene.simulation.advance(100)
    assert host.events.started == []
    assert host.events.beats == []


def test_one_that_stops_before_it_is_known_says_nothing_of_a_call_that_is_lost_and_tells_nobody(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    host = scene.host(start=False)
    gate = host.process.event()
    host.events.hang = gate.wait
    host.events.unreachable = True
    host.start()
    scene.simulation.run_ready()
    with caplog.at_level(logging.WARNING):
        host.manager.cleanup_host()
        gate.set()
        scene.simulation.run_ready()
    assert caplog.records == []
    assert host.events.stopping == []
