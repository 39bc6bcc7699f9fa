# SPDX-License-Identifier: Apache-2.0

"""The sample configuration that the package installs: ``tox -e genconfig`` makes it."""

import pathlib
import re

from migrator.conf import opts, service

SAMPLE = pathlib.Path(__file__).parents[3] / 'etc/migrator/migrator.conf.sample'


def plain(text):
    return ' '.join(text.replace('\n#', '\n').split())


def test_sample_has_every_option_of_migrator_with_its_present_help():
    _, *parts = re.split(r'^\[(\w+)\]$', SAMPLE.read_text(), flags=re.MULTILINE)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    texts = {name: plain(text) for name, text in sections.items()}
    listed = [*opts.list_opts(), *service.list_opts()]
    found = [(str(group or 'DEFAULT'), one) for group, some in listed for one in some]
    missing = [
        f'[{group}] {one.name}'
        for group, one in found
        if f'\n#{one.dest} =' not in sections.get(group, '') or plain(one.help) not in texts[group]
    ]
    assert missing == [], 'run tox -e genconfig'
