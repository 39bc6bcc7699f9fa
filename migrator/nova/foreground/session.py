# SPDX-License-Identifier: Apache-2.0

"""One invocation of ``migrator-drain``: its state, its cloud, and the documents about its drains."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import pathlib
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib import parse

from migrator import exception
from migrator.nova.foreground import state
from migrator.operator.cli.command import Asked

if TYPE_CHECKING:  # imported where it is used, so that the help is fast
    from oslo_config import cfg

    from migrator.db.api import Database
    from migrator.db.drains import Known
    from migrator.drain.engine import Engine
    from migrator.nova.client import Nova
    from migrator.nova.clouds import Cloud
    from migrator.objects.drain import Drain
    from migrator.operator.watch.subjects import Get
    from migrator.placement_client.client import PlacementClient

    Connect = Callable[[str | None, str | None], tuple[Nova, PlacementClient]]

PROG = 'migrator-drain'
#: The verbs that need only the file with the state, and those that do not need it.
OF_STATE = ('list', 'show', 'watch', 'pause', 'report', 'purge', 'calibration')
WITHOUT_STATE = ('doctor',)
#: The status of a drain in progress that no process runs.
INTERRUPTED = 'interrupted'
E = TypeVar('E')


def make_conf(path: pathlib.Path) -> cfg.ConfigOpts:
    """Return the defaults of the options, with a database in this file. No file or variable is read."""
    from oslo_config import cfg

    from migrator.conf import api, conductor
    from migrator.db.sql import options

    conf = cfg.ConfigOpts()
    for section in (api, conductor, options):  # those of keystoneauth1 take long to import, and no verb needs them
        section.register_opts(conf)
    conf([], project=PROG, prog=PROG, default_config_files=[], default_config_dirs=[], use_env=False)
    conf.set_override('connection', f'sqlite:///{path}', group='database')
    # The documents come from the API in this process, which has no other caller.
    conf.set_override('auth_strategy', 'noauth2', group='api')
    return conf


@dataclasses.dataclass(frozen=True)
class Session(Asked):
    """One invocation.

    :ivar path: the file with the state.
    :ivar found: the cloud, if it was looked for already.
    :ivar connect: returns the clients of a cloud and a region; None: those of the cloud that is found.
    """

    path: pathlib.Path = dataclasses.field(kw_only=True)
    found: Cloud | None = dataclasses.field(default=None, kw_only=True)
    connect: Connect | None = dataclasses.field(default=None, kw_only=True)

    @functools.cached_property
    def database(self) -> Database:
        """The state. A missing file is created.

        :raises migrator.exception.ConfigurationError: another commit or another program has written the file, or
            another process creates it now.
        """
        from migrator.db.api import Database
        from migrator.db.schema import sync

        state.prepare(self.path)
        reason = sync.refusal(self.engine)
        if reason is not None:
            raise self._unusable(f'{reason}.')
        if sync.version(self.engine) is None:
            with state.locked(self.path.with_name(f'{self.path.name}.lock')) as pid:
                if pid is not None:
                    raise self._unusable(f'process {pid} creates it now. Try again.')
                sync.sync(self.engine)
        return Database('', self.threads, engine=self.engine)

    def _unusable(self, detail: str) -> exception.ConfigurationError:
        return exception.ConfigurationError(option='--state', value=str(self.path), detail=detail)

    @property
    def command(self) -> str:
        """The beginning of each command that is printed, with the same cloud and state."""
        return shlex.join([PROG, *self.options])

    @property
    def options(self) -> list[str]:
        """The options that name the same cloud and state."""
        given = self.arguments
        options = {'--os-cloud': given.os_cloud, '--os-region-name': given.os_region_name, '--state': given.state}
        return [word for name, value in options.items() if value for word in (name, str(value))]

    @property
    def drain_command(self) -> str:
        """The beginning of each command about drains, which is the same."""
        return self.command

    @functools.cached_property
    def where(self) -> Cloud:
        """The cloud, after its identity service has answered.

        :raises migrator.exception.ConfigurationError: no cloud is named, or what is known of it is not enough.
        """
        from migrator.nova import clouds

        return self.found or clouds.find(self.arguments.os_cloud, self.arguments.os_region_name)

    @functools.cached_property
    def cloud(self) -> tuple[Nova, PlacementClient]:
        """The clients of the cloud.

        :raises migrator.exception.ConfigurationError: no cloud is named, or what is known of it is not enough.
        """
        if self.connect is not None:
            return self.connect(self.arguments.os_cloud, self.arguments.os_region_name)
        return self.where.clients()

    @functools.cached_property
    def mover(self) -> Engine:
        """The engine that moves the guests live."""
        from migrator.nova import engine

        return self.make_engine(engine.NovaEngine)

    def make_engine(self, make: Callable[..., E], **more: Any) -> E:
        """Return an engine of this cloud.

        :param make: its class.
        """
        from migrator.nova import plan

        nova, placement = self.cloud
        choose = plan.Spread(nova, placement, self.threads).choose
        return make(nova, placement, self.threads.clock, choose, self._drained, **more)

    def _drained(self) -> set[str]:
        """Return the hosts with a drain in progress."""
        return {drain.host for drain in self.database.drains.list(in_progress=True)}

    def known(self, drain: Drain) -> Known:
        """Return the hosts of the cloud, and the guests of a drain's host if the drain names any."""
        from migrator.db.drains import Known

        nova, _ = self.cloud
        guests = [guest.uuid for guest in self.mover.guests(drain)] if drain.priorities else []
        return Known({service.host for service in nova.services()}, guests)

    def lock_of(self, uuid: str) -> pathlib.Path:
        """Return the lock file of a drain."""
        return self.path.with_name(f'{self.path.name}.{uuid}.lock')

    def runner(self, uuid: str) -> int | None:
        """Return the pid of the process that runs a drain, or None."""
        return state.holder(self.lock_of(uuid))

    def shown(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the document of a drain with the pid of the process that runs it.

        One in progress that no process runs is ``interrupted``, ``was`` has its status without that, and it has no
        expected times.
        """
        if document['ended_at'] is not None:
            return document | {'pid': None}
        pid = self.runner(document['uuid'])
        if pid is not None or document['status'] == 'paused':
            return document | {'pid': pid}
        go_on = f'No process runs it. To go on: {self.command} resume {document["uuid"]}'
        interrupted = document | {'pid': None, 'status': INTERRUPTED, 'was': document['status'], 'waits_for': go_on}
        if 'members' in document:
            nothing = {'start': None, 'end': None, 'reason': 'No process runs it.'}
            interrupted['expected'] = document['expected'] | nothing
            interrupted['members'] = [one | {'expected': one['expected'] | nothing} for one in document['members']]
        return interrupted

    @functools.cached_property
    def get(self) -> Get:
        """The function that returns documents of ``/migrator/v1``, from the API in this process."""
        from migrator.runtime import concurrency

        concurrency.native()
        import webob

        from migrator.api import app
        from migrator.operator.watch import errors

        no_conductor: Any = None  # only requests that change something need one
        application = app.make_app(self.conf, self.database, no_conductor, self.threads, {})

        def get(path: str, **query: Any) -> dict[str, Any]:
            url = f'/migrator/v1{path}?{parse.urlencode(query)}'
            answer = webob.Request.blank(url, headers={'X-Auth-Token': 'admin'}).get_response(application)
            if answer.status_int >= 400:
                raise errors.ApiRefused(url=path, reason=answer.text)
            found: dict[str, Any] = answer.json
            return found | ({'drain': self.shown(found['drain'])} if 'drain' in found else {})

        return get


def find(arguments: argparse.Namespace) -> tuple[pathlib.Path, Cloud | None]:
    """Return the file with the state, and the cloud if it was needed for that."""
    if arguments.state:
        return pathlib.Path(arguments.state).absolute(), None
    cloud, region, environ = arguments.os_cloud, arguments.os_region_name, os.environ
    named = state.default_path(cloud, region, environ)
    if arguments.verb in WITHOUT_STATE:
        return named, None
    if arguments.verb in OF_STATE and state.name_of(cloud, environ) is not None and named.exists():
        return named.resolve(), None
    from migrator.nova import clouds

    found = clouds.find(cloud, region)
    # The path without a region is also that of another region, if the cloud has several.
    regions = {None, found.region} if found.has_one_region else {found.region}
    names = [state.default_path(cloud, one, {**environ, 'OS_REGION_NAME': ''}) for one in regions]
    return state.settled(found.endpoint, found.region, named, names, environ), found
