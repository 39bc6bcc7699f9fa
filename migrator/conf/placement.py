# SPDX-License-Identifier: Apache-2.0

"""The options of ``[placement]``: keystoneauth1's options for the connection to the Placement service.

An import registers nothing. :func:`register_opts` registers the options on a ConfigOpts.
"""

from __future__ import annotations

from keystoneauth1 import loading
from oslo_config import cfg

from migrator.conf import values

GROUP = 'placement'

#: Seconds. keystoneauth1 waits without a limit by default, and a conductor must not.
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
#: The plug-ins whose options are in the sample configuration. Any installed plug-in can be used.
_SAMPLE_AUTH_TYPES = ('password', 'v3applicationcredential', 'admin_token')


def _group() -> cfg.OptGroup:
    # Create a new group each time. An OptGroup stores its options in itself, so a shared one would carry the options of
    # one ConfigOpts (such as the required ones of an auth plug-in) into every other.
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
            # Placement may have done a write whose answer is lost. A retry must read first, which keystoneauth1's does
            # not.
            opt.help = f'{opt.help} migrator ignores it: it reads the state from Placement before it sends again.'
    return opts


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the section ``[placement]``.

    :param conf: the ConfigOpts; the client registers the options of the chosen ``auth_type`` when it is created.
    """
    conf.register_group(_group())
    loading.register_auth_conf_options(conf, GROUP)
    conf.register_opts(_adapter_and_session_opts(), group=GROUP)


def check(conf: cfg.ConfigOpts) -> None:
    """Check the value of each option of the section, except those of the plug-in.

    :raises migrator.exception.ConfigurationError: a value is not valid.
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
