# SPDX-License-Identifier: Apache-2.0

import socket

import pytest


@pytest.fixture
def unused_port():
    """A loopback port without a listener."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]
