# SPDX-License-Identifier: Apache-2.0

"""The options of [placement]."""

from keystoneauth1 import loading
from oslo_config import cfg

from migrator.conf import keystone


def test_register_opts_registers_the_section_with_our_defaults():
    conf = cfg.ConfigOpts()
    keystone.PLACEMENT.register_opts(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    assert conf.placement.service_type == 'placement'
    assert conf.placement.valid_interfaces == ['internal', 'public']
    assert conf.placement.timeout == keystone.DEFAULT_TIMEOUT
    assert conf.placement.auth_type is None


def test_the_options_of_a_plug_in_chosen_in_one_configuration_are_not_required_in_another(tmp_path):
    """An OptGroup at module level would share them."""
    file = tmp_path / 'a.conf'
    file.write_text('[placement]\nauth_type = password\nauth_url = http://identity\n')
    for files in ([str(file)], []):
        conf = cfg.ConfigOpts()
        keystone.PLACEMENT.register_opts(conf)
        conf([], default_config_files=files, default_config_dirs=[])
        loading.load_auth_from_conf_options(conf, keystone.PLACEMENT.group)


def test_registering_twice_raises_nothing():
    conf = cfg.ConfigOpts()
    keystone.PLACEMENT.register_opts(conf)
    keystone.PLACEMENT.register_opts(conf)


def test_the_sample_lists_each_option_once_and_hides_secrets():
    ((group, opts),) = keystone.PLACEMENT.list_opts()
    names = [opt.name for opt in opts]
    assert group.name == 'placement'
    assert len(names) == len(set(names))
    assert {'auth_type', 'auth-url', 'password', 'endpoint-override', 'timeout', 'service-type'} <= set(names)
    assert all(opt.secret for opt in opts if opt.name in ('password', 'token'))


def test_help_of_retry_options_says_that_they_are_ignored():
    ((_group, opts),) = keystone.PLACEMENT.list_opts()
    retries = [opt for opt in opts if 'retries' in opt.name]
    assert len(retries) == 2
    assert all('migrator ignores it' in opt.help for opt in retries)
