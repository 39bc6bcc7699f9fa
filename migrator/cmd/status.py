# SPDX-License-Identifier: Apache-2.0

"""migrator-status: the check whether this installation is ready for this release.

``migrator-status upgrade check`` has the exit status of oslo.upgradecheck in every OpenStack service: 0 if all checks
succeed, 1 with warnings, 2 if something has to be done first, 255 after an unexpected error.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from oslo_config import cfg
from oslo_upgradecheck import upgradecheck

from migrator import exception, executors
from migrator.objects import COMPUTE_BINARY, CONDUCTOR_BINARY, CURRENT_VERSION, remedies
from migrator.runtime import pipes, settings

if TYPE_CHECKING:  # what the checks need is imported where they use it, so that the help is fast
    from migrator.db.api import Database
    from migrator.db.sql.engine import Engine

PROG = 'migrator-status'
USAGE = 2

Code = upgradecheck.Code
Result = upgradecheck.Result


def _register(conf: cfg.ConfigOpts) -> None:
    from migrator.conf import opts
    from migrator.db.sql import options

    opts.register_opts(conf)
    options.register_opts(conf)


class Checks(upgradecheck.UpgradeCommands):
    """The checks to run before this release is started.

    :param conf: the configuration, with every option registered.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf

    @functools.cached_property
    def _engine(self) -> Engine:
        from migrator.db.sql.engine import engine_from_conf

        return engine_from_conf(self._conf, executors.NativeThreads(), max_retries=0)

    def _database(self) -> Database:
        """Return the database, after a check that this release knows its schema."""
        from migrator.db.api import Database
        from migrator.db.schema import sync

        sync.check(self._engine)
        return Database('', executors.NativeThreads(), engine=self._engine)

    def close(self) -> None:
        """Close the connections to the database, if there are any."""
        if '_engine' in vars(self):
            self._engine.dispose()

    def _schema(self) -> Result:
        """Check whether the schema is this release's."""
        from migrator.db.schema import sync

        sync.check(self._engine)
        return Result(Code.SUCCESS, f'at {sync.head()}')

    def _placement(self) -> Result:
        """Check whether Placement answers, accepts migrator's credentials, and is new enough."""
        from migrator.placement_client.client import MICROVERSION, client_from_conf, numbers

        client = client_from_conf(self._conf)
        offered = client.read('/')['versions'][0]['max_version']
        wanted = MICROVERSION
        if numbers(offered) < numbers(wanted):
            return Result(
                Code.FAILURE, f'it offers microversion {offered} at most, and {wanted} is needed: upgrade it.'
            )
        client.read('/resource_classes')
        return Result(Code.SUCCESS, f'it offers microversion {offered}')

    def _services(self) -> Result:
        """Check whether every compute service is of this release. Older ones work, with fewer functions."""
        database = self._database()
        found = database.services.list(binary=COMPUTE_BINARY)
        newest = CURRENT_VERSION
        older = [f'{service.host} ({service.version})' for service in found if service.version < newest]
        if older:
            return Result(
                Code.WARNING,
                f'older than service version {newest}: {", ".join(sorted(older))}. Upgrade them; '
                'until the last one is, no migration uses what the oldest lacks.',
            )
        if not found:
            return Result(Code.SUCCESS, 'there are no compute services yet')
        return Result(Code.SUCCESS, f'compute services: {len(found)}, each of version {newest}')

    def _conductors(self) -> Result:
        """Check whether every conductor that is up is of this release."""
        database = self._database()
        now, lease = database.services.now(), self._conf.conductor.lease
        found = [one for one in database.services.list(binary=CONDUCTOR_BINARY) if one.is_up(now, lease)]
        older = sorted(f'{one.host} ({one.version})' for one in found if one.version < CURRENT_VERSION)
        if older:
            return Result(
                Code.WARNING,
                f'older than service version {CURRENT_VERSION}: {", ".join(older)}. Upgrade them; until the last one '
                'is, the API refuses what they cannot run.',
            )
        return Result(Code.SUCCESS, f'conductors that are up: {len(found)}, none of an older version')

    def _migration_uuids(self) -> Result:
        """Check whether every migration has a uuid. No conductor takes over a migration without one."""
        bare = self._database().migrations.count_without_uuid()
        if bare:
            return Result(
                Code.WARNING,
                f'{bare} migrations have none: {remedies.offer(remedies.Kind.MIGRATE_DATA)}.',
            )
        return Result(Code.SUCCESS, 'every migration has one')

    def _options(self) -> Result:
        """Check whether every option in the files is one that a service has."""
        found = settings.unknown_options(self._conf)
        return Result(Code.WARNING, ' '.join(found)) if found else Result(Code.SUCCESS, 'every option is known')

    _upgrade_checks = (
        ('Options', lambda self: _result(self._options)),
        ('Database schema', lambda self: _result(self._schema)),
        ('Placement', lambda self: _result(self._placement)),
        ('Migration uuids', lambda self: _result(self._migration_uuids)),
        ('Conductor versions', lambda self: _result(self._conductors)),
        ('Compute service versions', lambda self: _result(self._services)),
    )


def _result(check: Callable[[], Result]) -> Result:
    """Return the result of a check. An error of ours becomes a failure."""
    try:
        return check()
    except exception.MigratorException as error:
        from migrator.db.sql import options

        return Result(Code.FAILURE, options.without_password(' '.join(str(error).split())))


@pipes.quiet
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    conf = cfg.ConfigOpts()
    checks: Any = Checks(conf)
    try:
        upgradecheck.register_cli_options(conf, checks)
        settings.parse(conf, PROG, list(sys.argv[1:] if argv is None else argv))
        settings.complete(conf, [_register])
    except SystemExit as stop:  # argparse has printed the reason
        return int(stop.code or 0)
    except exception.ConfigurationError as error:
        print(f'{PROG}: {error}', file=sys.stderr)
        return USAGE
    # upgradecheck.run() reads --json from this variable, which only its own main() sets.
    before, upgradecheck.CONF = upgradecheck.CONF, conf
    try:
        return int(upgradecheck.run(conf))
    finally:
        upgradecheck.CONF = before
        checks.close()


if __name__ == '__main__':
    sys.exit(main())
