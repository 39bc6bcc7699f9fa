# SPDX-License-Identifier: Apache-2.0

"""The conversion of rows to objects."""

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
    """Convert a row of ``instances`` to an instance.

    :param prefix: the prefix of the column names in the row.
    """
    flavor = Flavor(**getattr(row, f'{prefix}flavor'))
    return _fields(Instance, row, prefix, flavor=flavor)


def migration(row: Any) -> Migration:
    """Convert a row of ``migrations`` to a migration."""
    return _fields(Migration, row)


def service(row: Any) -> Service:
    """Convert a row of ``services`` to a service."""
    return _fields(Service, row)


def node(row: Any) -> compute_node.ComputeNode:
    """Convert a row of ``compute_nodes`` to a compute node."""
    return _fields(compute_node.ComputeNode, row, providers=base.from_primitive(row.providers))


def entry(row: Any) -> log.Entry:
    """Convert a row of ``saga_log`` to an entry of the log."""
    return _fields(log.Entry, row)
