# SPDX-License-Identifier: Apache-2.0

"""Print as JSON what the policies of an installed nova allow.

Run by the interpreter of nova's virtual environment. The standard input has the names of rules, the callers, the target
and the files of policies; None stands for a file with each of nova's defaults.
"""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile
import warnings

from nova import conf, context, policies, policy
from oslo_policy import opts

warnings.simplefilter('ignore')


def defaults() -> str:
    """Return the file that nova's sample becomes if each of its lines is used."""
    return ''.join(f'{json.dumps(rule.name)}: {json.dumps(rule.check_str)}\n' for rule in policies.list_rules())


def main() -> None:
    """Answer for each file, each rule and each caller."""
    asked = json.load(sys.stdin)
    conf.CONF([], project='nova', default_config_files=[])
    opts._register(conf.CONF)
    answers = []
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory, 'policy.yaml')
        conf.CONF.set_override('policy_file', str(path), group='oslo_policy')
        for text in asked['files']:
            path.write_text(defaults() if text is None else text)
            policy.reset()
            policy.init(suppress_deprecation_warnings=True)
            callers = [context.RequestContext(**caller) for caller in asked['callers']]
            answers.append(
                {
                    name: [bool(policy.authorize(one, name, asked['target'], do_raise=False)) for one in callers]
                    for name in asked['rules']
                }
            )
    json.dump({'defaults': defaults(), 'answers': answers}, sys.stdout)


if __name__ == '__main__':
    main()
