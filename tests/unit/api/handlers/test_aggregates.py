# SPDX-License-Identifier: Apache-2.0

"""Host aggregates, of which there are none."""


def test_an_administrator_is_told_that_there_are_none(world):
    assert world.get('/os-aggregates') == {'aggregates': []}


def test_others_are_told_nothing(world):
    world.refuses(world.ask('GET', '/os-aggregates', token='ada:blue'), 403, 'forbidden', 'os-aggregates:index')
