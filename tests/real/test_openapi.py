# SPDX-License-Identifier: Apache-2.0

"""The OpenAPI document follows the specification; the validator takes seconds."""

import pytest

from migrator.api import openapi


def test_the_document_is_a_valid_one():
    validator = pytest.importorskip('openapi_spec_validator', reason="pip install -e '.[real]'")
    validator.validate(openapi.document())
