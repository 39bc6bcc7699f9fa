# SPDX-License-Identifier: Apache-2.0

"""The name of the schema, which follows from its tables.

Until the first release the schema changes in place, without a new revision. So the name of the only one has to differ
whenever a table does, or a database of an earlier commit would be taken for one of this.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import sqlalchemy as sa

from migrator.db import machines, models
from migrator.db.guests import differences
from migrator.db.maintenances import rows
from migrator.db.sql import drain_rows

#: The modules with tables. One that was not imported would be missing in the name.
_WITH_TABLES = (models, drain_rows, machines, differences, rows)


def of_the_models() -> str:
    """Return the name of the revision that creates the tables of the models."""
    return of(models.Base.metadata)


def of(metadata: sa.MetaData) -> str:
    """Return the name for these tables. It depends on no database, and on no version of SQLAlchemy."""
    tables = [_table(table) for _, table in sorted(metadata.tables.items())]
    return f'baseline_{hashlib.sha256(json.dumps(tables).encode()).hexdigest()[:12]}'


def _table(table: sa.Table) -> list[Any]:
    indexes = sorted([str(one.name), bool(one.unique), [*one.columns.keys()]] for one in table.indexes)
    constraints = [
        [type(one).__name__, [*one.columns.keys()]]
        for one in table.constraints
        if isinstance(one, sa.schema.ColumnCollectionConstraint)
    ]
    return [table.name, [_column(column) for column in table.columns], indexes, sorted(constraints)]


def _column(column: sa.Column[Any]) -> list[Any]:
    kind, default = column.type, column.server_default
    size = [getattr(kind, 'length', None), getattr(kind, 'bits', None)]
    computed = None if column.computed is None else [str(column.computed.sqltext), column.computed.persisted]
    return [
        column.name,
        type(kind).__name__,
        type(getattr(kind, 'impl', kind)).__name__,
        size,
        bool(column.nullable),
        str(column.autoincrement),
        str(default.arg) if isinstance(default, sa.DefaultClause) else None,
        computed,
    ]
