# SPDX-License-Identifier: Apache-2.0

"""The OpenAPI document follows the specification; the validator takes seconds."""

import importlib
import importlib.util

from migrator.api import openapi
from tests import backends


def test_the_document_is_a_valid_one():
    if importlib.util.find_spec('openapi_spec_validator') is None:
        backends.left_out("there is no openapi-spec-validator: pip install -e '.[real]'")
    importlib.import_module('openapi_spec_validator').validate(openapi.document())
