# SPDX-License-Identifier: Apache-2.0

"""Each way to configure a cloud ends where the openstack client ends, or with an error to act on."""

import contextlib
import io
import os
import socket

import pytest
from keystoneauth1.identity import generic, v3
from openstack.config import loader

from migrator import exception
from migrator.nova import clouds, errors
from tests.unit.nova import cloud_server, cloud_variants


@pytest.fixture(scope='module')
def server():
    running = cloud_server.CloudServer()
    yield running
    running.stop()


@pytest.fixture(scope='module')
def closed():
    """Return an address where nothing listens, and nothing else can."""
    with socket.socket() as held:
        held.bind(('127.0.0.1', 0))
        yield f'http://127.0.0.1:{held.getsockname()[1]}'


@pytest.fixture
def configure(server, closed, monkeypatch, tmp_path):
    """Return a function that configures a variant in this process, without the files of the user."""
    for name in ('CONFIG_FILES', 'SECURE_FILES', 'VENDOR_FILES'):
        monkeypatch.setattr(loader, name, [])

    def do(variant):
        home = tmp_path / str(len([*tmp_path.iterdir()]))
        home.mkdir()
        for name in os.environ:
            if name.startswith('OS_'):
                monkeypatch.delenv(name)
        for name, value in variant.write(home, server.url, closed).items():
            monkeypatch.setenv(name, value)
        server.asked.clear()
        return lambda text: text.replace('@HOME@', str(home)).replace('@CLOSED@', closed)

    return do


@pytest.mark.parametrize('variant', cloud_variants.VARIANTS.values(), ids=[*cloud_variants.VARIANTS])
def test_cloud_is_found_or_the_error_names_what_is_wrong(server, configure, variant):
    fill = configure(variant)
    if variant.finds is not None:
        nova, placement = clouds.find(variant.cloud, variant.region).clients()
        assert nova.services() == []
        placement.read('/resource_providers')
        assert tuple(server.asked) == variant.finds
        return
    with pytest.raises((exception.ConfigurationError, errors.NovaUnreachable)) as found:
        clouds.find(variant.cloud, variant.region).clients()[0].services()
    text = str(found.value)
    assert [part for part in map(fill, variant.refuses) if part not in text] == [], text
    assert cloud_server.PASSWORD not in text
    assert '\n' not in text
    assert server.asked == []


def _ask_with_the_openstack_client(variant):
    """Run two commands of the openstack client, and return whether both have ended well."""
    from openstackclient.shell import OpenStackShell
    from osc_lib import clientmanager

    named = {'--os-cloud': variant.cloud, '--os-region-name': variant.region}
    options = [word for name, value in named.items() if value for word in (name, value)]
    for words in (['compute', 'service', 'list'], ['resource', 'provider', 'list']):
        for cache in vars(clientmanager.ClientManager).values():
            if hasattr(cache, '_handle'):
                cache._handle = None  # it lasts as long as a process, which is a command
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            try:
                status = OpenStackShell().run([*options, *words])
            except SystemExit as stopped:
                status = stopped.code
        if status:
            return False
    return True


@pytest.mark.filterwarnings('ignore')
def test_cloud_is_where_the_openstack_client_finds_it(server, configure):
    pytest.importorskip('openstackclient')
    wrong, found = [], 0
    for name, variant in cloud_variants.VARIANTS.items():
        configure(variant)
        has_ended_well = _ask_with_the_openstack_client(variant)
        end = tuple(server.asked) if has_ended_well else None
        if (end == variant.finds) == (variant.unlike is not None):
            wrong.append((name, end, variant.unlike))
        found += end is not None
    assert wrong == []
    assert found > 30


def test_all_interfaces_of_one_nova_have_one_endpoint(configure, server):
    ends = set()
    for name in ('interface of the cloud', 'interface of one service', 'interface of a variable'):
        variant = cloud_variants.VARIANTS[name]
        configure(variant)
        ends.add(clouds.find(variant.cloud).endpoint)
    assert ends == {f'{server.url}/nova/v2.1'}


@pytest.mark.parametrize(
    ('auth', 'for_once'),
    [
        (generic.Password('http://of', username='ada', password='one'), False),
        (generic.Token('http://of', token='one'), True),
        (v3.Password('http://of', username='ada', password='one'), False),
        (v3.TOTP('http://of', username='ada', passcode='123456'), True),
        (v3.MultiFactor('http://of', ['v3password', 'v3totp'], username='ada', password='one', passcode='1'), True),
        (v3.ApplicationCredential('http://of', application_credential_secret='one'), False),
    ],
)
def test_credentials_that_cannot_be_renewed_are_known(auth, for_once):
    assert clouds._is_for_once(auth) is for_once
