# SPDX-License-Identifier: Apache-2.0

"""The containers of contrib/container as processes of one machine, without a container runtime.

The packages of the image are installed first, by its own command, into a virtual environment.
Each container's command runs with its environment and its files, and again while it fails, as compose.yaml says.
RabbitMQ and PostgreSQL are Debian's. The names of all containers lead to this machine.
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
import yaml

from tests.real import test_install

HERE = test_install.ROOT / 'contrib/container'
PASSWORD = 'a1b2c3d4e5'
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get('MIGRATOR_COMPOSE'), reason='make test-long runs it: it takes minutes of CPU'
    ),
]

#: RabbitMQ and PostgreSQL as the environments of their images make them.
SERVERS = """
echo '127.0.0.1 rabbitmq database keystone placement' >> /etc/hosts
service rabbitmq-server start
rabbitmqctl await_startup
rabbitmqctl add_user {password}
rabbitmqctl set_permissions migrator '.*' '.*' '.*'
service postgresql start
su postgres -c psql <<END
CREATE ROLE migrator SUPERUSER LOGIN PASSWORD '{bare}';
CREATE DATABASE migrator OWNER migrator;
END
PGPASSWORD={bare} psql --host database --username migrator --file {sql} migrator
PATH=/usr/local/lib/migrator/bin:$PATH
mkdir -p /var/log/units
"""


def interpolated(value):
    """Return a value with the password of the environment."""
    return re.sub(r'\$\{MIGRATOR_PASSWORD[^}]*\}', PASSWORD, str(value))


def container(name, service):
    """Yield the lines that start a container."""
    for volume in service.get('volumes', ()):
        source, target = volume.split(':')[:2]
        if source.startswith('./'):
            yield f'install -D -m 0644 {HERE / source} {target}'
    environment = {key: interpolated(value) for key, value in service.get('environment', {}).items()}
    given = shlex.join(['env', *(f'{key}={value}' for key, value in environment.items())])
    yield f'install -d -o migrator -g migrator /var/lib/migrator/{name}'
    command = f'cd /var/lib/migrator/{name} && until {given} {interpolated(service["command"])}; do sleep 1; done'
    yield f'setpriv --reuid migrator --regid migrator --clear-groups sh -c {shlex.quote(command)} \\'
    yield f'    > /var/log/units/{name} 2>&1 < /dev/null &'


def installed(steps):
    """Install what the image has, by the image's command, and return the Python of it."""
    (command,) = [step for step in steps if step.startswith('pip ')]
    place = test_install.ROOT / 'build/image'  # the machine sees it: below /tmp it might not
    python = str(place / 'bin/python')
    subprocess.run([sys.executable, '-m', 'venv', '--clear', str(place)], check=True)
    words = shlex.split(command.replace('/usr/src/migrator', str(test_install.ROOT)))
    subprocess.run([python, '-m', *words], check=True, env={**os.environ, 'PIP_USER': '0'})
    return python


def test_host_of_the_compose_file_is_drained(tmp_path):
    test_install.needs_a_machine()
    services = yaml.safe_load((HERE / 'compose.yaml').read_text())['services']
    image = (HERE / 'Containerfile').read_text()
    steps = [line.removeprefix('RUN ') for line in image.splitlines() if line.startswith('RUN ')]
    lines = [SERVERS.format(password=f'migrator {PASSWORD}', bare=PASSWORD, sql=HERE / 'databases.sql')]
    lines += [step for step in steps if not step.startswith('pip ')]
    for name, service in services.items():
        if service['image'] == 'migrator':
            lines += container(name, service)
    # What the page has its reader type, on this machine and not in a container.
    page = pathlib.Path(test_install.PAGE).read_text()
    typed = re.search(r'\n    (guest=\S+\n    until docker compose exec.*?--wait host1\n)\n', page, re.DOTALL).group(1)
    inside = ' '.join(f'{key}={interpolated(value)}' for key, value in services['conductor']['environment'].items())
    lines += [
        f'MIGRATOR_PASSWORD={PASSWORD}',
        re.sub(r'\n    ', '\n', typed).replace('docker compose exec conductor', f'env {inside}'),
        'openstack server show $guest -c OS-EXT-SRV-ATTR:host -c status',
    ]  # fmt: skip
    output = test_install.type_on_a_machine(tmp_path, lines, installed(steps))
    assert re.search(r'OS-EXT-SRV-ATTR:host +\| host2', output), output
    assert re.search(r'status +\| ACTIVE', output), output
