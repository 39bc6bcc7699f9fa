# SPDX-License-Identifier: Apache-2.0

"""Host aggregates: the list is always empty."""


def test_administrator_gets_an_empty_list(world):
    assert world.get('/os-aggregates') == {'aggregates': []}


def test_other_users_get_403(world):
    world.refuses(world.ask('GET', '/os-aggregates', token='ada:blue'), 403, 'forbidden', 'os-aggregates:index')
