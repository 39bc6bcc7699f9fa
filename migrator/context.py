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

"""The context of a request, carried on every call."""

from __future__ import annotations

from typing import Any

from oslo_context import context as oslo_context


class RequestContext(oslo_context.RequestContext):
    """Who asks, and under which request id.

    It is oslo.context's context as it stands; only :meth:`from_primitive` and :meth:`to_primitive` are added, for the
    form in which it travels with an RPC message: JSON-safe, and without the token.
    """

    def to_primitive(self) -> dict[str, Any]:
        """Return the JSON-safe form that travels with a message; it holds no token."""
        return {
            'request_id': self.request_id,
            'global_request_id': self.global_request_id,
            'user_id': self.user_id,
            'project_id': self.project_id,
            'roles': list(self.roles),
            'is_admin': bool(self.is_admin),
        }

    @classmethod
    def from_primitive(cls, values: dict[str, Any]) -> RequestContext:
        """Return the context that :meth:`to_primitive` wrote."""
        known = ('request_id', 'global_request_id', 'user_id', 'project_id', 'roles', 'is_admin')
        return cls(overwrite=False, **{key: values[key] for key in known if values.get(key) is not None})


def admin_context(request_id: str | None = None) -> RequestContext:
    """Return the context under which a service acts on its own account.

    :param request_id: the request that caused the act, where there was one.
    """
    return RequestContext(is_admin=True, overwrite=False, request_id=request_id)
