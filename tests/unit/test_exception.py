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

from __future__ import annotations

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
def test_what_was_said_of_an_error_is_in_its_text_whatever_was_not(error, said):
    """Where one keyword was missing it became a KeyError, and the reason that was given was lost."""
    assert str(error) == said
