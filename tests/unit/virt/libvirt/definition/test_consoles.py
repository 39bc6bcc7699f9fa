# SPDX-License-Identifier: Apache-2.0

"""The addresses at which consoles listen, before and after a move."""

import pytest
from oslo_config import cfg

from migrator.conf import compute
from migrator.conf import libvirt as libvirt_conf

pytest.importorskip('libvirt', reason='the extra "libvirt" is not installed')

from migrator.virt.libvirt.definition import consoles

ANY = '0.0.0.0'  # noqa: S104 -- no socket of ours is bound to it
THERE = {'vnc': '198.51.100.9', 'spice': '198.51.100.8', 'serial': '198.51.100.7'}
GUEST = """<domain type="kvm" xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0">
  <metadata><a:b xmlns:a="urn:a">&lt;x&gt;</a:b></metadata>
  <devices>
    <graphics type="vnc" port="-1" listen="{0}"><listen type="address" address="{0}"/></graphics>
    <graphics type="spice" autoport="yes" listen="{0}"/>
    <serial type="tcp"><source mode="bind" host="{0}" service="4555"/></serial>
    <channel type="tcp"><source mode="connect" host="{0}" service="1"/></channel>
    <graphics type="vnc"><listen type="network" network="default" address="{0}"/></graphics>
  </devices>
  <qemu:commandline><qemu:arg value="-x"/></qemu:commandline>
</domain>"""


@pytest.fixture
def conf():
    made = cfg.ConfigOpts()
    compute.register_opts(made)
    libvirt_conf.register_opts(made)
    made([], default_config_files=[], default_config_dirs=[])
    return made


def own(conf, address, here=()):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consoles, '_is_here', lambda one: one in here)
        return consoles.own(conf, GUEST.format(address))


def test_addresses_of_this_host_are_its_own(conf):
    assert own(conf, '198.51.100.1', here=['198.51.100.1']) == ['198.51.100.1']
    assert own(conf, 'fd00::1', here=['fd00::1']) == ['fd00::1']
    assert own(conf, '198.51.100.2') == [], 'it is no address of this host'


def test_the_address_of_its_option_is_its_own_though_it_is_gone(conf):
    conf.set_override('server_listen', '198.51.100.3', group='vnc')
    assert own(conf, '198.51.100.3') == ['198.51.100.3']


@pytest.mark.parametrize('address', ['127.0.0.1', '127.9.9.9', '::1', ANY, '::', 'console.example.org', ''])
def test_an_address_that_other_hosts_have_too_stays(conf, address):
    conf.set_override('server_listen', address or '127.0.0.1', group='vnc')
    assert own(conf, address, here=[address]) == []


def test_each_console_gets_the_address_of_its_kind_and_nothing_else_changes():
    before = GUEST.format('198.51.100.1')
    after = consoles.moved(before, ['198.51.100.1'], THERE)
    expected = before.replace(
        'listen="198.51.100.1"><listen type="address" address="198.51.100.1"',
        'listen="198.51.100.9"><listen type="address" address="198.51.100.9"',
    )
    expected = expected.replace('autoport="yes" listen="198.51.100.1"', 'autoport="yes" listen="198.51.100.8"')
    expected = expected.replace('mode="bind" host="198.51.100.1"', 'mode="bind" host="198.51.100.7"')
    assert attributes(after) == attributes(expected)
    for kept in ('xmlns:qemu', '<qemu:arg value="-x"/>', '&lt;x&gt;</a:b>'):
        assert kept in after


def attributes(definition):
    """Return the elements of a definition with their attributes, in order."""
    document = consoles.minidom.parseString(definition)
    return [(one.tagName, sorted(one.attributes.items())) for one in document.getElementsByTagName('*')]


def test_a_definition_without_such_addresses_stays_as_it_is():
    before = GUEST.format(ANY)
    assert consoles.moved(before, ['198.51.100.1'], THERE) is before
    assert consoles.moved(GUEST, ['{0}'], {}) is GUEST, 'an older destination reports no addresses'


def test_an_address_is_here_if_a_socket_can_have_it():
    assert consoles._is_here('127.0.0.1')
    assert not consoles._is_here('192.0.2.1'), 'it is reserved for documentation'
