# SPDX-License-Identifier: Apache-2.0

"""Options of the REST API, and where it may listen."""

import pytest
from oslo_config import cfg

from migrator import exception
from migrator.conf import api


@pytest.fixture
def conf():
    conf = cfg.ConfigOpts()
    api.register_opts(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    return conf


def test_the_defaults_are_the_documented_ones(conf):
    assert conf.api.auth_strategy == 'keystone'
    assert (conf.api.max_limit, conf.api.max_queued_live_migrations, conf.api.sync_timeout) == (1000, 1000, 20)
    assert conf.api.noauth2_beyond_loopback is False


def test_each_option_says_type_unit_and_default():
    for _group, options in api.list_opts():
        for option in options:
            assert 'default' in option.help
            assert option.help.strip().endswith('.')


@pytest.mark.parametrize('address', ['127.0.0.1', '127.1.2.3', '::1', '[::1]', 'localhost'])
def test_noauth2_binds_to_loopback(conf, address):
    conf.set_override('auth_strategy', 'noauth2', group='api')
    api.check_bind(conf, address)


@pytest.mark.parametrize('address', ['', '0.0.0.0', '::', '10.1.2.3', 'controller', 'localhost.example.org'])  # noqa: S104 -- it is refused
def test_noauth2_binds_beyond_loopback_only_with_its_option(conf, address):
    conf.set_override('auth_strategy', 'noauth2', group='api')
    with pytest.raises(exception.ConfigurationError) as caught:
        api.check_bind(conf, address)
    assert 'auth_strategy' in caught.value.message
    assert 'noauth2_beyond_loopback' in caught.value.message
    conf.set_override('noauth2_beyond_loopback', True, group='api')
    api.check_bind(conf, address)


def test_keystone_binds_anywhere(conf):
    api.check_bind(conf, '0.0.0.0')  # noqa: S104 -- this is what is tested
