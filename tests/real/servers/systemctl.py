# SPDX-License-Identifier: Apache-2.0

"""A stand-in for systemctl where systemd is not the first process: it only starts units.

Units that are installed in :data:`UNITS` are started from their files, with their user, their directories and their
credentials. Other names are Debian's own services, which have scripts besides.
"""

from __future__ import annotations

import configparser
import os
import pathlib
import pwd
import shlex
import shutil
import subprocess
import sys

UNITS = pathlib.Path('/etc/systemd/system')
LOGS = pathlib.Path('/var/log/units')


def start(name: str, file: pathlib.Path) -> None:
    """Start a unit."""
    section = read(name, file)
    user = pwd.getpwnam(section.get('User', 'root'))
    environment = {'PATH': '/usr/local/bin:/usr/bin:/bin', 'PYTHONPATH': os.environ.get('PYTHONPATH', '')}
    for kind, parent in (('Runtime', '/run'), ('State', '/var/lib'), ('Logs', '/var/log')):
        if directory := section.get(f'{kind}Directory'):
            path = pathlib.Path(parent, directory)
            path.mkdir(exist_ok=True)
            os.chown(path, user.pw_uid, user.pw_gid)
    environment |= dict(word.split('=', 1) for word in shlex.split(section.get('Environment', '')))
    if 'LoadCredential' in section:
        known, _, source = section['LoadCredential'].partition(':')
        credentials = pathlib.Path('/run/credentials', f'{name}.service')
        credentials.mkdir(parents=True)
        shutil.copy(source, credentials / known)
        for path in (credentials, credentials / known):
            os.chown(path, user.pw_uid, user.pw_gid)
        environment['CREDENTIALS_DIRECTORY'] = str(credentials)
    LOGS.mkdir(exist_ok=True)
    with (LOGS / name).open('ab') as output:
        subprocess.Popen(
            shlex.split(section['ExecStart']), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            cwd=section.get('WorkingDirectory', '/'), env=environment, start_new_session=True,
            user=user.pw_uid, group=user.pw_gid, extra_groups=[],
        )  # fmt: skip


def read(name: str, file: pathlib.Path) -> configparser.SectionProxy:
    """Return what a unit's file and its drop-ins say of its service."""
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    folders = [UNITS / f'{name}.service.d', *(UNITS / f'{prefix}-.service.d' for prefix in name.split('-')[:1])]
    parsed.read([file, *(path for folder in folders for path in sorted(folder.glob('*.conf')))])
    return parsed['Service']


def main() -> int:
    """Do what the command line says."""
    verb, *words = sys.argv[1:]
    names = [word for word in words if not word.startswith('-')]
    if verb == 'daemon-reload':
        return 0
    if verb not in ('enable', 'restart'):
        print(f'systemctl {verb} is not known here', file=sys.stderr)
        return 2
    for name in names:
        file = UNITS / f'{name}.service'
        if file.exists():
            start(name, file)
        elif verb == 'restart':
            subprocess.run(['service', name, 'restart'], check=True, stdin=subprocess.DEVNULL)
    return 0


if __name__ == '__main__':
    sys.exit(main())
