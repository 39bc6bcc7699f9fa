# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pathlib

import pytest
from oslo_config import cfg

from migrator import exception
from migrator.conf import compute


def read(path: pathlib.Path, text: str) -> cfg.ConfigOpts:
    path.write_text(text)
    conf = cfg.ConfigOpts()
    compute.register_opts(conf)
    conf([], default_config_files=[str(path)])
    return conf


def test_every_option_has_a_valid_default(tmp_path: pathlib.Path) -> None:
    conf = read(tmp_path / 'empty.conf', '')
    assert compute.max_concurrent_live_migrations(conf) == 1
    assert (conf.report_interval, conf.compute.stop_queued, conf.compute.stop_running) == (10, 'cancel', 'leave')
    assert conf.host
    assert conf.compute.service_version_cap is None
    assert conf.compute.adopt_guests is False
    assert compute.live_migration_timeout(conf) == compute.Timeout(per_gib=800, action='abort')


@pytest.mark.parametrize(
    ('value', 'is_right'), [('node_1.site', True), ('10.0.0.1', True), ('a b', False), ('a/b', False)]
)
def test_name_of_a_host_is_one_that_nova_allows(tmp_path: pathlib.Path, value: str, is_right: bool) -> None:
    conf = read(tmp_path / 'host.conf', f'[DEFAULT]\nhost = {value}\n')
    if is_right:
        compute.check(conf)
        assert conf.host == value
    else:
        with pytest.raises(exception.ConfigurationError, match=r'\[DEFAULT\] host'):
            compute.check(conf)


@pytest.mark.parametrize('value', ['0', '-1', 'two', '1.5'])
def test_invalid_limit_is_refused_with_name_and_accepted_values(tmp_path: pathlib.Path, value: str) -> None:
    conf = read(tmp_path / 'wrong.conf', f'[DEFAULT]\nmax_concurrent_live_migrations = {value}\n')
    with pytest.raises(exception.ConfigurationError, match=r'max_concurrent_live_migrations.*number of 1 or more'):
        compute.max_concurrent_live_migrations(conf)


@pytest.mark.parametrize(
    ('line', 'said'),
    [
        (
            'live_migration_completion_timeout = -1',
            r'live_migration_completion_timeout.*number of 0 or more',
        ),
        (
            'live_migration_completion_timeout = soon',
            r'live_migration_completion_timeout.*number of 0 or more',
        ),
        ('live_migration_timeout_action = pray', r'live_migration_timeout_action.*give abort or force_complete'),
        ('live_migration_timeout_action =', r'live_migration_timeout_action.*give abort or force_complete'),
    ],
)
def test_invalid_time_out_is_refused_with_name_and_accepted_values(
    tmp_path: pathlib.Path, line: str, said: str
) -> None:
    conf = read(tmp_path / 'wrong.conf', f'[libvirt]\n{line}\n')
    with pytest.raises(exception.ConfigurationError, match=said):
        compute.live_migration_timeout(conf)


def test_every_option_is_listed_once_and_says_its_type_and_default() -> None:
    listed = compute.list_opts()
    assert [section for section, _ in listed] == ['DEFAULT', 'compute', 'libvirt']
    for _, options in listed:
        for option in options:
            assert 'default' in str(option.help), option.name


@pytest.mark.parametrize(('line', 'version'), [('', 4), ('service_version_cap = 1', 1), ('service_version_cap = 4', 4)])
def test_a_host_reports_the_version_of_this_release_or_an_older_one(
    tmp_path: pathlib.Path, line: str, version: int
) -> None:
    assert compute.service_version(read(tmp_path / 'cap.conf', f'[compute]\n{line}\n'), 4) == version


@pytest.mark.parametrize('value', ['5', '0', '-1', 'old'])
def test_unknown_service_version_is_refused_with_the_known_ones(tmp_path: pathlib.Path, value: str) -> None:
    conf = read(tmp_path / 'cap.conf', f'[compute]\nservice_version_cap = {value}\n')
    with pytest.raises(exception.ConfigurationError, match=r'service_version_cap.*from 1 to 4, the service version of'):
        compute.service_version(conf, 4)
