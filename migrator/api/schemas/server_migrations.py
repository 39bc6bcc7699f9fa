# SPDX-License-Identifier: Apache-2.0

"""The schemas of the actions on a server's migration."""

from __future__ import annotations

from migrator.api.schemas import types

FORCE_COMPLETE = {22: types.action('force_complete', {'type': 'null', 'description': 'null'})}
