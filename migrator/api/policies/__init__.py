# SPDX-License-Identifier: Apache-2.0

"""The policies: oslo.policy defaults under nova's names, so that nova's policy file works here too."""

from __future__ import annotations

from oslo_config import cfg
from oslo_policy import policy

from migrator.api.policies import base, nova


def list_rules() -> list[policy.RuleDefault]:
    """Return every policy with its default, for the generator of the sample file."""
    from migrator.api.own import routes  # here, because its modules import this package

    return [*base.RULES, *nova.RULES, *routes.RULES]


def make_enforcer(conf: cfg.ConfigOpts) -> policy.Enforcer:
    """Return a new enforcer for one configuration.

    :param conf: this registers its section ``[oslo_policy]``, which names the operator's policy file.
    """
    enforcer = policy.Enforcer(conf)
    enforcer.register_defaults(list_rules())
    return enforcer


def get_enforcer() -> policy.Enforcer:
    """Return an enforcer for the configuration in the default places, for oslo.policy's own commands."""
    conf = cfg.ConfigOpts()
    conf([], project='migrator')
    return make_enforcer(conf)
