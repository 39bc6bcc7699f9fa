# SPDX-License-Identifier: Apache-2.0

"""A served cloud of the demo that its own commands break, and what an operator sees and types then."""

import pathlib
import re
import shlex
import sys
import time

import requests

from tests import backends, forked
from tests.functional import commands

SMALL = ('--hosts', '3', '--instances', '4', '--guest-memory', '512')
OPENSTACK = pathlib.Path(sys.executable).parent / 'openstack'


class Rehearsal:
    """A served cloud that its commands break."""

    def __init__(self, tmp_path, served):
        self._tmp_path, self._served = tmp_path, served
        self.url = served.url('Compute API').removesuffix('/v2.1')
        self.file = re.search(r'--config-file (\S+)', served.said)[1]

    def breaks(self, *words, status=0):
        return breaks(self._tmp_path, *words, status=status)

    def send(self, method, path, body=None, token='admin'):
        headers = {'X-Auth-Token': token, 'OpenStack-API-Version': 'compute 2.80'}
        answer = requests.request(method, f'{self.url}{path}', json=body, headers=headers, timeout=commands.PATIENCE)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def act(self, guest, action, arguments=None, token='admin'):
        self.send('POST', f'/v2.1/servers/{guest}/action', {action: arguments}, token)

    def until(self, condition):
        end = time.monotonic() + commands.PATIENCE
        while time.monotonic() < end:
            if found := condition():
                return found
            time.sleep(0.2)
        raise AssertionError(self.send('GET', '/migrator/v1/attention'))

    def lines(self, *kinds):
        """Wait until these kinds need an operator, and return them."""

        def found():
            shown = {one['kind']: one for one in self.send('GET', '/migrator/v1/attention')['attention']}
            return {'': None, **shown} if sorted(shown) == sorted(kinds) else None

        return self.until(found)

    def running(self, host):
        servers = self.send('GET', '/v2.1/servers/detail?all_tenants=1')['servers']
        return [one['id'] for one in servers if one['OS-EXT-SRV-ATTR:host'] == host]

    def force_down(self, host, value):
        (service,) = self.send('GET', f'/v2.1/os-services?host={host}')['services']
        self.send('PUT', f'/v2.1/os-services/{service["id"]}', {'forced_down': value})

    # --- what an operator sees and types -----------------------------------------------------------------------------

    def manage(self, *words):
        return self.run('migrator-manage', '--config-file', self.file, *words)

    def run(self, program, *words):
        """Run a command as an operator types it, and return what has ended."""
        env = commands.environment(self._tmp_path, COLUMNS='999', **self._served.exports())
        if program == 'openstack':
            return commands.client([str(OPENSTACK), *words], env)
        assert program == 'migrator-manage'
        command = [sys.executable, '-m', 'migrator.cmd.manage', *words]
        return forked.run(command, env=env, timeout=commands.PATIENCE)

    def status(self):
        """Return what ``status`` shows: the beginning of a title -> the commands below it."""
        shown, title, ended = {}, '', self.manage('status')
        for line in ended.stdout.splitlines()[1:]:
            if line.startswith('    '):
                shown[title].append(line.strip())
            elif line and not line.startswith(' ') and ':' in line:
                title = line.partition(':')[0]
                shown[title] = []
        assert ended.returncode == (1 if shown else 0), ended.stderr
        return shown

    def until_shown(self, *titles):
        """Wait until ``status`` shows exactly these titles, and return it."""
        return self.until(lambda: ({'': []} | found) if sorted(found := self.status()) == sorted(titles) else None)

    def types(self, line, *more, status=0):
        """Type a command that was shown, as it stands, and return what it prints."""
        ended = self.run(*shlex.split(line), *more)
        assert ended.returncode == status, (line, ended.stdout, ended.stderr)
        return ended.stdout + ended.stderr

    def types_openstack(self, line):
        """Type a command of the client, which may not be installed."""
        if not OPENSTACK.exists():
            backends.left_out('python-openstackclient is not installed')
        return self.types(line)


def breaks(tmp_path, *words, status=0):
    ended = commands.demo(tmp_path, *words)
    assert ended.returncode == status, ended.stderr
    return ended.stdout + ended.stderr
