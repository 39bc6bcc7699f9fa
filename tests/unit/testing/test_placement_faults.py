# SPDX-License-Identifier: Apache-2.0

"""The adapter that loses, refuses, delays and repeats requests."""

import uuid

import pytest

from migrator import exception
from migrator.placement_client.client import PlacementClient
from migrator.testing.placement import InProcessPlacement
from migrator.testing.placement_faults import Fault, FaultyAdapter


@pytest.fixture
def running(tmp_path):
    with InProcessPlacement(tmp_path) as one:
        yield one


@pytest.fixture
def faulty(running):
    return FaultyAdapter(running.adapter())


@pytest.fixture
def client(faulty):
    return PlacementClient(faulty)


def make_provider(client):
    name = str(uuid.uuid4())
    client.post('/resource_providers', {'uuid': name, 'name': name})


@pytest.mark.parametrize(
    ('fault', 'error', 'done'),
    [
        (Fault.UNREACHABLE, exception.PlacementUnreachable, 0),
        (Fault.TIMEOUT_NOT_DONE, exception.PlacementUnreachable, 0),
        (Fault.TIMEOUT_DONE, exception.PlacementUnreachable, 1),
        (Fault.TIMEOUT_LATE, exception.PlacementUnreachable, 0),
        (Fault.CONFLICT, exception.PlacementConflict, 0),
        (Fault.REFUSED, exception.PlacementRefused, 0),
        (Fault.ERROR_NOT_DONE, exception.PlacementUnreachable, 0),
        (Fault.ERROR_DONE, exception.PlacementUnreachable, 1),
    ],
)
def test_fault_raises_error_in_client_and_request_is_done_or_not(running, faulty, client, fault, error, done):
    faulty.inject(fault)
    with pytest.raises(error):
        make_provider(client)
    assert len(running.requests) == done


def test_fault_hits_only_matching_requests(running, faulty, client):
    faulty.inject(Fault.CONFLICT, method='POST', url='^/resource_providers', skip=1, times=2)
    client.get('/resource_providers')
    make_provider(client)
    for _ in range(2):
        with pytest.raises(exception.PlacementConflict):
            make_provider(client)
    make_provider(client)
    assert [one.method for one in running.requests] == ['GET', 'POST', 'POST']
    assert len(faulty.sent) == 5


def test_late_request_is_done_once_when_delivered(running, faulty, client):
    faulty.inject(Fault.TIMEOUT_LATE)
    with pytest.raises(exception.PlacementUnreachable):
        make_provider(client)
    assert [answer.status_code for answer in faulty.deliver()] == [200]
    assert faulty.deliver() == []
    assert len(running.requests) == 1


def test_duplicated_request_is_done_at_once_and_again_when_delivered(running, faulty, client):
    faulty.inject(Fault.DUPLICATED)
    make_provider(client)
    assert [answer.status_code for answer in faulty.deliver()] == [409]
    assert len(running.requests) == 2
