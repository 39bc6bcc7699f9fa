# SPDX-License-Identifier: Apache-2.0

"""Regular expressions that would keep the API busy forever. test_servers.py tests the other filters."""

import re

import pytest

from migrator import exception
from migrator.api.handlers import server_filters


@pytest.mark.parametrize(
    'text',
    [
        'web', '^web-[0-9]+$', 'a.b', r'web\.example\.org', '(web|db)[0-9]', '.*a.*b', 'a{2}', r'\(\*\+\{', '[*+{|]+',
        '[]*+]x', r'[\]*+(]', '(web)+', '(web-?1)?', '(?i)WEB', '(?:a)(?=b)', '(?:ab)+', '(?P<x>ab)+', '',
        '.*?a.*?b', 'web-?[0-9]?', '|'.join(['vm'] * 30), f'^({"|".join(["vm"] * 30)})$', '(?i:web)+', '[#x]+ ?x',
    ],
)  # fmt: skip
def test_common_patterns_are_accepted(text):
    assert isinstance(server_filters._safe_pattern('name', text), re.Pattern)


@pytest.mark.parametrize(
    'text',
    [
        '(a+)+$', '(a*)*', '((a{1,9}){1,9}){1,9}', '(a|a)*$', '(.+){20}', r'(.*)\1', '(?P<x>a)(?P=x)', 'a*a*a*b',
        '(a+b?)+$', '((a+))+', '([a-z]+[a-z]?)*', '(?:a?)+', '(a)?(?(1)b|c)', '((ab|a)b?){9}',
        'a?' * 30 + 'b', '(a|a)' * 30 + 'b', '}?' * 30 + 'b', '(?x)(a+) +b', '(?x:(a+) +)b', '(a+)(?#comment)+b',
        '(?x)#)', '(?xi)a #(',
    ],
)  # fmt: skip
def test_patterns_with_exponential_matching_are_refused(text):
    with pytest.raises(exception.ValidationError) as caught:
        server_filters._safe_pattern('name', text)
    assert 'name' in caught.value.message
    assert text in caught.value.message
