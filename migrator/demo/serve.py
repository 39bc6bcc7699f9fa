# SPDX-License-Identifier: Apache-2.0

"""``migrator-demo --serve``: the cloud stays up for real clients, with a development identity service."""

from __future__ import annotations

import contextlib
import pathlib
import sys
from collections.abc import Callable, Iterable
from typing import Any
from urllib import parse

from migrator import executors
from migrator.api import auth, devidentity
from migrator.demo import options, rehearsal, transport
from migrator.demo.cloud import DOWN_TIME, DemoCloud
from migrator.runtime import http_server, monitor, signals

_IDENTITY = '/identity'

_LINES = """\
A cloud of {hosts} hosts and {instances} guests is up, with nothing migrating.

  Compute API  {compute}
  Placement    {placement}
  Page         {page}   (token: admin)

Empty a host, in another terminal:

migrator-manage --config-file {config} drain plan {source}
migrator-manage --config-file {config} drain start {source} --watch

For the openstack client. FOR DEVELOPMENT ONLY: this identity service listens on loopback, and
does not check passwords.

export OS_AUTH_TYPE=password OS_AUTH_URL={identity}/v3 OS_IDENTITY_API_VERSION=3
export OS_USERNAME=admin OS_PASSWORD=any OS_USER_DOMAIN_NAME=Default
export OS_PROJECT_NAME={project} OS_PROJECT_DOMAIN_NAME=Default OS_REGION_NAME=RegionOne
export OS_COMPUTE_API_VERSION=2.90

openstack server list
openstack compute service list
openstack hypervisor list
openstack server migrate --live-migration {guest}
openstack server migrate --live-migration --host {host} {other_guest}
openstack server migration list

Without a client, with the token USER:PROJECT:

curl -H 'X-Auth-Token: admin:{project}' {compute}/servers
curl -H 'X-Auth-Token: admin:{project}' {own}/migrations

Ctrl-C stops it.
"""


def serve(settings: options.Settings, address: options.Address, directory: str) -> int:
    """Serve until SIGINT or SIGTERM, and return the exit status."""
    with contextlib.ExitStack() as stack:
        # Receive the signals here, because a shell starts a background process with SIGINT ignored.
        asked_to_stop = stack.enter_context(signals.Signals())
        apps = _Later(), _Later()
        threads = executors.NativeThreads()
        stopping = threads.event()
        health = monitor.Monitor('migrator-api', threads, stopping)
        health.is_served = True
        try:
            # Before a cloud starts, which would log that it is closed in the middle of that.
            compute = _listen('--serve', address, health.around(apps[0]))
            placement = _listen('--placement', settings.placement or options.Address('127.0.0.1', 0), apps[1])
        except OSError as error:
            print(f'{options.PROG}: {error}', file=sys.stderr)
            return options.USAGE
        endpoints = {'compute': f'{compute.url}/v2.1', 'placement': placement.url}
        # It takes seconds, and a reader of a file or a pipe has to see that as well.
        print(f'Starting a cloud of {settings.hosts} hosts and {settings.instances} guests ...', flush=True)
        cloud = DemoCloud(directory, settings)
        stack.callback(cloud.close)
        stack.callback(cloud.stop_services)
        stack.callback(compute.stop)
        stack.callback(placement.stop)
        stack.callback(stopping.set)
        health.watch('database', cloud.database.engine.check)
        apps[0].app = _beside(cloud.app, devidentity.make_app(endpoints))
        apps[1].app = auth.only_known_hosts(cloud.placement.app, ())
        cloud.populate()
        cloud.wait_for_definitions(cloud.guests)
        stack.callback(rehearsal.serve(cloud, directory))
        health.started = True
        config = _write_config(cloud, compute.url, placement.url)
        print(_instructions(cloud, endpoints, f'{compute.url}{_IDENTITY}', config), flush=True)
        asked_to_stop.next()
        print('Stopping.', flush=True)
    return 0


class _Later:
    """An application that answers 503 until there is a cloud.

    :ivar app: the application of the cloud.
    """

    app: Callable[..., Iterable[bytes]] | None = None

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request."""
        if self.app is not None:
            return self.app(environ, start_response)
        start_response('503 Service Unavailable', [])
        return []


def _write_config(cloud: DemoCloud, compute: str, placement: str) -> pathlib.Path:
    """Write the configuration with which migrator-manage works on the cloud, and return its path."""
    path = cloud.backend.directory / 'migrator.conf'
    api = parse.urlsplit(compute)
    path.write_text(
        f"""\
[DEFAULT]
transport_url = {transport.url(cloud.backend.directory)}
service_down_time = {DOWN_TIME}
[database]
connection = {cloud.backend.url}
[placement]
auth_type = none
endpoint_override = {placement}
[api]
auth_strategy = noauth2
listen = {api.hostname}
listen_port = {api.port}
""",
        encoding='utf-8',
    )
    return path


def _listen(option: str, address: options.Address, app: Callable[..., Any]) -> http_server.Server:
    try:
        # As many threads as migrator-api has, of which [api] max_event_streams may be held.
        return http_server.listen(app, address.host.strip('[]'), address.port, count=32)
    except OSError as error:
        raise OSError(f'{option} is {address}: {error.strerror or error}: name another port, or 0 for any') from None


def _beside(app: Callable[..., Any], identity: Callable[..., Any]) -> Callable[..., Any]:
    """Return an application that serves the identity service below its own path, and the API elsewhere."""

    def dispatch(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get('PATH_INFO', '')
        if path == _IDENTITY or path.startswith(f'{_IDENTITY}/'):
            below = {'SCRIPT_NAME': environ.get('SCRIPT_NAME', '') + _IDENTITY, 'PATH_INFO': path[len(_IDENTITY) :]}
            answer: Iterable[bytes] = identity({**environ, **below}, start_response)
            return answer
        served: Iterable[bytes] = app(environ, start_response)
        return served

    return dispatch


def _instructions(cloud: DemoCloud, endpoints: dict[str, str], identity: str, config: pathlib.Path) -> str:
    leaving = cloud.leaving()
    own = endpoints['compute'].replace('/v2.1', '/migrator/v1')
    return _LINES.format(
        hosts=cloud.settings.hosts,
        instances=cloud.settings.instances,
        compute=endpoints['compute'],
        placement=endpoints['placement'],
        own=own,
        page=f'{own}/ui',
        config=config,
        source=cloud.settings.source,
        identity=identity,
        project=cloud.guests[0].project_id,
        guest=leaving[0].name,
        other_guest=leaving[-1].name,
        host='host2',
    )
