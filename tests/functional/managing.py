# SPDX-License-Identifier: Apache-2.0

"""An operator who runs migrator-manage on the cloud of a test; the fixture is ``operator``."""

import re

from migrator.cmd import manage

_UUID = re.compile(r'(req-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}')
_MOMENT = re.compile(r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d')
_SPAN = re.compile(r'\b\d+ (s|min|h|d)\b( \d+ (s|min|h)\b)?')
_FREE_MEMORY = re.compile(r'\d+\.\d of (\d+\.\d GiB)')


class Operator:
    """An operator who runs migrator-manage on a cloud."""

    def __init__(self, cloud, capsys, directory):
        self._cloud, self._capsys = cloud, capsys
        self._file = directory / 'migrator.conf'
        self._file.write_text(f'[database]\nconnection = sqlite:///{cloud.backend.directory}/migrator.sqlite\n')

    def __call__(self, *words):
        """Run a command; return its exit status, and what it said on stdout."""
        client = self._cloud.rpc_for('api', 'manage:manage')
        self._capsys.readouterr()
        argv = ['--config-file', str(self._file), *words]
        status = manage.main(argv, threads=self._cloud.world.threads, client=client)
        return status, self._capsys.readouterr().out

    def shows(self, instance):
        """Return the timeline of a server's newest migration, as it is shown now."""
        uuid = self._cloud.migrations(instance)[-1].uuid
        status, text = self('migration', 'show', uuid)
        assert status == 0
        return normal(text, {uuid: 'MIGRATION', instance.uuid: 'INSTANCE', str(self._file): 'FILE'})


def normal(text, names):
    """Return a timeline with a name for everything that is another in each run."""
    for uuid, name in names.items():
        text = text.replace(uuid, name)
    found = {}

    def named(match):
        kind = 'REQUEST' if match[1] else 'UUID'
        return found.setdefault(match[0], f'{kind}-{1 + sum(one.startswith(kind) for one in found.values())}')

    text = _UUID.sub(named, text)
    text = _FREE_MEMORY.sub(r'N of \1', _SPAN.sub('N s', _MOMENT.sub('YYYY-MM-DD HH:MM:SS', text)))
    head, timeline, rest = re.split(r'(?ms)^(Timeline.*?\n\n)', text, maxsplit=1)
    # The width of a column is that of what is widest in it.
    return head + timeline + re.sub(r'(?<=\S) {3,}', '  ', rest)
