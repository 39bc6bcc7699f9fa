# SPDX-License-Identifier: Apache-2.0

"""Two libvirt hosts for the tests of this folder, and what is said where there can be none."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests import backends
from tests.real.libvirt.lab import hosts, machine
from tests.real.libvirt.site import Cloud, LibvirtSite
from tests.real.servers import placement, postgresql, process, rabbitmq

HOW = (
    'to have it: as root `tools/packages.sh libvirt`, or install what bindep.txt has in its profile libvirt, and '
    "`pip install -e '.[demo,test,libvirt]'`"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = pathlib.Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.libvirt)


def pytest_report_header() -> list[str]:
    what = machine.missing()
    return [] if what is None else [f'libvirt: left out, for there is no {what}; {HOW}']


@pytest.fixture(scope='session')
def lab(workspace: process.Workspace) -> Iterator[hosts.Lab]:
    """The session's lab, with hosts alpha and beta; a test takes them by :func:`alpha` and :func:`beta`."""
    if (what := machine.missing()) is not None:
        backends.left_out(f'left out, for there is no {what}; {HOW}')
    with hosts.Lab(workspace) as made:
        made.start_host('alpha', wait=False)
        made.start_host('beta')
        made.hosts['alpha'].wait()
        yield made


@pytest.fixture
def fresh(lab: hosts.Lab) -> hosts.Lab:
    """The lab as it was in the beginning, whatever the test before did to it."""
    lab.fresh()
    return lab


@pytest.fixture
def alpha(fresh: hosts.Lab) -> hosts.Host:
    """A host that is up and has no guest."""
    return fresh.hosts['alpha']


@pytest.fixture
def beta(fresh: hosts.Lab) -> hosts.Host:
    """Another."""
    return fresh.hosts['beta']


#: What the tests' sites have, so that a test need not wait for what an operator would, and may resize at one host.
QUICK = {
    'allow_resize_to_same_host': True,
    'conductor.lease': 6,
    'conductor.sweep_interval': 1,
    'conductor.poll_interval': 1,
    'service_down_time': 20,
}


@pytest.fixture(scope='session')
def one_cloud(
    lab: hosts.Lab,
    rabbitmq: rabbitmq.RabbitMQ,
    postgresql: postgresql.PostgreSQL,
    placement_http: placement.Placement,
) -> Iterator[Cloud]:
    """The session's site on the lab's hosts; a test takes it by :func:`cloud`."""
    made = Cloud(LibvirtSite(lab, QUICK, rabbitmq, postgresql, placement_http))
    made.clear_allocations()
    made.site.start()
    yield made
    made.close()
    made.site.end()


@pytest.fixture
def cloud(fresh: hosts.Lab, one_cloud: Cloud) -> Iterator[Cloud]:
    """A site on the lab's hosts, with no guest, and all of its services up."""
    one_cloud.begin()
    yield one_cloud
    one_cloud.forget()
