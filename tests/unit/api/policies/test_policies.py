# SPDX-License-Identifier: Apache-2.0

"""The policies: nova's names, and the default of each."""

import os
import pathlib
import re

import pytest
from oslo_config import cfg
from oslo_policy import opts as oslo_policy_opts
from oslo_policy import policy

from migrator import context, exception
from migrator.api import policies

ADMIN, MANAGER, MEMBER, READER = 'admin', 'manager', 'member', 'reader'
#: Every user of any project.
ANYONE = 'anyone'

#: What doc and clients rely on: the lowest role of the own project that may.
DEFAULTS = {
    'os_compute_api:os-migrate-server:migrate_live': MANAGER,
    'os_compute_api:os-migrate-server:migrate_live:host': ADMIN,
    'os_compute_api:servers:migrations:index': MANAGER,
    'os_compute_api:servers:migrations:index:host': ADMIN,
    'os_compute_api:servers:migrations:show': ADMIN,
    'os_compute_api:servers:migrations:delete': MANAGER,
    'os_compute_api:servers:migrations:force_complete': MANAGER,
    'os_compute_api:os-migrations:index': MANAGER,
    'os_compute_api:os-migrations:index:all_projects': ADMIN,
    'os_compute_api:os-migrations:index:host': ADMIN,
    'os_compute_api:os-aggregates:index': ADMIN,
    'os_compute_api:os-server-groups:index': READER,
    'os_compute_api:os-server-groups:index:all_projects': ADMIN,
    'os_compute_api:os-availability-zone:list': ANYONE,
    'os_compute_api:os-availability-zone:detail': ADMIN,
    'os_compute_api:os-services:list': ADMIN,
    'os_compute_api:os-services:update': ADMIN,
    'os_compute_api:os-services:delete': ADMIN,
    'os_compute_api:os-hypervisors:list': ADMIN,
    **dict.fromkeys(
        [
            f'migrator:drains:{name}'
            for name in ('index', 'show', 'create', 'pause', 'resume', 'cancel', 'restore', 'retry', 'report', 'purge')
        ],
        ADMIN,
    ),
    **dict.fromkeys(
        [
            f'migrator:maintenances:{name}'
            for name in (
                *('index', 'show', 'create', 'pause', 'resume', 'cancel', 'begin', 'done', 'fail', 'retry', 'skip'),
                'purge',
            )
        ],
        ADMIN,
    ),
    **dict.fromkeys(
        [f'migrator:migrations:{name}' for name in ('index', 'show', 'retry', 'abandon', 'purge')],
        ADMIN,
    ),
    **dict.fromkeys([f'migrator:cleanups:{name}' for name in ('index', 'show', 'retry', 'discard')], ADMIN),
    'migrator:events:index': ADMIN,
    'migrator:attention:index': ADMIN,
    'migrator:findings:index': ADMIN,
    'migrator:services:index': ADMIN,
    'migrator:hosts:index': ADMIN,
    'migrator:differences:index': ADMIN,
    'migrator:hosts:show': ADMIN,
    'os_compute_api:os-hypervisors:list-detail': ADMIN,
    'os_compute_api:os-hypervisors:show': ADMIN,
    'os_compute_api:os-hypervisors:search': ADMIN,
    'os_compute_api:os-hypervisors:servers': ADMIN,
    'os_compute_api:os-hypervisors:statistics': ADMIN,
    'os_compute_api:os-hypervisors:uptime': ADMIN,
    'os_compute_api:os-instance-actions:list': READER,
    'os_compute_api:os-instance-actions:show': READER,
    'os_compute_api:os-instance-actions:events': ADMIN,
    'os_compute_api:os-instance-actions:events:details': ADMIN,
    'os_compute_api:os-evacuate': ADMIN,
    'os_compute_api:os-migrate-server:migrate': MANAGER,
    'os_compute_api:os-migrate-server:migrate:host': ADMIN,
    'os_compute_api:servers:confirm_resize': MEMBER,
    'os_compute_api:servers:resize': MEMBER,
    'os_compute_api:servers:revert_resize': MEMBER,
    'os_compute_api:os-admin-actions:reset_state': ADMIN,
    'os_compute_api:os-lock-server:lock': MEMBER,
    'os_compute_api:os-lock-server:unlock': MEMBER,
    'os_compute_api:os-lock-server:unlock:unlock_override': ADMIN,
    'os_compute_api:servers:index': READER,
    'os_compute_api:servers:index:get_all_tenants': ADMIN,
    'os_compute_api:servers:detail': READER,
    'os_compute_api:servers:detail:get_all_tenants': ADMIN,
    'os_compute_api:servers:show': READER,
    'os_compute_api:servers:show:host_status': ADMIN,
    'os_compute_api:os-server-diagnostics': ADMIN,
    'os_compute_api:os-extended-server-attributes': ADMIN,
    'os_compute_api:os-flavor-extra-specs:index': READER,
    'os_compute_api:os-flavor-extra-specs:show': READER,
}
LADDER = [READER, MEMBER, MANAGER, ADMIN]


def enforcer(tmp_path, text=None):
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[], default_config_dirs=[])
    oslo_policy_opts.set_defaults(conf, str(tmp_path / 'policy.yaml'))
    if text:
        (tmp_path / 'policy.yaml').write_text(text)
    return policies.make_enforcer(conf)


def who(role, project='blue'):
    return context.RequestContext(
        user_id='eve', project_id=project, roles=LADDER[: LADDER.index(role) + 1], overwrite=False
    )


def test_table_of_this_test_has_every_policy():
    names = {rule.name for rule in policies.list_rules() if isinstance(rule, policy.DocumentedRuleDefault)}
    assert names == set(DEFAULTS)


@pytest.mark.parametrize('name', sorted(DEFAULTS))
def test_default_of_each_policy(tmp_path, name):
    made = enforcer(tmp_path)
    target = {'project_id': 'blue', 'user_id': 'ada'}
    for role in LADDER:
        anyone = DEFAULTS[name] == ANYONE
        may = anyone or LADDER.index(role) >= LADDER.index(DEFAULTS[name])
        assert made.authorize(name, target, who(role)) is may, role
        assert made.authorize(name, target, who(role, 'red')) is (anyone or role == ADMIN), role


def test_every_policy_is_documented_and_scoped_to_a_project():
    for rule in policies.list_rules():
        assert rule.description
        if isinstance(rule, policy.DocumentedRuleDefault):
            assert rule.operations
            assert rule.scope_types == ['project']


def test_policy_file_with_novas_names_works(tmp_path):
    made = enforcer(
        tmp_path,
        '"os_compute_api:os-migrate-server:migrate_live": "rule:admin_or_owner"\n'
        '"os_compute_api:os-services:list": "rule:admin_api or role:reader"\n',
    )
    target = {'project_id': 'blue'}
    assert made.authorize('os_compute_api:os-migrate-server:migrate_live', target, who(READER))
    assert not made.authorize('os_compute_api:os-migrate-server:migrate_live', target, who(READER, 'red'))
    assert made.authorize('os_compute_api:os-services:list', target, who(READER, 'red'))


#: What nova 34 still honours in a policy file, by its own list of rules.
OLDER = {
    'os_compute_api:os-services': ['os-services:list', 'os-services:update', 'os-services:delete'],
    'os_compute_api:os-hypervisors': [
        f'os-hypervisors:{one}' for one in ['list', 'list-detail', 'statistics', 'show', 'uptime', 'search', 'servers']
    ],
    'os_compute_api:os-instance-actions': ['os-instance-actions:list', 'os-instance-actions:show'],
    'os_compute_api:os-migrate-server:migrate_live': ['os-migrate-server:migrate_live:host'],
    'os_compute_api:os-migrations:index': ['os-migrations:index:all_projects', 'os-migrations:index:host'],
    'os_compute_api:servers:migrations:index': ['servers:migrations:index:host'],
}


def test_older_names_are_those_of_nova():
    found = {}
    for rule in policies.list_rules():
        if rule.deprecated_rule is not None:
            found.setdefault(rule.deprecated_rule.name, []).append(rule.name.removeprefix('os_compute_api:'))
    assert {name: sorted(rules) for name, rules in found.items()} == {name: sorted(one) for name, one in OLDER.items()}


@pytest.mark.filterwarnings('ignore:Policy')
@pytest.mark.parametrize('old', OLDER)
def test_older_name_of_a_rule_counts_until_the_newer_one_is_given(tmp_path, old):
    newer, target = [f'os_compute_api:{one}' for one in OLDER[old]], {'project_id': 'blue'}
    made = enforcer(tmp_path, f'"{old}": "role:member"\n')
    for name in newer:
        assert made.authorize(name, target, who(MEMBER))
        assert not made.authorize(name, target, who(READER))
    (tmp_path / 'both').mkdir()
    made = enforcer(tmp_path / 'both', f'"{old}": "role:member"\n"{newer[0]}": "!"\n')
    assert not made.authorize(newer[0], target, who(ADMIN))


def test_older_default_of_nova_for_administrators_works(tmp_path):
    made = enforcer(tmp_path, '"admin_api": "is_admin:True"\n"os_compute_api:os-services:list": "rule:admin_api"\n')
    admin, other = who(READER), who(ADMIN)
    admin.is_admin, other.is_admin = True, False
    assert made.authorize('os_compute_api:os-services:list', {}, admin)
    assert not made.authorize('os_compute_api:os-services:list', {}, other)


WRONG = ['a: [', '- a\n- b\n', '42', '"os_compute_api:servers:index": 5', '\x00\x01']


@pytest.mark.parametrize('text', WRONG)
def test_file_that_is_none_of_policies_is_an_error_at_once(tmp_path, text):
    made = enforcer(tmp_path, text)
    with pytest.raises(exception.ConfigurationError, match=r'\[oslo_policy\] policy_file.*policy.yaml.*correct it'):
        made.load_rules()


@pytest.mark.parametrize('text', WRONG)
def test_rules_stay_if_their_file_becomes_none_of_policies(tmp_path, text, caplog):
    made, target = enforcer(tmp_path, '"os_compute_api:servers:index": "!"\n'), {'project_id': 'blue'}
    assert not made.authorize('os_compute_api:servers:index', target, who(ADMIN))
    file = tmp_path / 'policy.yaml'
    file.write_text(text)
    os.utime(file, (2e9, 2e9))
    for _ in range(2):
        assert not made.authorize('os_compute_api:servers:index', target, who(ADMIN))
        assert made.authorize('os_compute_api:servers:show', target, who(READER))
    assert [record.levelname for record in caplog.records] == ['ERROR']
    file.write_text('"os_compute_api:servers:index": "@"\n')
    os.utime(file, (2.1e9, 2.1e9))
    assert made.authorize('os_compute_api:servers:index', target, who(READER))


def test_enforcer_for_the_generators_has_every_policy():
    assert set(policies.get_enforcer().registered_rules) == {rule.name for rule in policies.list_rules()}


def test_enforcers_share_nothing(tmp_path):
    (tmp_path / 'other').mkdir()
    first = enforcer(tmp_path, '"os_compute_api:servers:index": "!"\n')
    second = enforcer(tmp_path / 'other')
    target = {'project_id': 'blue'}
    assert not first.authorize('os_compute_api:servers:index', target, who(ADMIN))
    assert second.authorize('os_compute_api:servers:index', target, who(ADMIN))


def test_the_sample_has_each_policy_with_its_default_and_its_description():
    """The sample once lacked the policies of cold migrations. ``make genpolicy`` writes it."""
    sample = pathlib.Path(__file__).parents[4] / 'etc/migrator/policy.yaml.sample'
    text = sample.read_text(encoding='utf-8')
    rules = policies.list_rules()
    assert dict(re.findall('^#"(.+?)": "(.*)"$', text, re.M)) == {rule.name: rule.check_str for rule in rules}
    words = ' '.join(text.replace('#', ' ').split())
    assert [rule.name for rule in rules if ' '.join((rule.description or '').split()) not in words] == []
