# SPDX-License-Identifier: Apache-2.0

"""Sections with keystoneauth1's options for the connection to a service of OpenStack.

An import registers nothing. :meth:`Section.register_opts` registers the options on a ConfigOpts.
"""

from __future__ import annotations

import dataclasses
import functools

from keystoneauth1 import loading
from oslo_config import cfg

from migrator.conf import values

#: Seconds. keystoneauth1 waits without a limit by default, and a conductor must not.
DEFAULT_TIMEOUT = 30.0

_IGNORED = (
    'connect-retries',
    'connect-retry-delay',
    'status-code-retries',
    'status-code-retry-delay',
    'retriable-status-codes',
)
#: The plug-ins whose options are in the sample configuration. Any installed plug-in can be used.
_SAMPLE_AUTH_TYPES = ('password', 'v3applicationcredential', 'admin_token')


@dataclasses.dataclass(frozen=True)
class Section:
    """One section.

    :ivar group: its name.
    :ivar title: the name of the service.
    :ivar service_type: its type in the service catalog.
    """

    group: str
    title: str
    service_type: str

    def _make_group(self) -> cfg.OptGroup:
        # Create a new group each time. An OptGroup stores its options in itself, so a shared one would carry the
        # options of one ConfigOpts (such as the required ones of an auth plug-in) into every other.
        help_ = f'How migrator reaches the {self.title} service.'
        return cfg.OptGroup(self.group, title=self.title, help=help_)

    @functools.cached_property
    def _adapter_and_session_opts(self) -> list[cfg.Opt]:
        # Made once, since keystoneauth1 makes new ones at each call. A ConfigOpts stores nothing in an option.
        defaults = {
            'service-type': self.service_type,
            'valid-interfaces': ['internal', 'public'],
            'timeout': DEFAULT_TIMEOUT,
        }
        opts: list[cfg.Opt] = [
            *loading.get_session_conf_options(),
            *loading.get_adapter_conf_options(include_deprecated=False),
        ]
        for opt in opts:
            if opt.name in defaults:
                opt.default = defaults[opt.name]
            if opt.name in _IGNORED:
                # The service may have done a write whose answer is lost. A retry must read first, and that of
                # keystoneauth1 does not.
                ignored = f'migrator ignores it: it reads the state from {self.title} before it sends again.'
                opt.help = f'{opt.help} {ignored}'
        return opts

    def register_opts(self, conf: cfg.ConfigOpts) -> None:
        """Register the section.

        :param conf: the ConfigOpts; the client registers the options of the chosen ``auth_type`` when it is created.
        """
        conf.register_group(self._make_group())
        loading.register_auth_conf_options(conf, self.group)
        conf.register_opts(self._adapter_and_session_opts, group=self.group)

    def check(self, conf: cfg.ConfigOpts) -> None:
        """Check the value of each option of the section, except those of the plug-in.

        :raises migrator.exception.ConfigurationError: a value is not valid.
        """
        opts = [*loading.get_auth_common_conf_options(), *self._adapter_and_session_opts]
        values.check(conf, [(self.group, opts)])

    def list_opts(self) -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
        """Return the options for the sample configuration file, by group."""
        opts: list[cfg.Opt] = [*loading.get_auth_common_conf_options()]
        for auth_type in _SAMPLE_AUTH_TYPES:
            opts.extend(loading.get_auth_plugin_conf_options(auth_type))
        opts.extend(self._adapter_and_session_opts)
        unique = {opt.name: opt for opt in reversed(opts)}
        return [(self._make_group(), list(reversed(unique.values())))]


PLACEMENT = Section('placement', 'Placement', 'placement')
#: Only a conductor with ``[drain] engine = nova`` reads it.
NOVA = Section('nova', 'Nova', 'compute')
