# SPDX-License-Identifier: Apache-2.0

"""Run tests in a process that eventlet has patched first: `python -m tests.patched`.

It takes pytest's arguments; without a path it runs :data:`TESTS`, which are, but for those of its own, files that the
native run has too. There is no pytest-xdist here: its workers are processes of their own, and not patched.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

#: What an importing service has of migrator: its pools and locks, the queue, RPC, and what the page on embedding says.
TESTS = (
    'tests/eventlet',
    'tests/unit/test_executors.py',
    'tests/unit/test_probe.py',
    'tests/unit/test_growing.py',
    'tests/unit/test_futurist.py',
    'tests/unit/test_context.py',
    'tests/unit/test_rpc.py',
    'tests/unit/runtime/test_embed.py',
    'tests/unit/compute',
    'tests/unit/testing/hypervisor',
    'tests/unit/virt',
    'tests/unit/doc',
)

#: Modules whose warnings, mostly of eventlet's end, are left out: each is between our dependencies.
_DEPENDENCIES = (
    'futurist._futures',
    'oslo_messaging.server',
    'oslo_service.eventlet_backdoor',
    'oslo_utils.eventletutils',
    'webob.compat',
)

OPTIONS = (
    '-p',
    'no:xdist',
    # Plugins that tests/real installs: they import trio, which cannot be imported once sockets are green.
    '-p',
    'no:anyio',
    '-p',
    'no:schemathesis',
    '-o',
    f'testpaths={" ".join(TESTS)}',
    # If a signal interrupts no thread, a thread of the interpreter's own ends the process.
    '-o',
    'faulthandler_timeout=180',
    '-o',
    'faulthandler_exit_on_timeout=true',
    *(option for name in _DEPENDENCIES for option in ('-W', f'ignore::DeprecationWarning:{name}')),
)


class Timeouts:
    """A plugin by which a test that hangs fails, with its stack.

    pytest-timeout would start a thread that counts; here that is a green one, which knows no other stack and
    does not even run while the hub hangs. A signal interrupts both kinds of waiting.
    """

    def pytest_timeout_set_timer(self, item: Any, settings: Any) -> bool:
        """Set the alarm of one test; pytest-timeout asks its plugins before itself."""
        import pytest_timeout

        def ring(_number: int, _frame: object) -> None:
            pytest_timeout.timeout_sigalrm(item, settings)

        def cancel() -> None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, settings.timeout)
        item.cancel_timeout = cancel
        return True


def main(argv: list[str]) -> int:
    """Patch this process, then run pytest in it."""
    import warnings

    # It says so each time that it is imported, and this is known here.
    warnings.filterwarnings('ignore', message=r'\s*Eventlet is deprecated')
    import eventlet

    # trio, which selenium installs, is a plugin of hypothesis, and cannot be imported once sockets are green.
    os.environ['HYPOTHESIS_NO_PLUGINS'] = '1'
    eventlet.monkey_patch()
    # Only now: an importing service, too, patches first.
    import pytest

    return pytest.main([*OPTIONS, *argv], plugins=[Timeouts()])


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
