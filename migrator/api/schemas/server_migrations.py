# SPDX-License-Identifier: Apache-2.0

"""What may be asked of one of a server's migrations."""

from __future__ import annotations

from migrator.api.schemas import types

FORCE_COMPLETE = {22: types.action('force_complete', {'type': 'null', 'description': 'null'})}
