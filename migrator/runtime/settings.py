# SPDX-License-Identifier: Apache-2.0

"""Reading of a service's whole configuration, so that errors are reported before it starts."""

from __future__ import annotations

import difflib
import functools
import importlib
import itertools
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from oslo_config import cfg, iniparser
from oslo_log import log as logging

from migrator import exception
from migrator.conf import compute, service, upgrade_levels, values
from migrator.objects import CURRENT_VERSION
from migrator.runtime import logs

LOG = logging.getLogger(__name__)

PROJECT = 'migrator'
#: The variable with the configuration directory of an application in another server, which has no command line.
CONFIG_DIR = 'OS_MIGRATOR_CONFIG_DIR'
#: The variable with the directory of the credentials that systemd loads for a unit (``LoadCredential=``).
CREDENTIALS = 'CREDENTIALS_DIRECTORY'
#: The entry points whose options a file of migrator may have; ``migrator-config-generator.conf`` names the same.
_OWN = ('migrator', 'migrator.service')
_OF_LIBRARIES = (
    *('keystonemiddleware.auth_token', 'oslo.db', 'oslo.log', 'oslo.messaging', 'oslo.middleware.cors', 'oslo.policy'),
    *('oslo.middleware.healthcheck', 'oslo.middleware.http_proxy_to_wsgi', 'oslo.middleware.sizelimit'),
)
#: The options that each configuration has.
_ALWAYS = ('config_file', 'config_dir', 'config_source', 'shell_completion')


def read(prog: str, argv: Sequence[str] | None = None) -> cfg.ConfigOpts:
    """Return the configuration: command line, files, and environment (``OS_GROUP__OPTION``).

    This registers only the options that decide how the process runs: logging, and :mod:`migrator.conf.service`.
    :func:`complete` registers the rest after the choice of threads.

    :param argv: the command line; None: no command line. Then ``OS_MIGRATOR_CONFIG_DIR`` may name a directory, which is
        read before systemd's credentials.
    :raises migrator.exception.ConfigurationError: a file is missing or cannot be read, or a value is not valid.
    :raises SystemExit: the command line is wrong, or requests help; argparse has printed the text.
    """
    conf = cfg.ConfigOpts()
    logs.register(conf)
    service.register_opts(conf)
    if argv is None:
        directory = os.environ.get(CONFIG_DIR)
        argv = [f'--config-dir={each}' for each in [directory, *_credentials()]] if directory else []
    parse(conf, prog, argv)
    complete(conf, [])
    return conf


def parse(conf: cfg.ConfigOpts, prog: str, argv: Sequence[str]) -> None:
    """Read the command line, and the files that it names, into a ConfigOpts.

    Unless the command line names a directory, the files ``*.conf`` of the default directories are read too, and those
    of systemd's credentials. A file that the command line names wins over them.

    :raises migrator.exception.ConfigurationError: a file is missing, or cannot be read.
    :raises SystemExit: the command line is wrong, or requests help.
    """
    directories = [*cfg.find_config_dirs(PROJECT, prog), *_credentials()]
    try:
        conf(list(argv), project=PROJECT, prog=prog, default_config_dirs=directories)
    except cfg.ConfigFilesNotFoundError as error:
        names = ', '.join(error.config_files)
        raise _wrong('--config-file', names, 'there is no such file, or it cannot be read.') from None
    except cfg.ConfigDirNotFoundError as error:
        raise _wrong('--config-dir', error.config_dir, 'there is no such directory, or it cannot be read.') from None
    except cfg.ConfigFileParseError as error:
        raise _wrong('--config-file', error.config_file, _syntax(error)) from None
    except cfg.Error as error:
        files = [word.removeprefix('--config-file=') for word in argv if word != '--config-file']
        raise _wrong('--config-file', ', '.join(files) or 'the default one', _one_line(error)) from None


def complete(conf: cfg.ConfigOpts, registrations: Iterable[Callable[[cfg.ConfigOpts], None]]) -> None:
    """Register the rest of the options, and check every value.

    :raises migrator.exception.ConfigurationError: a value is not valid.
    """
    for register in registrations:
        register(conf)
    for problem in itertools.chain(problems(conf), unknown_versions(conf)):
        raise problem


def problems(conf: cfg.ConfigOpts) -> Iterator[exception.ConfigurationError]:
    """Yield the errors in the values."""
    for group, opt in _options(conf):
        try:
            values.read(conf, opt, group)
        except exception.ConfigurationError as error:
            yield error


def unknown_versions(conf: cfg.ConfigOpts) -> Iterator[exception.ConfigurationError]:
    """Yield the errors for versions that this release does not have. The options cannot know them."""
    checks: list[Callable[[], object]] = []
    if 'service_version_cap' in conf.compute:
        checks.append(lambda: compute.service_version(conf, CURRENT_VERSION))
    if upgrade_levels.GROUP in conf:
        checks += [functools.partial(_rpc_version, conf, of) for of in ('compute', 'conductor')]
    for check in checks:
        try:
            check()
        except exception.ConfigurationError as error:
            yield error


def _rpc_version(conf: cfg.ConfigOpts, of: str) -> str:
    if conf[upgrade_levels.GROUP][of] == upgrade_levels.AUTO:
        return upgrade_levels.AUTO
    # Import only now, because a command that only reads the configuration needs nothing else of RPC.
    known: dict[str, str] = importlib.import_module(f'migrator.{of}.rpcapi').VERSIONS
    return upgrade_levels.version(conf, of, known)


def warn_of_unknown_options(conf: cfg.ConfigOpts) -> None:
    """Log a warning for each option in the files that no service has, as migrator's own show it.

    Those of libraries would have to be imported, which takes a second; ``migrator-status upgrade check`` does that.
    """
    for text in _unknown_options(conf, _known(_OWN), only_near=True):
        LOG.warning('Look at the configuration: %s', text)


def unknown_options(conf: cfg.ConfigOpts) -> list[str]:
    """Return a sentence for each option, or section, in the files that no service has.

    They are compared with the options of every service, since all of them may read one file.
    """
    return _unknown_options(conf, _known((*_OWN, *_OF_LIBRARIES)))


def _unknown_options(conf: cfg.ConfigOpts, known: Mapping[str, set[str]], only_near: bool = False) -> list[str]:
    namespace: Any = conf._namespace  # oslo.config shows only those options that are registered
    parsed: Iterable[Mapping[str, Mapping[str, object]]] = getattr(namespace, '_parsed', None) or ()
    sections = list(parsed)
    # keystoneauth reads any section that auth_section names.
    lent = {str(value) for one in sections for of in one.values() for value in _values(of.get('auth_section'))}
    return list(dict.fromkeys(text for one in sections for text in _unknown(one, known, lent, only_near)))


def _values(found: object) -> Iterable[object]:
    return found if isinstance(found, list) else ()


def _unknown(
    sections: Mapping[str, Mapping[str, object]], known: Mapping[str, set[str]], lent: Collection[str], only_near: bool
) -> Iterator[str]:
    for written, options in sections.items():
        section = written if written == 'DEFAULT' else written.lower()  # as oslo.config looks them up
        if written in lent:
            continue
        if section not in known:
            yield from _sentence(f'section [{section}]', section, known, '[{}]', only_near)
            continue
        # A plugin of keystoneauth has options that depend on auth_type, which only it knows.
        names = set() if 'auth_type' in known[section] else {one.replace('-', '_') for one in options}
        for name in sorted(names - known[section]):
            # [DEFAULT] has options of libraries too.
            near = only_near and section == 'DEFAULT'
            yield from _sentence(f'option [{section}] {name}', name, known[section], '{}', near)


def _sentence(what: str, word: str, known: Iterable[str], shown: str, only_near: bool) -> Iterator[str]:
    near = difflib.get_close_matches(word, [*known], n=1, cutoff=0.85 if only_near else 0.6)
    if near or not only_near:
        yield f'No service has the {what}{f". Is {shown.format(near[0])} meant?" if near else ", so it has no effect."}'


def _known(namespaces: Sequence[str]) -> dict[str, set[str]]:
    """Return the names of options by section, deprecated ones too."""
    found: dict[str, set[str]] = {'DEFAULT': {*_ALWAYS}}
    for one in metadata.entry_points(group='oslo.config.opts'):
        if one.name not in namespaces:
            continue
        with warnings.catch_warnings(action='ignore'):  # of libraries that are imported for their options only
            listed = one.load()()
        for group, options in listed:
            name = str(getattr(group, 'name', group) or 'DEFAULT')
            section = name if name == 'DEFAULT' else name.lower()
            for option in options:
                found.setdefault(section, set()).add(option.dest)
                for old in option.deprecated_opts:
                    found.setdefault(old.group or section, set()).add((old.name or option.dest).replace('-', '_'))
    return found


def _options(conf: cfg.ConfigOpts) -> Iterator[tuple[str | None, cfg.Opt]]:
    # This is the only way to list every registered option. The documented one, to iterate over conf, reads the values,
    # and so ends at the first that is wrong.
    registered: Mapping[str, Any] = conf._opts
    for _name, entry in sorted(registered.items()):
        yield None, entry['opt']
    for group_name, group in sorted(conf._groups.items()):
        for _name, entry in sorted(group._opts.items()):
            yield group_name, entry['opt']


def _credentials() -> list[str]:
    directory = os.environ.get(CREDENTIALS)
    return [directory] if directory else []


def _syntax(error: cfg.ConfigFileParseError) -> str:
    # The text of oslo.config ends with the line itself, which may hold a secret. The parser's own error has the parts.
    cause = error.__context__
    if isinstance(cause, iniparser.ParseError):
        return f'line {cause.lineno}: {cause.msg}.'
    return 'it is no configuration file.'


def _one_line(error: object) -> str:
    return ' '.join(str(error).split())


def _wrong(option: str, value: object, detail: str) -> exception.ConfigurationError:
    return exception.ConfigurationError(option=option, value=value, detail=detail)
