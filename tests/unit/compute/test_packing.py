# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import datetime
import pickle

from migrator.compute import work
from migrator.objects import Flavor, LiveMigrateData
from tests.unit.compute import scene


def test_unpacked_value_equals_packed_value() -> None:
    flavor = Flavor(name='größe', memory_mb=8192, swap=1, extra_specs={'resources:VCPU': '0'})
    launched = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    instance = scene.instance().replace(flavor=flavor, launched_at=launched)
    data = LiveMigrateData(block_migration=True, source={'a': [1, None]}, destination={'b': 'β' * 999})
    assert work.unpack(work.pack([instance, 'beta', data])) == [instance, 'beta', data]


def test_packed_value_takes_a_third_of_a_pickle() -> None:
    value = [scene.instance(7), 'beta', LiveMigrateData(destination={'host': 'beta'})]
    assert len(work.pack(value)) < len(pickle.dumps(value)) / 3
