# SPDX-License-Identifier: Apache-2.0

"""The driver of the page on embedding meets the contract of a driver."""

import pytest

from migrator.testing import driver_contract, toyhv
from tests.unit.doc import conftest


class ToyBench(driver_contract.Bench):
    def __init__(self, driver_class):
        self.cluster = toyhv.Cluster()
        self.alpha, self.beta = self.cluster.add('alpha'), self.cluster.add('beta')
        self.source, self.destination = (
            driver_class(conftest.bound(host)) for host in (self.alpha, self.beta)
        )  # fmt: skip
        self.source.init_host('alpha')
        self.destination.init_host('beta')
        self.instance = driver_contract.an_instance()
        self.alpha.boot(self.instance.uuid)

    def slow(self):
        self.cluster.slow = True

    def lose_source(self):
        self.alpha.kill(self.instance.uuid)

    def return_source(self):
        pass  # nothing starts a domain of the toy but its users

    def listeners(self):
        return self.source.attached(self.instance.uuid)


@pytest.fixture
def bench(page):
    return ToyBench(page('embed_driver').ToyDriver)


class TestContract(driver_contract.EvacuationContract):
    describes_instances = False

    def pause(self, bench):
        bench.alpha.boot(bench.instance.uuid, toyhv.PAUSED)
