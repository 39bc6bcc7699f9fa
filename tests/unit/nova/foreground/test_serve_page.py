# SPDX-License-Identifier: Apache-2.0

"""The page of ``migrator-drain serve`` in a browser."""

import argparse
import os
import pathlib
import signal

import pytest

from migrator import executors
from migrator.nova.foreground import detached, serve, session
from migrator.runtime import http_server
from tests.functional.pages import page

__all__ = ['page']

#: A browser on two busy cores may take minutes to draw what it draws in seconds elsewhere.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def begun():
    """The drains that processes were started for."""
    return []


@pytest.fixture
def url(operator, begun):
    """The URL of the page, without the secret ``s3``."""

    def begin(_asked, uuid):
        begun.append(uuid)
        return detached.Begun(4711, pathlib.Path('log'))

    given = argparse.Namespace(os_cloud=None, os_region_name=None, state=str(operator.path), json=False, port=0)
    conf, threads = session.make_conf(operator.path), executors.NativeThreads()
    asked = session.Session(conf, given, threads, path=operator.path, connect=operator.connect)
    server = http_server.listen(serve.make_app(asked, 's3', begin), serve.HOST, 0)
    yield f'{server.url}{serve.PAGE}'
    server.stop(patience=0)
    asked.close()


def test_drain_is_planned_started_and_resumed(operator, nova, url, begun, page):
    nova.ticks[nova.add_guest('guest0')] = 1000
    operator.threads.on_sleep = lambda: nova.rows and os.kill(os.getpid(), signal.SIGTERM)
    assert operator.run('start', 'host1')[0] == 143
    nova.add_guest('guest1', 'host2')
    page.open(f'{url}#token=s3')
    page.wait(lambda: '! interrupted' in page.text('#drain-rows'))
    assert page.run('return location.hash') == '', 'the secret is not in the address any more'
    assert page.text('#hosts') == page.text('#migrations') == '', 'Nova has them, and this page does not'
    page.wait(lambda: 'Interrupted: the drain of host1' in page.text('#trouble-list'))
    assert page.text('#trouble-none') == ''
    assert f'migrator-drain --state {operator.path} resume host1' in page.text('#trouble-list')
    assert page.text('#guests-about').startswith(f'migrator-drain --state {operator.path} show ')
    page.press('#guests-acts button[aria-label^="Resume"]')
    page.wait(lambda: page.text('#question-title') == 'Resume the drain of host1')
    assert 'migration' not in page.text('#question-lines li:last-child')
    page.press('#question-yes')
    page.wait(lambda: page.text('#question') == '')
    (first,) = begun
    page.type('#plan-host', 'host2\n')
    page.wait(lambda: page.text('#plan-said').startswith('1 of 1 guest can move.'))
    page.press('#plan-start button')
    page.wait(lambda: page.text('#question-title') == 'Drain host2')
    page.press('#question-yes')
    page.wait(lambda: page.text('#question') == '')
    assert [uuid != first for uuid in begun] == [False, True]
    page.open(url)
    page.wait(lambda: page.text('#sign-in'))
    assert 'open the URL that it has printed' in page.text('#token-help')
