# SPDX-License-Identifier: Apache-2.0

"""The checked-in description of nova's schemas is that of the nova that is installed."""

import pathlib
import subprocess

import pytest

from tests.nova_schemas import facts
from tests.real.nova import lab as labs


@pytest.mark.usefixtures('_need_nova')
def test_description_is_that_of_the_installed_nova():
    program = [labs.PYTHON, '-W', 'ignore', '-m', 'tests.nova_schemas.extract']
    found = subprocess.run(program, cwd=labs.HERE.parents[2], capture_output=True, text=True, check=True, timeout=300)
    assert found.stdout == pathlib.Path(facts.__file__).with_name('nova.json').read_text(encoding='utf-8')
