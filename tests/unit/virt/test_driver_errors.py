# SPDX-License-Identifier: Apache-2.0

"""Errors of the six methods that do not derive from Exception, on native and on green threads."""

import pytest

from migrator import exception, executors
from migrator.objects import Guest, GuestState, LiveMigrateData
from migrator.simulator.faults import BASE_EXCEPTIONS
from migrator.testing.driver_contract import an_instance
from migrator.virt.driver import NeverCancelled
from migrator.virt.simple import SimpleDriver

ONE, DATA = an_instance(), LiveMigrateData()


class Failing(SimpleDriver):
    """A driver with a guest that runs here, and with a method that raises an error."""

    settle_seconds = 0.0

    def __init__(self, method='', error=None):
        super().__init__({'VCPU': 4})
        self.init_host('host1')
        self.present = True
        if method:
            setattr(self, method, self._fail)
        self.error = error

    def _fail(self, *_args):
        raise self.error

    def guests(self):
        return [Guest(instance_uuid=ONE.uuid, state=GuestState.RUNNING)] if self.present else []

    def receive(self, instance):
        return {}

    def migrate(self, instance, destination, facts, report):
        """Return at once."""

    abort = force_complete = remove = migrate


def in_thread(function, *args):
    """Call a function in a thread that is not the main one; return its result or raise its error."""
    return executors.ThreadExecutor(executors.NativeThreads(), 'call').submit(function, *args).result(30)


@pytest.mark.parametrize('kind', [KeyboardInterrupt, SystemExit])
def test_ctrl_c_and_an_exit_end_the_main_thread_and_no_other(kind):
    driver = Failing('guests', kind('30 s'))
    with pytest.raises(kind):
        driver.list_guests()
    with pytest.raises(exception.DriverError, match=f'{kind.__name__}: 30 s'):
        in_thread(driver.list_guests)


#: Method of the six, and outlast, which calls guests -> what calls it, and the error that this raises.
CALLS = {
    'guests': ('list_guests', (), exception.DriverError),
    'receive': ('pre_live_migration', (ONE, DATA, NeverCancelled()), exception.DriverError),
    'migrate': ('live_migration', (ONE, 'beta', DATA, lambda: None), exception.LiveMigrationFailed),
    'outlast': ('live_migration', (ONE, 'beta', DATA, lambda: None), exception.MoveUnsettled),
    'abort': ('live_migration_abort', (ONE,), exception.DriverError),
    'force_complete': ('live_migration_force_complete', (ONE,), exception.DriverError),
    'remove': ('post_live_migration_at_source', (ONE, DATA), exception.DriverError),
}


@pytest.mark.parametrize('kind', BASE_EXCEPTIONS)
@pytest.mark.parametrize('method', CALLS)
def test_base_exception_of_each_method_becomes_the_same_error_as_an_exception(kind, method):
    driver = Failing(method, kind('30 s'))
    driver.present = method not in ('receive', 'remove')
    caller, arguments, expected = CALLS[method]
    with pytest.raises(expected, match=f'{kind.__name__}: 30 s'):
        in_thread(getattr(driver, caller), *arguments)
