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

"""Rows into objects."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from migrator.objects import base, compute_node
from migrator.objects import instance as instance_objects
from migrator.objects import migration as migration_objects
from migrator.objects import service as service_objects
from migrator.saga import log

T = TypeVar('T')


def _fields(cls: type[T], row: Any, prefix: str = '', **more: Any) -> T:
    values = {
        field.name: getattr(row, prefix + field.name)
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]  # every T here is a dataclass
        if field.name not in more
    }
    return cls(**values, **more)


def instance(row: Any, prefix: str = '') -> instance_objects.Instance:
    """Return the object of a row of ``instances``.

    :param prefix: of the columns' names in the row.
    """
    flavor = instance_objects.Flavor(**getattr(row, f'{prefix}flavor'))
    return _fields(instance_objects.Instance, row, prefix, flavor=flavor)


def migration(row: Any) -> migration_objects.Migration:
    """Return the object of a row of ``migrations``."""
    return _fields(migration_objects.Migration, row)


def service(row: Any) -> service_objects.Service:
    """Return the object of a row of ``services``."""
    return _fields(service_objects.Service, row)


def node(row: Any) -> compute_node.ComputeNode:
    """Return the object of a row of ``compute_nodes``."""
    return _fields(compute_node.ComputeNode, row, providers=base.from_primitive(row.providers))


def step(row: Any) -> log.StepRecord:
    """Return the journal's record of a row of ``saga_steps``."""
    return _fields(log.StepRecord, row, stored=True)
