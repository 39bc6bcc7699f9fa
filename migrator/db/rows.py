# SPDX-License-Identifier: Apache-2.0

"""Rows into objects."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from migrator.objects import Flavor, Instance, Migration, Service, base, compute_node
from migrator.saga import log

T = TypeVar('T')


def _fields(cls: type[T], row: Any, prefix: str = '', **more: Any) -> T:
    values = {
        field.name: getattr(row, prefix + field.name)
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]  # every T here is a dataclass
        if field.name not in more
    }
    return cls(**values, **more)


def instance(row: Any, prefix: str = '') -> Instance:
    """Return the object of a row of ``instances``.

    :param prefix: of the columns' names in the row.
    """
    flavor = Flavor(**getattr(row, f'{prefix}flavor'))
    return _fields(Instance, row, prefix, flavor=flavor)


def migration(row: Any) -> Migration:
    """Return the object of a row of ``migrations``."""
    return _fields(Migration, row)


def service(row: Any) -> Service:
    """Return the object of a row of ``services``."""
    return _fields(Service, row)


def node(row: Any) -> compute_node.ComputeNode:
    """Return the object of a row of ``compute_nodes``."""
    return _fields(compute_node.ComputeNode, row, providers=base.from_primitive(row.providers))


def entry(row: Any) -> log.Entry:
    """Return the entry of a row of ``saga_log``."""
    return _fields(log.Entry, row)
