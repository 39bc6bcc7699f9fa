# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest
import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import options as oslo_db_options

from migrator import exception, executors
from migrator.db import options


@pytest.fixture
def conf():
    conf = cfg.ConfigOpts()
    options.register_opts(conf)
    conf([], project='migrator', default_config_files=[], default_config_dirs=[])
    return conf


@pytest.fixture
def threads():
    return executors.NativeThreads()


def test_the_engine_has_the_options_of_the_section(conf, threads, tmp_path):
    conf.set_override('connection', f'sqlite:///{tmp_path}/x.sqlite', 'database')
    engine = options.engine_from_conf(conf, threads, max_retries=0)
    with engine.writer() as session:
        session.execute(sa.text('CREATE TABLE t (a INTEGER)'))
    engine.dispose()
    assert (tmp_path / 'x.sqlite').exists()


def test_the_engine_knows_every_option_of_the_section(conf, threads, tmp_path, recwarn):
    conf.set_override('connection', f'sqlite:///{tmp_path}/x.sqlite', 'database')
    conf.set_override('max_pool_size', 7, 'database')
    options.engine_from_conf(conf, threads).dispose()
    assert not [warning for warning in recwarn if 'not supported' in str(warning.message)]


@pytest.mark.parametrize('connection', [None, '', 'nowhere', 'nosuch://host/x', 'postgresql+nosuch://host/x'])
def test_the_error_for_an_invalid_connection_names_the_option(conf, threads, connection):
    conf.set_override('connection', connection, 'database')
    with pytest.raises(exception.ConfigurationError, match=r'\[database\] connection is'):
        options.engine_from_conf(conf, threads)


def test_registered_options_are_copies(conf):
    theirs = {opt.name: opt for opt in oslo_db_options.database_opts}
    before = theirs['connection'].default  # which another library in this process may have set
    conf.set_default('connection', 'sqlite:////of/mine', 'database')
    assert theirs['connection'].default == before


@pytest.mark.parametrize(
    ('text', 'without'),
    [
        ('postgresql://u:p@h/x', 'postgresql://***@h/x'),
        (
            'could not reach postgresql+psycopg2://u:p@ss@h/x: refused',
            'could not reach postgresql+psycopg2://***@h/x: refused',
        ),
        ('sqlite:////x.sqlite', 'sqlite:////x.sqlite'),
        ('ask me @ noon', 'ask me @ noon'),
    ],
)
def test_a_password_is_removed_from_a_text(text, without):
    assert options.without_password(text) == without
