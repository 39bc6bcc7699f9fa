# SPDX-License-Identifier: Apache-2.0

"""The plugin interface of osc-lib: the client of ``/migrator/v1``, at the compute endpoint."""

from __future__ import annotations

import argparse
from typing import Any
from urllib import parse

from keystoneauth1 import adapter
from osc_lib import exceptions

API_NAME = 'migrator'
API_VERSION_OPTION = 'os_migrator_api_version'
DEFAULT_API_VERSION = '1'


class Client:
    """The calls of drains.

    :param session: the session of keystoneauth1.
    :param options: options of :class:`keystoneauth1.adapter.Adapter`, such as ``region_name``.
    """

    def __init__(self, session: Any, **options: Any) -> None:
        self._adapter = adapter.Adapter(session, service_type='compute', client_name='migrator-osc', **options)

    def request(self, method: str, path: str, body: Any = None, **query: Any) -> dict[str, Any]:
        """Send a request and return the answer.

        :param path: below ``/migrator/v1``.
        :raises osc_lib.exceptions.CommandError: the API refuses the request, with the message of the API.
        """
        endpoint = parse.urlsplit(str(self._adapter.get_endpoint()))
        root = endpoint.path.partition('/v2')[0].rstrip('/')
        url = endpoint._replace(path=f'{root}/migrator/v1{path}').geturl()
        more = {} if body is None else {'json': body}
        response = self._adapter.request(url, method, params=query, raise_exc=False, **more)
        if response.status_code >= 400:
            raise exceptions.CommandError(f'{_message_of(response)} (HTTP {response.status_code})')
        found: dict[str, Any] = response.json()
        return found


def _message_of(response: Any) -> str:
    """Return the message of an error, which is in nova's form: one object with the name of the error."""
    try:
        (error,) = response.json().values()
        return str(error['message'])
    except (ValueError, TypeError, KeyError, AttributeError):  # not the API's form: a proxy may have replied
        return str(response.text[:500])


def make_client(instance: Any) -> Client:
    """Return the client for the cloud and the user of a command."""
    return Client(
        instance.session,
        interface=instance.interface,
        region_name=instance.region_name,
    )


def build_option_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the option for the version of the API, which osc-lib requires."""
    parser.add_argument(
        '--os-migrator-api-version',
        metavar='<version>',
        default=DEFAULT_API_VERSION,
        help=f'the version of the API /migrator; only {DEFAULT_API_VERSION} exists',
    )
    return parser
