# SPDX-License-Identifier: Apache-2.0


from __future__ import annotations

import dataclasses

import pytest

from migrator.db import models
from migrator.db.actions import Action
from migrator.db.cleanups import Cleanup
from migrator.db.conductors import ConductorBoot
from migrator.objects import ComputeNode, Flavor, Instance, Migration, service
from migrator.objects.difference import Difference
from migrator.objects.drain import Drain, Member
from migrator.saga import log


def test_every_field_of_an_object_has_a_column() -> None:
    for cls, model in (
        (Instance, models.Instance),
        (Migration, models.Migration),
        (service.Service, models.Service),
        (ComputeNode, models.ComputeNode),
    ):
        assert {field.name for field in dataclasses.fields(cls)} <= {column.name for column in model.__table__.columns}


def test_a_row_is_converted_to_its_object() -> None:
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
    assert models.instance(row).flavor == Flavor(**flavor)
    stored = {'step': 's', 'kind': 'done', 'epoch': 2, 'attempt': 1, 'payload': {'result': {'a': 1}}}
    found = models.of_row(log.Entry, models.SagaLog(migration='m', seq=3, **stored))
    assert found == log.Entry(seq=3, **stored)


@pytest.mark.parametrize(
    'kind', [Action, Cleanup, ConductorBoot, Difference, Drain, log.Entry, Instance, Member, Migration, service.Service]
)
def test_objects_of_rows_need_no_init_of_their_own(kind: type) -> None:
    """They are made by :func:`migrator.objects.base.with_fields`."""
    assert not hasattr(kind, '__post_init__')
    assert not hasattr(kind, '__slots__')
    assert all(field.init for field in dataclasses.fields(kind))
