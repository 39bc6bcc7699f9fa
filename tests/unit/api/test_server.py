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

"""The small HTTP server."""

import threading
import urllib.error
import urllib.request

import pytest
import webob

from migrator import executors
from migrator.api import server


def hello(environ, start_response):
    return webob.Response(text='hello')(environ, start_response)


def fetch(url):
    # ProxyHandler({}): a proxy of the environment must not be asked for loopback.
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10).read()


def test_it_answers_on_the_port_that_the_system_chose_and_lets_go_of_it():
    running = server.serve(hello, '127.0.0.1', 0)
    try:
        assert running.port > 0
        assert running.url == f'http://127.0.0.1:{running.port}'
        assert fetch(running.url) == b'hello'
    finally:
        running.stop()
    with pytest.raises(urllib.error.URLError):
        fetch(running.url)
    again = server.serve(hello, '127.0.0.1', running.port)
    again.stop()


def test_one_slow_answer_does_not_hold_up_another_nor_the_stop():
    asked, go_on = threading.Event(), threading.Event()

    def slow(environ, start_response):
        if environ['PATH_INFO'] == '/slow':
            asked.set()
            go_on.wait(10)
        return hello(environ, start_response)

    running = server.serve(slow, '127.0.0.1', 0)
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(fetch(f'{running.url}/slow')))
    waiting.start()
    assert asked.wait(10)
    assert fetch(running.url) == b'hello'
    running.stop()
    go_on.set()
    waiting.join(10)
    assert answers == [b'hello']


def test_the_listening_thread_comes_from_the_seam():
    started = []

    class Recording(executors.NativeThreads):
        def start(self, function, *args, name):
            started.append(name)
            super().start(function, *args, name=name)

    running = server.serve(hello, '127.0.0.1', 0, Recording())
    running.stop()
    assert started == [f'http-{running.port}']


def test_an_address_in_use_is_an_os_error():
    running = server.serve(hello, '127.0.0.1', 0)
    try:
        with pytest.raises(OSError, match='in use'):
            server.serve(hello, '127.0.0.1', running.port)
    finally:
        running.stop()
