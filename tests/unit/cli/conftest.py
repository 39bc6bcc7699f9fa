# SPDX-License-Identifier: Apache-2.0

import pytest

from tests.unit.cli import managing


@pytest.fixture
def operator(tmp_path, backend, capsys, request):
    """An operator of a simulated cloud of three hosts."""
    marker = request.node.get_closest_marker('cloud')
    made = managing.Operator(tmp_path, backend, capsys, **{'hosts': 3, **(marker.kwargs if marker else {})})
    capsys.readouterr()
    yield made
    made.close()
