# SPDX-License-Identifier: Apache-2.0

"""The plugin interface of osc-lib."""

from __future__ import annotations

import argparse
from typing import Any

from migrator.operator.watch.client import Client

API_NAME = 'migrator'
API_VERSION_OPTION = 'os_migrator_api_version'
DEFAULT_API_VERSION = '1'


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
