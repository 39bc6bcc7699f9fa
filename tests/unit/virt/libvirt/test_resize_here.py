# SPDX-License-Identifier: Apache-2.0

"""A guest is resized at its host, whenever the process of its driver is killed meanwhile."""

import re

import pytest

libvirt = pytest.importorskip('libvirt')

from migrator import exception  # noqa: E402 -- what is tested needs libvirt
from migrator.objects import LiveMigrateData  # noqa: E402 -- as above
from migrator.virt.libvirt.cold_migration import marks  # noqa: E402 -- as above
from tests.unit.virt.libvirt.daemon import INSTANCE  # noqa: E402 -- as above
from tests.unit.virt.libvirt.test_resizes import GIB, LARGE, small, vcpus  # noqa: E402, F401 -- as above

MIGRATION = '5f2c1c0e-7a53-4b70-9f6e-0c5f6a0d8a11'


@pytest.fixture
def host(small):  # noqa: F811 -- the fixture of that name
    """Host alpha with a guest of two processors, whose driver calls fail after some calls to the daemon."""
    return Host(small)


class Killed(Exception):
    pass


class Host:
    def __init__(self, hosts):
        self.hosts, self.driver, self.domain = hosts, hosts.source, hosts.alpha.domains[0]
        self.connection, self.left = self.driver.connection, None
        real = self.connection.call

        def call(phase, function, *more):
            if self.left == 0:
                raise Killed
            self.left = self.left and self.left - 1
            return real(phase, function, *more)

        self.connection.call = call

    def checked(self, power_on=True):
        data = self.driver.check_can_resize(INSTANCE, LiveMigrateData(new_flavor=LARGE))
        return data.replace(source={**data.source, 'power_on': power_on})

    def until_killed(self, after, method, *arguments):
        """Call the driver, and return whether it was killed after a number of calls to the daemon."""
        self.left = after
        try:
            method(INSTANCE, *arguments)
        except Killed:
            return True
        finally:
            self.left = None
        return False

    def found(self):
        mark = marks.read(self.domain.xml)
        return vcpus(self.domain.xml), self.hosts.states()[0], mark and vcpus(mark.old)


def everything_but_marks(xml):
    return re.sub(r'\s|<metadata/>', '', marks.put(xml, None).replace('<metadata></metadata>', ''))


def test_definition_that_libvirt_refuses_is_refused_before_the_guest_is_powered_off(host):
    host.hosts.alpha.refusal = 'maxvcpus must not be less than current vcpus'
    with pytest.raises(exception.MigrationPreCheckError, match=r'libvirt of host alpha refuses .*: maxvcpus must not'):
        host.checked()
    assert host.found() == ('2', 'running', None)


@pytest.mark.parametrize(('power_on', 'state'), [(True, 'running'), (False, 'shutdown')])
def test_guest_has_its_new_size_and_disk_until_it_is_reverted(host, power_on, state):
    before = everything_but_marks(host.domain.xml)
    data = host.checked(power_on)
    host.driver.resize(INSTANCE, data, MIGRATION)
    assert host.found() == ('4', state, '2')
    assert (host.hosts.images / 'disk').stat().st_size == 20 * GIB
    host.driver.revert_resize(INSTANCE, MIGRATION)
    assert host.found() == ('2', state, None)
    assert everything_but_marks(host.domain.xml) == before


def test_definition_for_another_host_is_the_new_one_alone(host):
    host.driver.resize(INSTANCE, host.checked(), MIGRATION)
    reported = host.driver.get_definition(INSTANCE.uuid)['xml']
    assert (vcpus(reported), marks.read(reported)) == ('4', None)
    host.driver.confirm_resize(INSTANCE, MIGRATION)
    assert everything_but_marks(host.driver.get_definition(INSTANCE.uuid)['xml']) == everything_but_marks(reported)


def test_resize_that_is_killed_after_any_call_is_finished_by_the_next(host):
    data, after, kills = host.checked(), 0, 0
    while host.until_killed(after, host.driver.resize, data, MIGRATION):
        kills += 1
        host.driver.resize(INSTANCE, data, MIGRATION)
        assert host.found() == ('4', 'running', '2')
        host.driver.revert_resize(INSTANCE, MIGRATION)
        after += 1
    assert kills > 5


def test_resize_that_is_killed_after_any_call_can_be_taken_back(host):
    before, data, after = everything_but_marks(host.domain.xml), host.checked(), 0
    while host.until_killed(after, host.driver.resize, data, MIGRATION):
        host.driver.revert_resize(INSTANCE, MIGRATION)
        assert host.found() == ('2', 'running', None)
        assert everything_but_marks(host.domain.xml) == before
        after += 1


def test_revert_that_is_killed_after_any_call_is_finished_by_the_next(host):
    data, after, kills = host.checked(), 0, 0
    host.driver.resize(INSTANCE, data, MIGRATION)
    while host.until_killed(after, host.driver.revert_resize, MIGRATION):
        kills += 1
        host.driver.revert_resize(INSTANCE, MIGRATION)
        assert host.found() == ('2', 'running', None)
        host.driver.resize(INSTANCE, data, MIGRATION)
        after += 1
    assert kills > 5


def test_guest_that_fails_to_start_with_its_new_size_starts_with_its_old_one(host, monkeypatch):
    data, real = host.checked(), type(host.domain).create

    def create(domain):
        if vcpus(domain.xml) == '4':
            raise libvirt.libvirtError('no memory')
        real(domain)

    monkeypatch.setattr(type(host.domain), 'create', create)
    with pytest.raises(exception.DriverError, match='no memory'):
        host.driver.resize(INSTANCE, data, MIGRATION)
    assert host.found() == ('4', 'shutdown', '2')
    host.driver.revert_resize(INSTANCE, MIGRATION)
    assert host.found() == ('2', 'running', None)


def test_confirmed_guest_keeps_what_was_changed_since_and_has_no_old_definition(host):
    host.driver.resize(INSTANCE, host.checked(), MIGRATION)
    host.domain.xml = host.domain.xml.replace('</devices>', "<graphics type='vnc' passwd='x'/></devices>")
    for _ in range(2):
        host.driver.confirm_resize(INSTANCE, MIGRATION)
        assert host.found() == ('4', 'running', None)
    assert 'passwd="x"' in host.domain.xml


@pytest.mark.parametrize(
    ('change', 'match'),
    [
        (lambda host: setattr(host.domain, 'obstacle', 'snapshots'), 'has snapshots'),
        (lambda host: setattr(host.domain, 'persistent', False), 'is transient'),
        (
            lambda host: setattr(host.domain, 'xml', host.domain.xml.replace('<os>', "<graphics passwd='x'/><os>")),
            'has a password',
        ),
    ],
)
def test_guest_whose_definition_cannot_be_replaced_is_refused(host, change, match):
    change(host)
    with pytest.raises(exception.MigrationPreCheckError, match=match):
        host.checked()
    assert host.found() == ('2', 'running', None)


def test_disks_that_were_changed_since_the_check_leave_the_guest_alone(host):
    data = host.checked()
    host.domain.xml = host.domain.xml.replace('images/disk', 'images/other')
    with pytest.raises(exception.DriverError, match='have changed since the checks'):
        host.driver.resize(INSTANCE, data, MIGRATION)
    assert host.found() == ('2', 'running', None)


def test_guest_that_was_saved_since_the_check_is_left_alone(host):
    data = host.checked()
    host.domain.destroy()
    host.domain.obstacle = 'saved'
    with pytest.raises(exception.DriverError, match='has a saved state'):
        host.driver.resize(INSTANCE, data, MIGRATION)
    assert host.found() == ('2', 'shutdown', None)
    assert host.domain.obstacle == 'saved'


def test_mark_of_an_old_definition_with_a_mark_is_one_mark(host):
    host.driver.resize(INSTANCE, host.checked(), 'another')
    host.driver.resize(INSTANCE.replace(flavor=LARGE), host.checked(), MIGRATION)
    assert host.domain.xml.count('migrator:resize ') == 1
    assert marks.read(marks.read(host.domain.xml).old) is None
