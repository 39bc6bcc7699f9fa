# SPDX-License-Identifier: Apache-2.0

import pytest

from migrator import exception


@pytest.mark.parametrize(
    ('error', 'said'),
    [
        (
            exception.DriverError(host='alpha', phase='get_node', reason='no'),
            'The hypervisor of alpha failed in get_node: no',
        ),
        (exception.DriverError(reason='disk full'), 'The hypervisor of ? failed in ?: disk full'),
        (exception.DriverError(), 'The hypervisor of ? failed in ?: ?'),
        (exception.DriverError('disk full', host='alpha'), 'disk full'),
        (exception.ConfigurationError(option='x', detail='y'), 'Option x is ?: y'),
        (exception.MigratorException(), 'An unexpected error occurred.'),
    ],
)
def test_message_keeps_given_arguments_when_others_are_missing(error, said):
    """A missing keyword once raised a KeyError, which hid the given reason."""
    assert str(error) == said
