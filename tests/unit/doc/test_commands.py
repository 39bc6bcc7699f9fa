# SPDX-License-Identifier: Apache-2.0

"""Each command line of the documentation is run or parsed, or is listed with the reason why not."""

import importlib
import re
from importlib import metadata

import pytest

from tests.unit.doc import commands
from tests.unit.operator.cli.conftest import operator

__all__ = ['operator']

#: Programs that are not run here.
NOT_RUN = {
    'curl': 'it needs a server; tests/real/test_install.py has those of install.rst',
    'migrator-api': 'it is a service; tests/real/test_install.py starts it as install.rst does',
    'migrator-compute': 'as migrator-api',
    'migrator-conductor': 'as migrator-api',
    'migrator-demo': 'tests/unit/cmd/test_demo.py runs it',
    'migrator-fake-world': 'it is a service; tests/real starts it',
    'nova': 'a command of Nova that is named as one not to use',
    'nova-manage': 'a command of Nova; tests/real/nova runs it',
    'pip': 'it installs packages; tests/real/test_install.py runs those of install.rst',
    'systemctl': 'it needs systemd; tests/unit/test_units.py reads the units',
    'virsh': 'it needs libvirt; tests/real/libvirt has guests that are moved with it',
}
#: The beginning of command lines of migrator-manage that are only parsed.
PARSED = {
    ('maintenance',): 'it needs the REST API, as in tests/unit/operator/cli/test_maintenance.py',
    ('watch',): 'it reads the REST API, as tests/functional/test_watch.py does',
    ('drain', 'start', 'host1', '--reason', 'new firmware', '--watch'): 'as watch',
    ('drain', 'start', 'host1', '--watch'): 'as watch',
    ('db', 'sync'): 'tests/unit/operator/cli/test_db.py runs it on a new database',
    ('instance', 'reconcile'): 'it may ask; tests/unit/operator/cli/test_reconcile.py answers',
}


@pytest.fixture
def filled(operator):
    """A cloud with a guest that has moved, a drain, and names for what pages write in capitals."""
    cloud = operator.cloud
    guest = cloud.boot('web', 'host1')
    cloud.live_migrate(guest, 'host2')
    cloud.wait()
    drain = operator.json('drain', 'start', 'host3')['uuid']
    cloud.simulation.run_until(lambda: cloud.database.drains.get(drain).ended)
    (migration,) = cloud.database.migrations.list()
    return {
        'HOST': 'host2', 'ID': str(migration.id), 'MIGRATION': 'web', 'SERVER': 'web', 'DRAIN': drain,
        'UUID': migration.uuid, 'FILE': 'none', '$guest': '6ef5d0b8-0d2b-4d36-9d3a-0d7b0a6c3c11',
    }  # fmt: skip


def test_each_command_line_of_migrator_manage_is_run(operator, filled):
    wrong, run = [], 0
    for words, page in commands.of('migrator-manage').items():
        given = [filled.get(word, word) for word in words]
        if given[:1] == ['--config-file']:
            given = given[2:]
        if len(given) <= 2 and given[-1:] != ['--help'] and operator.status(*given)[0] == 2:
            given = [*given, '--help']  # it only names the verb
        elif any(tuple(given[: len(one)]) == one for one in PARSED):
            continue
        run += 1
        try:
            status = operator.status(*given)[0]
        except SystemExit as stopped:
            status = stopped.code
        if status not in (0, 1) or 'Traceback' in operator.err:
            wrong.append(f'{page}: migrator-manage {" ".join(words)}: {status} {operator.err.strip()}')
    assert wrong == []
    assert run > 60


def parsers():
    """Return the words of each command of the openstack client -> its class."""
    groups = ('openstack.compute.v2', 'openstack.identity.v3', 'openstack.migrator.v1', 'openstack.common')
    found = {}
    for group in groups:
        for one in metadata.entry_points(group=group):
            found[tuple(one.name.replace('_', ' ').split())] = one
    return found


def test_each_command_line_of_the_openstack_client_is_one_that_it_knows():
    known, wrong, parsed = parsers(), [], 0
    for words, page in commands.of('openstack').items():
        given = [*words]
        if given[0].startswith('--os-compute-api-version'):
            given = given[2:]
        name = next((tuple(given[:n]) for n in range(len(given), 0, -1) if tuple(given[:n]) in known), None)
        if name is None:
            if not any(tuple(given[: len(one)]) == one[: len(given)] for one in known):
                wrong.append(f'{page}: openstack {" ".join(words)}: no such command')
            continue
        rest = [re.sub(r'[^\w.:/-]', 'x', one) for one in given[len(name) :]]
        if not rest:
            continue  # it only names the command
        module = known[name].load()
        parser = module(None, None).get_parser('openstack')
        parsed += 1
        try:
            parser.parse_args(rest)
        except SystemExit:
            wrong.append(f'{page}: openstack {" ".join(words)}')
    assert wrong == []
    assert parsed > 30


def test_each_target_of_make_is_in_the_makefile():
    targets = set(re.findall(r'^([a-z-]+):', (commands.ROOT / 'Makefile').read_text(), re.MULTILINE))
    assert {words[0] for words in commands.of('make')} <= targets


def test_the_other_programs_are_listed_with_the_reason():
    run = {'migrator-manage', 'migrator-drain', 'migrator-status', 'openstack', 'make'}
    assert commands.programs() - run == set(NOT_RUN)
    (check,) = commands.of('migrator-status')
    assert check == ('upgrade', 'check')
    assert importlib.import_module('migrator.cmd.status').main


def test_a_command_line_is_found_in_a_block_and_in_a_sentence():
    text = (
        'Run ``migrator-manage drain\n  list`` or::\n\n    migrator-drain plan host1 \\\n        --parallel 2  # both\n'
    )
    assert commands.lines(text) == ['migrator-drain plan host1 --parallel 2', 'migrator-manage drain list']
