# SPDX-License-Identifier: Apache-2.0

import pytest

from migrator.cmd import manage
from tests.unit.operator.cli import managing


@pytest.fixture
def operator(tmp_path, backend, capsys, request):
    """An operator of a simulated cloud of three hosts."""
    marker = request.node.get_closest_marker('cloud')
    made = managing.Operator(tmp_path, backend, capsys, **{'hosts': 3, **(marker.kwargs if marker else {})})
    capsys.readouterr()
    yield made
    made.close()


@pytest.fixture
def refused(capsys):
    """Return a function that runs a command with wrong arguments, without a cloud, and returns its stderr."""

    def run(*words):
        assert manage.main([*map(str, words)]) == 2
        out, err = capsys.readouterr()
        assert out == ''
        return err

    return run
