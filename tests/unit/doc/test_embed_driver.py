# SPDX-License-Identifier: Apache-2.0

"""The driver of the page on embedding keeps what a driver promises."""

from __future__ import annotations

import pytest

from tests.unit.doc import conftest, toyhv
from tests.unit.virt import driver_contract
from tests.unit.virt.fake_bench import an_instance


class ToyBench(driver_contract.Bench):
    def __init__(self, driver_class, threads):
        self.threads = threads
        self.cluster = toyhv.Cluster()
        self.alpha, self.beta = self.cluster.add('alpha'), self.cluster.add('beta')
        self.source, self.destination = (
            driver_class(conftest.bound(host)) for host in (self.alpha, self.beta)
        )  # fmt: skip
        self.source.init_host('alpha')
        self.destination.init_host('beta')
        self.destination_host = 'beta'
        self.instance = an_instance()
        self.alpha.boot(self.instance.uuid)

    def start(self, function, *args):
        self.threads.start(function, *args, name='call')

    def run_until(self, predicate):
        for _ in range(5000):
            if predicate():
                return
            self.threads.sleep(0.002)
        raise AssertionError('it did not become so')

    def slow(self):
        self.cluster.slow = True

    def listeners(self):
        # The contract has one that attaches besides the two that move.
        return self.alpha.waiters(self.instance.uuid) == 3


@pytest.fixture
def bench(page, threads):
    return ToyBench(page('embed_driver').ToyDriver, threads)


class TestContract(driver_contract.DriverContract):
    describes_instances = False

    def pause(self, bench):
        bench.alpha.boot(bench.instance.uuid, toyhv.PAUSED)
