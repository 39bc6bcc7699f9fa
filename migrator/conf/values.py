# SPDX-License-Identifier: Apache-2.0

"""Reading of option values, with errors that name the option, its value and the accepted values.

oslo.config checks a value from a file only when it is read. Its error then names neither the section nor the accepted
values, and it returns None for a number without a value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from oslo_config import cfg, types

from migrator import exception

#: user:password@ in a URL, except in our own example. A password may contain an @.
_CREDENTIALS = re.compile(r'(?<=://)(?!USER:PASSWORD@)\S*@')


def read(conf: cfg.ConfigOpts, opt: cfg.Opt, group: str | None = None) -> Any:
    """Return the value of an option.

    :param opt: the option, as it was registered on ``conf``.
    :param group: its section; None: ``[DEFAULT]``.
    :raises migrator.exception.ConfigurationError: the value is not valid, or is empty although the option has a
        default.
    :raises oslo_config.cfg.NoSuchOptError: the option was not registered.
    """
    section: Any = conf[group] if group else conf
    if opt.dest not in section:
        raise cfg.NoSuchOptError(opt.dest)
    reason = ''
    try:
        value = section[opt.dest]
    except (ValueError, cfg.Error) as error:
        reason = f'{_reason(error)}; '
    else:
        if value is not None or opt.default is None:
            return value
    raise exception.ConfigurationError(
        option=f'[{group or "DEFAULT"}] {opt.dest}',
        value=_given(conf, group, opt),
        detail=f'{reason}give {accepted(opt)}.',
    )


def check(conf: cfg.ConfigOpts, sections: Iterable[tuple[str, Sequence[cfg.Opt]]]) -> None:
    """Check the values of some options.

    :param sections: names of sections, each with its options, as a module's ``list_opts`` returns them.
    :raises migrator.exception.ConfigurationError: a value is not valid.
    """
    for section, options in sections:
        for opt in options:
            read(conf, opt, None if section == 'DEFAULT' else section)


def accepted(opt: cfg.Opt) -> str:
    """Return the accepted values of an option in words."""
    kind: Any = opt.type
    choices = getattr(kind, 'choices', None)
    if choices:
        return ' or '.join(str(choice) for choice in choices)
    if isinstance(kind, types.Boolean):
        return 'true or false'
    if isinstance(kind, (types.Integer, types.Float)):
        word = 'a whole number' if isinstance(kind, types.Integer) else 'a number'
        least = f' of {kind.min:g} or more' if kind.min is not None else ''
        most = f', {kind.max:g} at most' if kind.max is not None else ''
        return f'{word}{least}{most}'
    if isinstance(kind, (types.HostAddress, types.Hostname, types.IPAddress)):
        return 'a host name or an address'
    return f'a value of type {type(kind).__name__.lower()}'


def without_credentials(text: str) -> str:
    """Return a text without the users and passwords of the URLs in it."""
    return _CREDENTIALS.sub('***@', text) if '://' in text else text


def _given(conf: cfg.ConfigOpts, group: str | None, opt: cfg.Opt) -> str:
    if opt.secret:
        return '***'
    from_environment = os.environ.get(f'OS_{(group or "DEFAULT").upper()}__{opt.dest.upper()}')
    if from_environment is not None:
        return from_environment
    try:
        # A mutable option may have been reloaded, and the last value read is the one to report.
        namespace: Any = (opt.mutable and conf._mutable_ns) or conf._namespace
        found: list[str] = namespace._get_file_value([(group or 'DEFAULT', opt.dest)], multi=True)[0]
    except (AttributeError, KeyError, ValueError):
        return '?'
    return found[-1]


#: What an unknown name after a $ means, which oslo.config takes for another option.
DOLLAR = 'it has a $ that begins the name of no option: write $$ for a $ that stands for itself'


def _reason(error: Exception) -> str:
    if isinstance(error, (cfg.TemplateSubstitutionError, cfg.NoSuchOptError)):  # the option itself is known
        return DOLLAR
    # oslo.config: "Value for option NAME from LocationInfo(...) is not valid: REASON"
    return ' '.join(str(error).split()).rpartition('is not valid: ')[2]
