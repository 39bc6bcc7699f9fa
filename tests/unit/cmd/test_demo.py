# SPDX-License-Identifier: Apache-2.0

"""The options of migrator-demo, without a cloud."""

import dataclasses

import pytest

from migrator.cmd import demo
from migrator.demo import options


@pytest.fixture
def refused(capsys):
    """Run with wrong options, and return the one line on stderr."""

    def refused(*words):
        assert demo.main([str(word) for word in words]) == 2
        out, err = capsys.readouterr()
        assert out == ''
        assert err.count('\n') == 1, err
        assert err.startswith('migrator-demo: ')
        return err

    return refused


@pytest.mark.parametrize(
    ('option', 'value', 'would_do'),
    [
        ('--hosts', '1', 'a whole number of 2 or more'),
        ('--hosts', 'many', 'a whole number of 2 or more'),
        ('--hosts', '2.5', 'a whole number of 2 or more'),
        ('--instances', '0', 'a whole number of 1 or more'),
        ('--max-concurrent', '0', 'a whole number of 1 or more'),
        ('--guest-memory', '0', 'a whole number of 1 or more'),
        ('--guest-memory', '-5', 'a whole number of 1 or more'),
        ('--dirty-rate', '-1', 'a number of 0 or more'),
        ('--dirty-rate', 'nan', 'a number of 0 or more'),
        ('--bandwidth', '0', 'a number above 0'),
        ('--bandwidth', 'inf', 'a number above 0'),
        ('--bandwidth', 'fast', 'a number above 0'),
        ('--seed', 'x', 'a whole number of 0 or more'),
        ('--serve', '8774', 'such as 127.0.0.1:8774'),
        ('--serve', '127.0.0.1:', 'such as 127.0.0.1:8774'),
        ('--serve', '127.0.0.1:70000', 'such as 127.0.0.1:8774'),
        ('--serve', '0.0.0.0:8774', 'loopback only'),
        ('--serve', '192.0.2.7:8774', 'loopback only'),
        ('--serve', 'example.org:8774', 'loopback only'),
        ('--placement', '[::]:8778', 'loopback only'),
    ],
)
def test_wrong_value_is_refused_with_option_and_allowed_values(refused, option, value, would_do):
    said = refused(f'{option}={value}')
    assert f"{option} is '{value}'" in said
    assert would_do in said


@pytest.mark.parametrize(
    ('words', 'about'),
    [
        (['--instances', 90000], '--instances is 90000: with --hosts 4'),
        (
            ['--hosts', 2, '--instances', 30000],
            'room for 8192 and the migration of half of them, since each host has proc',
        ),
        (
            ['--instances', 90000, '--guest-memory', 10**6],
            'since each host has memory for --guest-memory 1000000 for 16',
        ),
        (['--guest-memory', 10**9], f'--guest-memory is {10**9}'),
        (['--dirty-rate', 10**9], f'--dirty-rate is {10**9:g}'),
        (['--placement', '127.0.0.1:0'], '--serve'),
        (['--serve', '127.0.0.1:0', '--json'], '--json'),
        (['--serve', '127.0.0.1:0', '--kill', 'host1'], '--kill is host1 with --serve'),
        (['--kill', 'host5'], "--kill is 'host5': the hosts are host1 to host4"),
    ],
)
def test_conflicting_options_are_refused_before_anything_starts(refused, words, about):
    assert about in refused(*words)


@pytest.mark.parametrize('words', [['--host', '3'], ['--burn'], ['now'], ['--hosts']])
def test_unknown_option_is_refused_in_one_line(refused, words):
    assert '--help' in refused(*words)


def test_largest_number_of_guests_that_fits_is_accepted(capsys):
    for hosts in (2, 3, 9):
        settings = options.Settings(hosts=hosts, instances=10**6)
        most = int(options.misfit(settings).partition('room for ')[2].split()[0])
        assert options.misfit(options.Settings(hosts=hosts, instances=most)) is None
        assert options.misfit(options.Settings(hosts=hosts, instances=most + 1))


def test_help_has_every_option(capsys):
    assert demo.main(['--help']) == 0
    said = capsys.readouterr().out
    for field in dataclasses.fields(options.Settings):
        assert f'--{field.name.replace("_", "-")}' in said
