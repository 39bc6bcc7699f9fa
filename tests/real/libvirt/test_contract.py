# SPDX-License-Identifier: Apache-2.0

"""The libvirt driver keeps the contract that the fake one keeps: the same tests, on real guests."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

pytest.importorskip('libvirt', reason='the module libvirt is not installed')

from migrator.testing import driver_contract
from tests.real.libvirt.bench import LibvirtBench
from tests.real.libvirt.lab import hosts


@pytest.fixture
def bench(fresh: hosts.Lab, tmp_path: pathlib.Path) -> Iterator[LibvirtBench]:
    made = LibvirtBench(fresh, tmp_path)
    yield made
    made.close()


class TestLibvirtDriver(driver_contract.ColdMigrationContract, driver_contract.EvacuationContract):
    def pause(self, bench: driver_contract.Bench) -> None:
        assert isinstance(bench, LibvirtBench)
        bench.alpha.virsh('suspend', bench.guest.uuid)
