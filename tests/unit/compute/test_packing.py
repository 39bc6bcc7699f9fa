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

import datetime
import pickle

from migrator.compute import packing
from migrator.objects import instance as instance_objects
from migrator.objects import migrate_data as migrate_data_objects
from tests.unit.compute import scene as scene_module


def test_what_is_packed_comes_out_as_it_was() -> None:
    flavor = instance_objects.Flavor(name='größe', memory_mb=8192, swap=1, extra_specs={'resources:VCPU': '0'})
    launched = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    instance = scene_module.instance().replace(flavor=flavor, launched_at=launched)
    data = migrate_data_objects.LiveMigrateData(
        block_migration=True, source={'a': [1, None]}, destination={'b': 'β' * 999}
    )
    assert packing.unpack(packing.pack([instance, 'beta', data])) == [instance, 'beta', data]


def test_it_takes_a_third_of_the_room_of_a_pickle() -> None:
    value = [scene_module.instance(7), 'beta', migrate_data_objects.LiveMigrateData(destination={'host': 'beta'})]
    assert len(packing.pack(value)) < len(pickle.dumps(value)) / 3
