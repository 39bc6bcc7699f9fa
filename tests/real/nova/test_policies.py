# SPDX-License-Identifier: Apache-2.0

"""Each file of policies allows here what it allows in the nova that is installed."""

import json
import subprocess

import pytest
from oslo_config import cfg

from migrator import context
from migrator.api import policies
from migrator.api.policies import nova
from tests.real.nova import lab as labs

TARGET = {'project_id': 'blue', 'user_id': 'ada'}
ROLES = (['reader'], ['member', 'reader'], ['manager', 'member', 'reader'], ['admin', 'manager', 'member', 'reader'])
CALLERS = [
    {'user_id': user, 'project_id': project, 'roles': roles}
    for roles in (*ROLES, ['boss'], ['boss', 'reader'], [])
    for user, project in (('ada', 'blue'), ('eve', 'blue'), ('eve', 'red'))
]
CHECKS = ('@', '!', 'role:reader', 'role:admin', 'rule:admin_or_owner', 'rule:admin_api', 'is_admin:True')
BASES = {
    'context_is_admin': ('role:boss', 'role:admin or role:boss', '!'),
    'admin_api': ('is_admin:True', 'role:boss', '!'),
    'admin_or_owner': ('is_admin:True or project_id:%(project_id)s', 'user_id:%(user_id)s', '!'),
    'project_reader_api': ('role:boss', '!'),
    'project_member_api': ('role:reader and project_id:%(project_id)s',),
    'project_manager_api': ('role:boss',),
    'project_reader_or_admin': ('rule:admin_api',),
}


def files():
    """Return the files: nova's defaults, and restrictions under the newer names, the older ones, and both."""
    older = {old.name: [new for new, one in nova.OLDER.items() if one.name == old.name] for old in nova.OLDER.values()}
    made = [{}, None]
    for names in ([rule.name for rule in nova.RULES], [*older]):
        # Each name with each check, in as many files as there are checks.
        made += [
            {name: CHECKS[(place + turn) % len(CHECKS)] for place, name in enumerate(names)}
            for turn in range(len(CHECKS))
        ]
    made += [{name: check} for name, checks in BASES.items() for check in checks]
    for first, second in (('@', '!'), ('!', '@'), ('role:member', '!')):
        made.append({name: check for old, (new, *_) in older.items() for name, check in ((old, first), (new, second))})
    return [None if one is None else ''.join(f'"{name}": "{check}"\n' for name, check in one.items()) for one in made]


def allowed(tmp_path, text):
    """Return what our policies allow each caller."""
    path = tmp_path / 'policy.yaml'
    path.write_text(text)
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[], default_config_dirs=[])
    policies.make_enforcer(conf)  # which registers the option
    conf.set_override('policy_file', str(path), 'oslo_policy')
    made = policies.make_enforcer(conf)
    made.suppress_deprecation_warnings = True
    callers = [context.RequestContext(**caller, overwrite=False) for caller in CALLERS]
    for one in callers:
        one.is_admin = made.authorize('context_is_admin', {}, one)
    return {rule.name: [bool(made.authorize(rule.name, TARGET, one)) for one in callers] for rule in nova.RULES}


@pytest.mark.usefixtures('_need_nova')
@pytest.mark.filterwarnings('ignore:Polic')
def test_each_file_allows_what_it_allows_in_nova(tmp_path):
    asked = {
        'files': files(),
        'rules': [rule.name for rule in nova.RULES],
        'callers': CALLERS,
        'target': TARGET,
    }
    program = [labs.PYTHON, '-W', 'ignore', labs.HERE / 'decide_policies.py']
    done = subprocess.run(program, input=json.dumps(asked), capture_output=True, text=True, check=True, timeout=600)
    found = json.loads(done.stdout)
    different = []
    for text, theirs in zip(asked['files'], found['answers'], strict=True):
        ours = allowed(tmp_path, found['defaults'] if text is None else text)
        different += [
            f'{text!r}: {name}: {caller}: nova says {wanted}'
            for name in asked['rules']
            for caller, wanted, answer in zip(CALLERS, theirs[name], ours[name], strict=True)
            if wanted != answer
        ]
    assert different == []
    assert len(found['answers']) == len(asked['files'])
