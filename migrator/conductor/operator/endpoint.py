# SPDX-License-Identifier: Apache-2.0

"""The calls of the API for an operator that need Placement, which the API does not reach."""

from __future__ import annotations

from typing import Any

from migrator import exception
from migrator.conductor import audit
from migrator.conductor.migration.context import Tools
from migrator.context import RequestContext
from migrator.placement_client import allocations
from migrator.rpc import expose


class OperatorCalls:
    """The calls for an operator.

    :ivar tools: those of the conductor.
    """

    tools: Tools

    @expose
    def audit(self, context: RequestContext) -> list[dict[str, Any]]:
        """Return the wrong allocations in Placement as JSON; see :func:`migrator.conductor.audit.audit`.

        :raises migrator.exception.AuditInProgress: this conductor runs such an audit already. Each one reads every
            allocation, also after its caller has given up.
        """
        if not self.tools.auditing.acquire(blocking=False):
            raise exception.AuditInProgress(server=self.tools.server)
        try:
            found = audit.audit(self.tools.database, self.tools.placement)
        finally:
            self.tools.auditing.release()
        return [finding.as_dict() for wrong in found for finding in wrong.findings]

    @expose
    def read_allocations(self, context: RequestContext, consumer: str) -> dict[str, Any]:
        """Return what a consumer holds in Placement: provider -> class -> amount."""
        return dict(allocations.read(self.tools.placement, consumer).allocations)
