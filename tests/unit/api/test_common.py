# SPDX-License-Identifier: Apache-2.0

"""The shared parts of the handlers."""

import datetime

import pytest

from migrator.api import common
from migrator.objects import times


@pytest.mark.parametrize(
    ('text', 'number'),
    [('1', 1), ('007', 7), ('2147483647', 2147483647), ('2147483648', None), ('9' * 30, None), ('', None), ('-1', None),
     ('1.0', None), ('x', None), ('1\n', None), ('٣', None)],
)  # fmt: skip
def test_integer_id_returns_none_if_it_does_not_fit_into_the_database(text, number):
    assert common.integer_id(text) == number


def test_times_are_in_utc_whatever_zone_they_come_in():
    moment = datetime.datetime(2026, 1, 31, 14, 0, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))
    assert times.iso(moment) == '2026-01-31T13:00:00.000000'
    assert common.zulu(moment) == '2026-01-31T13:00:00Z'
    assert times.iso(None) is None


def test_the_next_page_keeps_every_parameter_but_the_marker(make_request):
    request = make_request('/v2.1/servers?limit=2&name=a%26b&marker=old&status=A&status=B')
    (link,) = common.next_link(request, 'servers_links', 2, ['one', 'two'])['servers_links']
    assert link['rel'] == 'next'
    assert link['href'].endswith('/v2.1/servers?limit=2&name=a%26b&status=A&status=B&marker=two')
    assert common.next_link(request, 'servers_links', 3, ['one', 'two']) == {}
    assert common.next_link(request, 'servers_links', 0, []) == {}
