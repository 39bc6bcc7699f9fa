# SPDX-License-Identifier: Apache-2.0

"""Options of ``[placement]``: how to reach and to authenticate with the Placement service, as keystoneauth1 has them.

Nothing is registered when this is imported; :func:`register_opts` takes the ConfigOpts that is meant.
"""

from __future__ import annotations

from keystoneauth1 import loading
from oslo_config import cfg

from migrator.conf import values

GROUP = 'placement'

#: Seconds. keystoneauth1 itself waits for ever, and a conductor must not.
DEFAULT_TIMEOUT = 30.0

_DEFAULTS = {
    'service-type': 'placement',
    'valid-interfaces': ['internal', 'public'],
    'timeout': DEFAULT_TIMEOUT,
}
_IGNORED = (
    'connect-retries',
    'connect-retry-delay',
    'status-code-retries',
    'status-code-retry-delay',
    'retriable-status-codes',
)
#: The plug-ins whose options go into the sample configuration; any plug-in that is installed can be used.
_SAMPLE_AUTH_TYPES = ('password', 'v3applicationcredential', 'admin_token')


def _group() -> cfg.OptGroup:
    # A new one each time: an OptGroup keeps its options in itself, so one that is shared carries the options of one
    # ConfigOpts (those of an auth plug-in, required ones among them) into every other.
    return cfg.OptGroup(GROUP, title='Placement', help='How migrator reaches the Placement service.')


def _adapter_and_session_opts() -> list[cfg.Opt]:
    opts: list[cfg.Opt] = [
        *loading.get_session_conf_options(),
        *loading.get_adapter_conf_options(include_deprecated=False),
    ]
    for opt in opts:
        if opt.name in _DEFAULTS:
            opt.default = _DEFAULTS[opt.name]
        if opt.name in _IGNORED:
            # A write whose answer is missing may have been done, so a retry must look first; keystoneauth1's does not.
            opt.help = f'{opt.help} migrator ignores it: it asks Placement what is true before it sends again.'
    return opts


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the section ``[placement]``.

    :param conf: where to; the options of the chosen ``auth_type`` follow when the client is made.
    """
    conf.register_group(_group())
    loading.register_auth_conf_options(conf, GROUP)
    conf.register_opts(_adapter_and_session_opts(), group=GROUP)


def check(conf: cfg.ConfigOpts) -> None:
    """Look at each option of the section, those of the plug-in aside.

    :raises migrator.exception.ConfigurationError: one is not right.
    """
    values.check(conf, [(GROUP, [*loading.get_auth_common_conf_options(), *_adapter_and_session_opts()])])


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options for the sample configuration file, by group."""
    opts: list[cfg.Opt] = [*loading.get_auth_common_conf_options()]
    for auth_type in _SAMPLE_AUTH_TYPES:
        opts.extend(loading.get_auth_plugin_conf_options(auth_type))
    opts.extend(_adapter_and_session_opts())
    unique = {opt.name: opt for opt in reversed(opts)}
    return [(_group(), list(reversed(unique.values())))]
