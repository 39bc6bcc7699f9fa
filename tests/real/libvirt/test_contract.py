# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Libvirt's driver keeps what the fake one promises: the same tests, on real guests."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

pytest.importorskip('libvirt', reason='the module libvirt is not installed')

from tests.real.libvirt import bench as benches
from tests.real.libvirt.lab import hosts
from tests.unit.virt import driver_contract


@pytest.fixture
def bench(fresh: hosts.Lab, tmp_path: pathlib.Path) -> Iterator[benches.LibvirtBench]:
    made = benches.LibvirtBench(fresh, tmp_path)
    yield made
    made.close()


class TestLibvirtDriver(driver_contract.DriverContract):
    def pause(self, bench: driver_contract.Bench) -> None:
        assert isinstance(bench, benches.LibvirtBench)
        bench.alpha.virsh('suspend', bench.guest.uuid)
