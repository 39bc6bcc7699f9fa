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

"""What a test and the threads in which libvirt is called may both touch, whether other threads are green or not."""

from __future__ import annotations

import threading
from typing import Any

from migrator import executors


def event() -> Any:
    """Return an event that is never green."""
    if not executors.is_green():
        return threading.Event()
    from eventlet import patcher

    return patcher.original('threading').Event()


def until(predicate: Any) -> None:
    """Let other threads run until something is so."""
    pause = threading.Event()
    for _ in range(2000):
        if predicate():
            return
        pause.wait(0.005)
    raise AssertionError('it did not become so within 10 s')
