# SPDX-License-Identifier: Apache-2.0

"""The policies: oslo.policy defaults under nova's names, so that nova's policy file works here too."""

from __future__ import annotations

from oslo_config import cfg
from oslo_log import log as logging
from oslo_policy import policy

from migrator import exception
from migrator.api.policies import base, nova

LOG = logging.getLogger(__name__)


class _Enforcer(policy.Enforcer):
    """An enforcer that keeps its rules if a file of policies is changed so that it cannot be read."""

    def load_rules(self, force_reload: bool = False) -> None:
        """Load the rules, again if a file has changed.

        :raises migrator.exception.ConfigurationError: a file is not valid, and no rules were loaded before.
        """
        rules, of_file = policy.Rules(self.rules, self.default_rule), dict(self.file_rules)
        try:
            super().load_rules(force_reload)
        except Exception as error:  # noqa: BLE001 -- oslo.policy lets through what the parser and its own code raise
            self.rules, self.file_rules = rules, of_file
            reason = ' '.join(f'{type(error).__name__}: {error}'.split())
            if not rules:
                raise exception.ConfigurationError(
                    option='[oslo_policy] policy_file',
                    value=self.policy_path or self.policy_file,
                    detail=f'it is no file of policies ({reason}): correct it, or remove it.',
                ) from None
            LOG.error(
                'Could not read the policies again, so those that were read before stay: %(reason)s (file %(file)s)',
                {'file': self.policy_path or self.policy_file, 'reason': reason},
            )


def list_rules() -> list[policy.RuleDefault]:
    """Return every policy with its default, for the generator of the sample file."""
    from migrator.api.own import routes  # here, because its modules import this package

    return [*base.RULES, *nova.RULES, *routes.RULES]


def make_enforcer(conf: cfg.ConfigOpts) -> policy.Enforcer:
    """Return a new enforcer for one configuration.

    :param conf: this registers its section ``[oslo_policy]``, which names the operator's policy file.
    """
    enforcer = _Enforcer(conf)
    enforcer.register_defaults(list_rules())
    return enforcer


def get_enforcer() -> policy.Enforcer:
    """Return an enforcer for the configuration in the default places, for oslo.policy's own commands."""
    conf = cfg.ConfigOpts()
    conf([], project='migrator')
    return make_enforcer(conf)
