# SPDX-License-Identifier: Apache-2.0

"""The image, the compose file, Kolla's files, and the list of what the image contains."""

import importlib.metadata
import itertools
import json
import pathlib
import re
import shlex
import tomllib

import pytest
import yaml
from packaging import requirements, utils

from migrator.cmd import api, compute, conductor
from migrator.runtime import settings

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / 'contrib/container'
LOCK = HERE / 'requirements.lock'
PROJECT_FILE = tomllib.loads((ROOT / 'pyproject.toml').read_text())
PROJECT = PROJECT_FILE['project']
COMPOSE = yaml.safe_load((HERE / 'compose.yaml').read_text())
KINDS = {'api': api.KIND, 'compute': compute.KIND, 'conductor': conductor.KIND}
#: The programs of the image besides migrator's, and what they belong to.
PROGRAMS = {'sh', 'placement-manage', 'gunicorn', 'keystone-manage', 'openstack'}


def instructions():
    """Return the instructions of the Containerfile."""
    text = '\n'.join(line for line in (HERE / 'Containerfile').read_text().splitlines() if not line.startswith('#'))
    return [line.split(maxsplit=1) for line in text.replace('\\\n', ' ').splitlines() if line]


def test_containerfile_installs_the_image_extra_with_the_locked_versions_and_runs_as_a_user():
    found = instructions()
    assert found[0][0] == 'FROM'
    assert {name for name, _rest in found} <= {'FROM', 'COPY', 'RUN', 'ENV', 'USER', 'WORKDIR', 'CMD'}
    (install,) = [shlex.split(rest) for name, rest in found if name == 'RUN' and rest.startswith('pip ')]
    assert install[-1] == '/usr/src/migrator[image]'
    assert 'image' in PROJECT['optional-dependencies']
    assert install[install.index('--constraint') + 1] == f'/usr/src/migrator/{LOCK.relative_to(ROOT)}'
    assert found[-3] == ['USER', 'migrator']
    unit = (ROOT / 'etc/systemd/migrator-api.service').read_text()
    assert [f'Environment={rest}' in unit.splitlines() for name, rest in found if name == 'ENV'] == [True]
    assert json.loads(found[-1][1])[0] in PROJECT['scripts']


def sent(path):
    """Return whether Docker sends a file to a build.

    The last line of .dockerignore that matches the file, or a folder of it, decides.
    """
    answer = True
    for line in (ROOT / '.dockerignore').read_text().splitlines():
        if line and not line.startswith('#'):
            pattern = re.escape(line.removeprefix('!')).replace(r'\*\*/', '(.*/)?').replace(r'\*', '[^/]*')
            if re.fullmatch(f'{pattern}(/.*)?', str(path)):
                answer = line.startswith('!')
    return answer


def test_image_gets_what_its_installation_reads():
    data = PROJECT_FILE['tool']['setuptools']['data-files']
    patterns = [
        'pyproject.toml',
        'setup.py',
        PROJECT['readme'],
        *PROJECT['license-files'],
        *itertools.chain(*data.values()),
    ]
    files = [file.relative_to(ROOT) for pattern in patterns for file in ROOT.glob(pattern)]
    files += [file.relative_to(ROOT) for file in ROOT.glob('migrator/**/*') if file.suffix not in ('', '.pyc')]
    assert len(files) > 300
    assert [file for file in [*files, LOCK.relative_to(ROOT)] if not sent(file)] == []


@pytest.mark.parametrize(
    'path',
    ['contrib/container/.env', '.env', '.git/config', '.venv/pyvenv.cfg', '.ci/run', 'tests/unit/test_container.py',
     'contrib/container/compose.yaml', 'migrator/api/__pycache__/app.cpython-311.pyc'],
)  # fmt: skip
def test_image_gets_no_secret_no_history_and_no_cache(path):
    assert not sent(path)


def test_each_service_of_compose_runs_a_program_of_the_image_and_mounts_files_that_exist():
    services = COMPOSE['services']
    volumes = set(COMPOSE['volumes'])
    for name, service in services.items():
        assert set(service.get('depends_on', ())) <= set(services), name
        for volume in service.get('volumes', ()):
            source, target, *_mode = volume.split(':')
            assert target.startswith('/')
            assert source in volumes or (HERE / source).is_file(), f'{name}: {volume}'
        if service['image'] == 'migrator':
            program = shlex.split(service['command'])[0]
            assert program in PROJECT['scripts'] or program in PROGRAMS, f'{name}: {program}'
    kinds = [shlex.split(service.get('command', '-'))[0] for service in services.values()]
    assert sorted(kind for kind in kinds if kind in ('migrator-api', 'migrator-conductor', 'migrator-compute')) == [
        'migrator-api', 'migrator-compute', 'migrator-compute', 'migrator-conductor',
    ]  # fmt: skip


@pytest.mark.parametrize('name', ['api', 'conductor', 'host1', 'host2'])
def test_services_of_compose_accept_their_configuration(name, monkeypatch):
    service = COMPOSE['services'][name]
    for option, value in service['environment'].items():
        monkeypatch.setenv(option, re.sub(r'\$\{MIGRATOR_PASSWORD[^}]*\}', 'secret', str(value)))
    kind = KINDS[shlex.split(service['command'])[0].removeprefix('migrator-')]
    conf = settings.read(kind.name, ['--config-file', str(HERE / 'migrator.conf')])
    settings.complete(conf, [kind.register])
    assert conf.host == (name if name.startswith('host') else conf.host)
    if name == 'conductor':
        assert conf.database.connection == 'postgresql+psycopg2://migrator:secret@database/migrator'


def test_compute_hosts_of_compose_get_the_url_of_the_broker_and_no_other_secret():
    services = COMPOSE['services']
    given = {name: set(services[name]['environment']) for name in ('world', 'host1', 'host2')}
    hosts = {'OS_DEFAULT__TRANSPORT_URL', 'OS_DEFAULT__HOST'}
    assert given == {'world': set(), 'host1': hosts, 'host2': hosts}


@pytest.mark.parametrize('name', KINDS)
def test_kolla_starts_a_service_that_exists_with_the_file_that_it_copies(name):
    made = json.loads((ROOT / f'contrib/kolla/migrator-{name}.json').read_text())
    program, option, file = shlex.split(made['command'])
    assert program in PROJECT['scripts']
    assert option == '--config-file'
    assert [each['dest'] for each in made['config_files']] == [file]
    assert set(made) <= {'command', 'config_files', 'permissions'}
    assert all(set(each) == {'source', 'dest', 'owner', 'perm'} for each in made['config_files'])


def locked():
    """Return the locked versions by name."""
    lines = [line.split('==') for line in LOCK.read_text().splitlines()]
    return {utils.canonicalize_name(name): version for name, version in lines}


def needed(texts, extra=''):
    """Yield what these need in the image, and what that needs, as far as it is installed here.

    The image has a Python of its own, and some requirements are for other versions only.
    """
    version = re.search(r':(\d+\.\d+)', instructions()[0][1]).group(1)
    image = {'python_version': version, 'python_full_version': f'{version}.0'}
    waiting, seen = [(text, extra) for text in texts], set()
    while waiting:
        text, extra = waiting.pop()
        one = requirements.Requirement(text)
        if text in seen or (one.marker and not one.marker.evaluate({**image, 'extra': extra})):
            continue
        seen.add(text)
        yield one
        try:
            further = importlib.metadata.requires(one.name) or ()
        except importlib.metadata.PackageNotFoundError:
            continue
        waiting += [(each, extra) for each in further for extra in (*one.extras, '')]


def test_lock_has_every_dependency_of_the_image_and_no_version_below_a_floor():
    extras = PROJECT['optional-dependencies']
    (own,) = [one for one in map(requirements.Requirement, extras['image']) if one.name == PROJECT['name']]
    others = [text for text in extras['image'] if not text.startswith(own.name)]
    texts = [*PROJECT['dependencies'], *others, *(text for extra in own.extras for text in extras[extra])]
    found = locked()
    names = {one: utils.canonicalize_name(one.name) for one in needed(texts)}
    wrong = [str(one) for one, name in names.items() if name not in found or not one.specifier.contains(found[name])]
    assert wrong == []
    assert len(found) > len(texts)
