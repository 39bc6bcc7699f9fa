# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pathlib

import pytest
from oslo_config import cfg

from migrator import exception
from migrator.conf import values

EVERY = cfg.FloatOpt('every', default=5, min=0.1)
CAP = cfg.IntOpt('cap', min=1)
WORD = cfg.StrOpt('word', default='keep', choices=['keep', 'drop'])
SECRET = cfg.IntOpt('secret', default=1, secret=True)
LATER = cfg.IntOpt('later', default=1, mutable=True)
OPTIONS: list[cfg.Opt] = [EVERY, CAP, WORD, SECRET, LATER]


@pytest.fixture
def conf_of(tmp_path: pathlib.Path):
    def read(text: str) -> cfg.ConfigOpts:
        (tmp_path / 'x.conf').write_text(f'[group]\n{text}\n')
        conf = cfg.ConfigOpts()
        conf.register_opts(OPTIONS, group='group')
        conf([], default_config_files=[str(tmp_path / 'x.conf')])
        return conf

    return read


def test_valid_value_is_returned_and_none_if_none_is_the_default(conf_of):
    conf = conf_of('every = 0.5\ncap =')
    assert [values.read(conf, opt, 'group') for opt in (EVERY, CAP, WORD)] == [0.5, None, 'keep']
    values.check(conf, [('group', OPTIONS)])


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        (
            'every = soon',
            "Option [group] every is 'soon': could not convert string to float: 'soon'; give a number",
        ),
        ('every =', "Option [group] every is '': give a number of 0.1 or more."),
        ('word =', "Option [group] word is '': Valid values are [keep, drop], but found ''; give keep or drop."),
        ('secret = hush', "Option [group] secret is '***': "),
    ],
)
def test_invalid_value_is_refused_with_option_and_accepted_values(conf_of, text, said):
    with pytest.raises(exception.ConfigurationError) as reported:
        values.check(conf_of(text), [('group', OPTIONS)])
    assert str(reported.value).startswith(said)


def test_error_after_a_reload_has_the_new_value(conf_of, tmp_path):
    conf = conf_of('later = 2')
    (tmp_path / 'x.conf').write_text('[group]\nlater =\n')
    conf.mutate_config_files()
    with pytest.raises(exception.ConfigurationError, match=r"Option \[group\] later is '': give a whole number"):
        values.read(conf, LATER, 'group')


def test_unregistered_option_raises_no_such_opt_error(conf_of):
    with pytest.raises(cfg.NoSuchOptError):
        values.read(conf_of(''), cfg.IntOpt('other'), 'group')


@pytest.mark.parametrize(
    ('opt', 'words'),
    [
        (cfg.BoolOpt('o'), 'true or false'),
        (cfg.IntOpt('o', min=1), 'a whole number of 1 or more'),
        (cfg.FloatOpt('o', min=0.5, max=2), 'a number of 0.5 or more, 2 at most'),
        (cfg.StrOpt('o', choices=['a', 'b']), 'a or b'),
        (cfg.HostAddressOpt('o'), 'a host name or an address'),
    ],
)
def test_accepted_values_of_each_type(opt, words):
    assert values.accepted(opt) == words
