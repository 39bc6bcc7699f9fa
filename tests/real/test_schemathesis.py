# SPDX-License-Identifier: Apache-2.0

"""Requests made from the OpenAPI document get no server error, and answers as it describes them."""

import random

import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks

from migrator.api import microversions, openapi
from tests import random_requests

#: What must hold of each answer. That bad requests are refused is tested elsewhere: in a URL, a value of the wrong type
#: may become one of the right type.
CHECKS = (
    checks.response_schema_conformance,
    checks.content_type_conformance,
    checks.status_code_conformance,
)

HEADERS = {'X-Auth-Token': 'admin', 'OpenStack-API-Version': f'compute {microversions.MAXIMUM}'}


@pytest.fixture
def site(server_url):
    made = random_requests.Site(server_url)
    made.fill()
    yield made
    made.close()


@pytest.mark.timeout(1200)
def test_no_request_by_the_document_returns_a_server_error(site, server, record_property):
    written = openapi.document()
    for path in written['paths'].values():
        for operation in path.values():
            # An answer at another version is none of a fault.
            operation['parameters'] = [one for one in operation['parameters'] if '$ref' not in one]
    document = schemathesis.openapi.from_dict(written)
    document.app = site.app
    dice = random.Random(5)  # noqa: S311 -- a test's dice
    # A stream of events does not end.
    operations = [found.ok() for found in document.get_all_operations() if not found.ok().path.endswith('/v1/events')]
    each = random_requests.count({'postgresql': 600, 'mariadb': 200}[server.name]) // len(operations)
    sent = 0
    for operation in operations:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @hypothesis.settings(
                max_examples=max(1, each // 2), deadline=None, database=None, derandomize=True,
                suppress_health_check=list(hypothesis.HealthCheck),
            )  # fmt: skip
            @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
            def ask(case):
                nonlocal sent
                sent += 1
                # A path that names what is there gets further.
                for name in case.path_parameters:
                    if dice.random() < 0.7 and name in site.ids:
                        case.path_parameters[name] = dice.choice(site.ids[name])
                if sent % random_requests.FILL_EVERY == 0:
                    site.fill()
                answer = case.call(headers=HEADERS)
                assert answer.status_code < 500 or answer.status_code in random_requests.NO_FAULTS, answer.text
                case.validate_response(answer, checks=CHECKS)

            ask()
    record_property('requests', sent)
