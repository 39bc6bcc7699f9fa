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

import dataclasses

from migrator.db import models, rows
from migrator.objects import compute_node, service
from migrator.objects import instance as instance_objects
from migrator.objects import migration as migration_objects
from migrator.saga import log


def test_every_field_of_an_object_has_a_column() -> None:
    for cls, model in (
        (instance_objects.Instance, models.Instance),
        (migration_objects.Migration, models.Migration),
        (service.Service, models.Service),
        (compute_node.ComputeNode, models.ComputeNode),
    ):
        assert {field.name for field in dataclasses.fields(cls)} <= {column.name for column in model.__table__.columns}


def test_a_row_becomes_its_object() -> None:
    flavor = {
        'name': 'small',
        'vcpus': 2,
        'memory_mb': 1,
        'root_gb': 0,
        'ephemeral_gb': 0,
        'swap': 0,
        'extra_specs': {},
    }
    row = models.Instance(uuid='u', name='n', project_id='p', user_id='u', host='h', node='h', flavor=flavor)
    assert rows.instance(row).flavor == instance_objects.Flavor(**flavor)
    step = models.SagaStep(saga='m', step='s', direction='do', state='done', epoch=2, attempt=1, result={'a': 1})
    found = rows.step(step)
    assert found == log.StepRecord(
        step='s', direction='do', state='done', epoch=2, attempt=1, tries=None, result={'a': 1}, stored=True
    )
