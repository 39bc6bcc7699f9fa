# SPDX-License-Identifier: Apache-2.0

"""The base rules of the policies, under nova's names."""

from __future__ import annotations

from oslo_policy import policy

CONTEXT_IS_ADMIN = 'context_is_admin'
ADMIN = 'rule:context_is_admin'
#: Every user, of any project.
ANYONE = '@'
PROJECT_READER_OR_ADMIN = 'rule:project_reader_or_admin'
PROJECT_MEMBER_OR_ADMIN = 'rule:project_member_or_admin'
PROJECT_MANAGER_OR_ADMIN = 'rule:project_manager_or_admin'

RULES = [
    policy.RuleDefault(CONTEXT_IS_ADMIN, 'role:admin', 'An administrator.'),
    policy.RuleDefault('admin_api', ADMIN, 'An older name that policy files use.'),
    policy.RuleDefault(
        'admin_or_owner', f'{ADMIN} or project_id:%(project_id)s', 'An older name that policy files use.'
    ),
    policy.RuleDefault(
        'project_manager_api', 'role:manager and project_id:%(project_id)s', 'A manager of the project.'
    ),
    policy.RuleDefault('project_member_api', 'role:member and project_id:%(project_id)s', 'A member of the project.'),
    policy.RuleDefault('project_reader_api', 'role:reader and project_id:%(project_id)s', 'A reader of the project.'),
    policy.RuleDefault(
        'project_manager_or_admin', f'rule:project_manager_api or {ADMIN}', 'A manager of the project, or an admin.'
    ),
    policy.RuleDefault(
        'project_member_or_admin', f'rule:project_member_api or {ADMIN}', 'A member of the project, or an admin.'
    ),
    policy.RuleDefault(
        'project_reader_or_admin', f'rule:project_reader_api or {ADMIN}', 'A reader of the project, or an admin.'
    ),
]


def rule(
    name: str, check: str, description: str, *operations: str, older: policy.DeprecatedRule | None = None
) -> policy.DocumentedRuleDefault:
    """Return a documented rule.

    :param operations: the operations that it covers, each as ``METHOD /path``.
    :param older: the rule that nova had for them before. A policy file may have its name.
    """
    parts = [operation.split(' ', 1) for operation in operations]
    return policy.DocumentedRuleDefault(
        name=name,
        check_str=check,
        description=description,
        operations=[{'method': method, 'path': path} for method, path in parts],
        scope_types=['project'],
        deprecated_rule=older,
    )
