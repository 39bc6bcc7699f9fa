# SPDX-License-Identifier: Apache-2.0

"""Objects that have to wait, kept small: as they travel, compressed."""

from __future__ import annotations

import functools
import json
import zlib
from typing import Any

from migrator.objects import base, instance, migrate_data


def pack(value: Any) -> bytes:
    """Return a value in a form that takes a tenth of the room.

    :param value: what may go over the wire; see :mod:`migrator.objects.base`.
    """
    packer = zlib.compressobj(zdict=_known())
    return packer.compress(_written(value)) + packer.flush()


def unpack(packed: bytes) -> Any:
    """Return the value that :func:`pack` was given."""
    unpacker = zlib.decompressobj(zdict=_known())
    return base.from_primitive(json.loads(unpacker.decompress(packed) + unpacker.flush()))


def _written(value: Any) -> bytes:
    return json.dumps(base.to_primitive(value), separators=(',', ':')).encode()


@functools.cache
def _known() -> bytes:
    """Return what most of them have in common, which needs not be kept with each."""
    blank = instance.Instance(
        uuid='', name='', project_id='', user_id='', host='', node='', flavor=instance.Flavor(name='')
    )
    return _written([blank, '', migrate_data.LiveMigrateData()])
