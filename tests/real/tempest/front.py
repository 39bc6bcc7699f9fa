# SPDX-License-Identifier: Apache-2.0

"""A front of the REST API for Tempest, which registers a guest for each ``POST /servers``.

Tempest asks the compute API for servers; of migrator's guests another service is in charge. The front is that service:
it starts a guest on a host and registers it, and deletes, stops and pauses it. It passes every other request on to
migrator's REST API, and returns the reply unchanged.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any
from wsgiref import simple_server

import requests
import webob
import webob.dec

from migrator import exception
from migrator.conductor import registry
from migrator.objects import Flavor
from tests.real import far_world
from tests.real.cloud import ProcessCloud
from tests.real.nova import stand_ins
from tests.real.servers import process

#: The flavors that a server can have; migrator knows those that guests have.
FLAVORS = {name: Flavor(name=name, vcpus=1, memory_mb=ram, root_gb=1) for name, ram in (('small', 64), ('large', 128))}
#: Action -> what the hypervisor does, and the guest's vm_state and power_state afterwards.
ACTIONS = {
    'pause': ('pause', 'paused', 3),
    'unpause': ('resume', 'active', 1),
    'os-stop': ('shut_off', 'stopped', 4),
    'os-start': ('resume', 'active', 1),
    'suspend': ('shut_off', 'suspended', 4),
    'resume': ('resume', 'active', 1),
}


class Front:
    """The front of a cloud, served by threads of this process.

    :param cloud: its API and its hypervisors.
    :param identity: the URL of the Keystone whose tokens its API takes.
    :ivar errors: the requests that failed by a fault of a server, with the status.
    """

    def __init__(self, cloud: ProcessCloud, identity: str) -> None:
        self._cloud = cloud
        self._identity = identity
        self.errors: list[str] = []
        self._hosts = itertools.cycle(cloud.site.hosts)
        self.port = process.free_port()
        self.url = f'http://{process.HOST}:{self.port}'
        self._server = simple_server.make_server(
            process.HOST, self.port, self._answer, stand_ins.Server, stand_ins.Quiet
        )
        threading.Thread(target=self._server.serve_forever, name='front', daemon=True).start()

    def close(self) -> None:
        """End the threads."""
        self._server.shutdown()
        self._server.server_close()

    @webob.dec.wsgify
    def _answer(self, request: webob.Request) -> webob.Response:
        answer = self._dispatch(request)
        if answer.status_int >= 500 and answer.status_int != 501:  # 501: migrator does not serve it
            self.errors.append(f'{request.method} {request.path_qs}: {answer.status} {answer.text}')
        return answer

    def _dispatch(self, request: webob.Request) -> webob.Response:
        if not request.content_length:
            request.headers.pop('Content-Length', None)
        match (request.method, *request.path_info.strip('/').split('/')):
            case ('POST', 'v2.1', 'servers'):
                return self._create(request)
            case ('DELETE', 'v2.1', 'servers', str(server)):
                return self._act(request, server, functools.partial(self._delete, request))
            case ('POST', 'v2.1', 'servers', str(server), 'action'):
                action = next(iter(request.json))
                if action in ACTIONS:
                    return self._act(request, server, functools.partial(self._set, action=action))
        return self._cloud.served(request)

    def _create(self, request: webob.Request) -> webob.Response:
        """Register a guest, and answer as for a server that is being built."""
        token, wanted = self._token(request), request.json['server']
        if token is None:
            return self._cloud.served(request)
        instance = self._cloud.boot(
            wanted['name'],
            next(self._hosts),
            flavor=FLAVORS[wanted['flavorRef']],
            project_id=token['project']['id'],
            user_id=token['user']['id'],
        )
        answer = self._shown(request, instance.uuid)
        links = answer.json['server']['links']
        answer.status_int = 202
        answer.json = {'server': {'id': instance.uuid, 'links': links, 'OS-DCF:diskConfig': 'AUTO', 'adminPass': ''}}
        return answer

    def _token(self, request: webob.Request) -> Mapping[str, Any] | None:
        """Return what the token of a request is for; None: it is not valid."""
        token = request.headers.get('X-Auth-Token', '')
        answer = requests.get(
            f'{self._identity}/auth/tokens?nocatalog',
            headers={'X-Auth-Token': token, 'X-Subject-Token': token},
            timeout=60,
        )
        return answer.json()['token'] if answer.ok else None

    def _shown(self, request: webob.Request, server: str) -> webob.Response:
        """Return the reply to the user of a request who asks for a server."""
        headers = {name: value for name, value in request.headers.items() if not name.startswith('Content-')}
        return self._cloud.served(webob.Request.blank(f'/v2.1/servers/{server}', headers=headers))

    def _act(self, request: webob.Request, server: str, act: Callable[[str], int]) -> webob.Response:
        """Act on a server that the user of a request sees, unless it is locked."""
        answer = self._shown(request, server)
        if answer.status_int != 200:
            return answer
        try:
            if self._cloud.database.instances.get(server).locked:
                raise exception.InstanceIsLocked(instance_uuid=server, who='its owner')
            answer.status_int, answer.body = act(server), b''
        except exception.MigratorException as error:
            answer.status_int, answer.json = 409, {'conflictingRequest': {'code': 409, 'message': error.message}}
        return answer

    def _set(self, server: str, action: str) -> int:
        deed, vm_state, power_state = ACTIONS[action]
        getattr(self._where(server), deed)(server)
        self._cloud.database.instances.update(server, vm_state=vm_state, power_state=power_state)
        return 202

    def _delete(self, request: webob.Request, server: str) -> int:
        database = self._cloud.database
        if database.instances.get(server).vm_state == 'resized':  # Nova too confirms first
            confirm, headers = {'confirmResize': None}, {'X-Auth-Token': request.headers['X-Auth-Token']}
            asked = webob.Request.blank(f'/v2.1/servers/{server}/action', method='POST', headers=headers, json=confirm)
            self._cloud.served(asked)
            of = {'instance_uuid': server}
            self._cloud.simulation.run_until(lambda: not database.migrations.list(of, in_progress=True))
        registry.delete_instance(database, self._cloud.placement_client, server)
        self._where(server).delete(server)
        return 204

    def _where(self, server: str) -> far_world.FarHypervisor:
        return next(one for one in self._cloud.world.hypervisors.values() if server in one.guests)
