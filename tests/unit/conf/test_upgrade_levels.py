# SPDX-License-Identifier: Apache-2.0

import pytest
from oslo_config import cfg

from migrator import exception
from migrator.compute import rpcapi
from migrator.conductor import rpcapi as conductor_rpcapi
from migrator.conf import upgrade_levels


@pytest.fixture
def conf():
    conf = cfg.ConfigOpts()
    upgrade_levels.register_opts(conf)
    conf([])
    return conf


@pytest.mark.parametrize(('of', 'api'), [('compute', rpcapi), ('conductor', conductor_rpcapi)])
def test_version_is_the_newest_for_auto_and_else_a_known_one(conf, of, api):
    assert upgrade_levels.version(conf, of, api.VERSIONS) == api.VERSION
    for version in api.VERSIONS:
        conf.set_override(of, version, 'upgrade_levels')
        assert upgrade_levels.version(conf, of, api.VERSIONS) == version
    assert max(api.VERSIONS) == api.VERSION


@pytest.mark.parametrize('level', ['2.0', '1', 'train', ''])
def test_unknown_rpc_version_is_refused_with_the_known_ones(conf, level):
    conf.set_override('compute', level, 'upgrade_levels')
    with pytest.raises(exception.ConfigurationError) as raised:
        upgrade_levels.version(conf, 'compute', rpcapi.VERSIONS)
    known = ' or '.join(rpcapi.VERSIONS)
    assert str(raised.value) == f'Option [upgrade_levels] compute is {level!r}: give auto, or {known}.'
