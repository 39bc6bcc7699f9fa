# SPDX-License-Identifier: Apache-2.0

"""Requests made from the OpenAPI document get no server error, and answers as it describes them."""

import collections
import contextlib
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


#: The hosts of the site.
HOSTS = ('source', 'dest')
#: The requests of one sequence.
STEPS = 50
#: Good requests that are made of one operation at most. Sequences send each of them in many states.
MOST = 100
#: Requests that are accepted only after others of the sequence.
REACHED = (
    ('POST', '/v2.1/servers/{server_id}/action', 202),
    ('DELETE', '/v2.1/servers/{server_id}/migrations/{migration_id}', 202),
    ('POST', '/migrator/v1/drains', 202),
    ('GET', '/migrator/v1/drains/{uuid}/members', 200),
    ('POST', '/migrator/v1/drains/{uuid}/action', 202),
)
#: A stream of events does not end.
ENDLESS = '/migrator/v1/events'


@pytest.fixture
def sites(server_urls):
    made = [random_requests.Site(url) for url in server_urls]
    for one in made:
        one.fill()
    yield made
    for one in made:
        one.close()


@pytest.fixture
def site(server_url):
    made = random_requests.Site(server_url)
    yield made
    made.close()


@pytest.fixture
def document():
    written = openapi.document()
    del written['paths'][ENDLESS]
    for path in written['paths'].values():
        for operation in path.values():
            # An answer at another version is none of a fault.
            operation['parameters'] = [one for one in operation['parameters'] if '$ref' not in one]
            # Else most bad requests lack the token, and get no further.
            operation['security'] = []
    return schemathesis.openapi.from_dict(written)


def modes(operation):
    """Return the kinds of requests that an operation can have. Any text is good in a path."""
    raw = operation.definition.raw
    can_be_bad = 'requestBody' in raw or any(one['in'] == 'query' for one in raw['parameters'])
    return (GenerationMode.POSITIVE, GenerationMode.NEGATIVE) if can_be_bad else (GenerationMode.POSITIVE,)


def every(operation, mode, number, do):
    """Call a function with random requests of an operation."""

    @hypothesis.settings(
        max_examples=max(1, number), deadline=None, database=None, derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def each(case):
        do(case)

    each()


def check(case, answer):
    assert answer.status_code < 500 or answer.status_code in random_requests.NO_FAULTS, answer.text
    case.validate_response(answer, checks=CHECKS)


def _name_what_is_there(parameters, site, dice):
    """Replace most parameters of a path, so that the request gets further."""
    for name in parameters:
        if dice.random() < 0.7 and name in site.ids:
            parameters[name] = dice.choice(site.ids[name])


@pytest.mark.timeout(3600)
def test_no_request_by_the_document_returns_a_server_error(sites, document, record_property):
    """To make a request takes more time than to answer it, so each one goes to both databases."""
    dice = [random.Random(5) for _ in sites]  # noqa: S311 -- a test's dice
    sent = 0

    def ask(case):
        nonlocal sent
        sent += 1
        statuses = []
        for site, thrown in zip(sites, dice, strict=True):
            _name_what_is_there(case.path_parameters, site, thrown)
            if sent % random_requests.FILL_EVERY == 0:
                site.fill()
            answer = case.call(headers=HEADERS, app=site.app)
            check(case, answer)
            statuses.append(answer.status_code)
        assert len({*statuses}) == 1, f'{case.method} {case.formatted_path} {case.query} {case.body!r}: {statuses}'

    operations = [found.ok() for found in document.get_all_operations()]
    for operation in operations:
        wanted = random_requests.count(0.2) // len(operations)
        for mode in modes(operation):
            every(operation, mode, wanted // len(modes(operation)), ask)
    record_property('requests', sent)


class Sequence:
    """Requests, most of which name what the links of earlier answers lead to.

    :ivar known: operation id -> the parameters of paths that it can be called with.
    """

    def __init__(self, site, document, cases, dice):
        site.fill()
        self.known, self.sent = {}, []
        self._paths, self._site, self._cases, self._dice = document.raw_schema['paths'], site, cases, dice

    def ask(self):
        """Send one request, and return its method, the path of its URL, and the status of the answer."""
        dice = self._dice
        name = dice.choice([*self.known] if self.known and dice.random() < 0.5 else [*self._cases])
        if name.startswith('get') and dice.random() < 0.5:  # there are more of them, and they change nothing
            return self.ask()
        case = dice.choice(self._cases[name])
        case.headers.update(HEADERS)
        if name in self.known:
            case.path_parameters |= dice.choice(self.known[name])
        else:
            _name_what_is_there(case.path_parameters, self._site, dice)
        for one in (case.body, *case.body.values()) if isinstance(case.body, dict) else ():
            # A body that names hosts gets further.
            if isinstance(one, dict) and dice.random() < 0.7:
                one |= {'host': dice.choice(HOSTS)} if one.get('host') else {}
                one |= {'destinations': [dice.choice(HOSTS)]} if one.get('destinations') else {}
                one |= {'priorities': None} if one.get('priorities') else {}
        if dice.random() < 0.1:
            self._site.begin_migrations()
        answer = case.call(headers=HEADERS, app=self._site.app)
        self.sent.append(f'{case.method} {case.formatted_path} {case.query} {case.body!r}: {answer.status_code}')
        try:
            check(case, answer)
        except (AssertionError, BaseExceptionGroup) as error:
            error.add_note('\n'.join(['The requests were:', *self.sent]))
            raise
        self._learn(case, answer)
        return case.method, case.path, answer.status_code

    def _learn(self, case, answer):
        responses = self._paths[case.path][case.method.lower()]['responses']
        for link in responses.get(str(answer.status_code), {}).get('links', {}).values():
            with contextlib.suppress(IndexError):  # the list is empty
                found = {name: self._value(text, case, answer) for name, text in link['parameters'].items()}
                self.known.setdefault(link['operationId'], []).append(found)

    def _value(self, expression, case, answer):
        where, _, pointer = expression.partition('#/')
        if where != '$response.body':
            return case.path_parameters[where.removeprefix('$request.path.')]
        found = answer.json()
        for part in pointer.split('/'):
            # Not only the first: any of a list will do.
            found = self._dice.choice(found) if isinstance(found, list) else found[part]
        return str(found)


@pytest.mark.timeout(3600)
def test_no_sequence_of_requests_returns_a_server_error(site, document, record_property):
    wanted, answers = random_requests.count(0.2), collections.Counter()
    operations = [found.ok() for found in document.get_all_operations()]
    cases = {}
    for operation in operations:
        keep = cases.setdefault(operation.definition.raw['operationId'], []).append
        made = min(wanted // len(operations), MOST)
        for mode in modes(operation):
            every(operation, mode, made if mode.is_positive else made // 4, keep)
    dice = random.Random(6)  # noqa: S311 -- a test's dice
    missing = REACHED
    # A few sequences may not reach all that they have to.
    while answers.total() < wanted or (missing and answers.total() < 10 * wanted):
        sequence = Sequence(site, document, cases, dice)
        answers.update(sequence.ask() for _ in range(STEPS))
        missing = [one for one in REACHED if not answers[one]]
    record_property('requests', answers.total())
    assert not missing, f'never answered so: {missing}; these were: {sorted(answers)}'
