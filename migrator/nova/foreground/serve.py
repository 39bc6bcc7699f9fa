# SPDX-License-Identifier: Apache-2.0

"""``migrator-drain serve``: the page of migrator-api, for the drains of ``migrator-drain``.

This process runs no drain. What the page starts or resumes runs in a process of its own, as with ``--detach``, so that
closing the page or this server ends nothing. It listens on loopback only. A secret in the fragment of its URL, which a
browser sends to no server, lets the page act with the credentials of this process; each request for data has it in a
header.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import webob
import webob.exc

from migrator import exception
from migrator.nova import plan
from migrator.nova.foreground import detached, fenced
from migrator.nova.foreground.session import PROG, Session
from migrator.objects import remedies
from migrator.operator.cli import command

if TYPE_CHECKING:
    from migrator.api.auth import App
    from migrator.api.request import Handler, Request
    from migrator.context import RequestContext
    from migrator.objects.drain import Drain

#: Where the page is, and the address that it is served at.
PAGE, HOST = '/migrator/v1/ui', '127.0.0.1'
#: Bytes of the secret: 256 bits.
_SECRET = 32
#: How many requests are answered at the same time. Each open page holds one for its stream of events.
_AT_ONCE = 16
_DO = f'Use the URL that {PROG} serve has printed.'
_OF_DRAIN = re.compile(r'/migrator/v1/drains/([^/]+)/(action|members)')
_DRAINS, _ATTENTION = '/migrator/v1/drains', '/migrator/v1/attention'

Begin = Callable[[Session, str], detached.Begun]


def serve(asked: Session) -> int:
    """Serve the page until Ctrl-C, SIGTERM or the end of the terminal, and print its URL."""
    from migrator.runtime import concurrency, http_server, signals

    concurrency.native()
    asked.cloud  # noqa: B018 -- an error in its name comes before the page is there
    secret = secrets.token_urlsafe(_SECRET)
    with signals.Signals() as wanted:
        app = make_app(asked, secret)
        try:
            server = http_server.listen(app, HOST, asked.arguments.port, count=_AT_ONCE)
        except OSError as error:
            reason = f'{error.strerror or error}: name another port, or 0 for any'
            raise exception.ConfigurationError(
                option='--port', value=asked.arguments.port, detail=f'{reason}.'
            ) from None
        url = f'{server.url}{PAGE}#token={secret}'
        asked.answer({'url': url}, _said(asked, url))
        sys.stdout.flush()
        wanted.next()
        server.stop(patience=1)
    return command.RIGHT


def _said(asked: Session, url: str) -> str:
    lines = [
        f'The page with the drains in {asked.path}:',
        url,
        'With this URL, all that your credentials allow can be done. From another machine, forward the port by ssh.',
        'Ctrl-C ends the page. The drains go on.',
    ]
    if asked.connect is None and (ends := asked.where.lasts_until) is not None:
        lines.append(f'Your credentials cannot be renewed, and end at {command.moment(ends)} UTC.')
    return '\n'.join(lines)


def make_app(asked: Session, secret: str, begin: Begin = detached.begin) -> App:
    """Return the application: the REST API on the state of this command, without a conductor.

    :param secret: what each request has to have as its token.
    :param begin: lets a process of its own run a drain.
    """
    from migrator.api import app
    from migrator.api.auth import only_known_hosts

    asked.conf.set_override('engine', 'nova', group='drain')
    no_rpc: Any = _Conductor(asked)
    made = app.make_app(
        asked.conf,
        asked.database,
        no_rpc,
        asked.threads,
        {},
        auth=lambda handle: _Guard(asked, secret, begin, handle),
        drain_command=asked.drain_command,
    )
    # The port may be another one, since ssh may have forwarded it.
    return only_known_hosts(_only_for_itself(made), (), 'This page', _DO)


def _only_for_itself(app: App) -> App:
    """Return an application that refuses a request of another page, by its header Origin."""

    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get('HTTP_ORIGIN') in (None, f'http://{environ.get("HTTP_HOST", "")}'):
            return app(environ, start_response)
        message = f'This page is served only to itself. {_DO}'
        refused = webob.Response(status=403, json_body={'forbidden': {'code': 403, 'message': message}})
        found: Iterable[bytes] = refused(environ, start_response)
        return found

    return guarded


class _Conductor:
    """The conductor of the API: it makes plans. Processes run the drains, so it wakes nothing."""

    def __init__(self, asked: Session) -> None:
        self._asked = asked

    def wake_drains(self, context: RequestContext) -> None:
        """Do nothing."""

    def plan_drain(self, context: RequestContext, drain: Drain) -> dict[str, Any]:
        """Return the plan of a drain."""
        try:
            nova, placement = self._asked.cloud
            return plan.of_one(nova, placement, drain, self._asked.threads.clock)
        except exception.ServiceUnreachable as error:
            raise webob.exc.HTTPServiceUnavailable(str(error)) from None

    def audit(self, context: RequestContext) -> list[Any]:
        """Refuse to audit the allocations.

        :raises migrator.exception.Invalid: in any case.
        """
        raise exception.Invalid(f'Wrong allocations are not looked for here. Type: {self._asked.command} audit')


class _Guard:
    """The guard around each request: it checks the secret, and starts the process of a drain."""

    def __init__(self, asked: Session, secret: str, begin: Begin, handle: Handler) -> None:
        self._asked, self._secret, self._begin, self._handle = asked, secret.encode(), begin, handle
        self._user, self._lock = command.user(), asked.threads.lock()
        #: The drains for which a process is being started.
        self._beginning: set[str] = set()
        #: Whether a drain is an evacuation, once that cannot change.
        self._evacuations: dict[str, bool] = {}

    def __call__(self, request: Request) -> webob.Response:
        """Answer a request.

        :raises migrator.exception.Unauthorized: it does not have the secret.
        """
        from migrator.api.auth import ADMIN_ROLES
        from migrator.context import RequestContext

        if not hmac.compare_digest(request.headers.get('X-Auth-Token', '').encode(errors='replace'), self._secret):
            raise exception.Unauthorized()
        request.environ['migrator.context'] = RequestContext(
            user_id=self._user, project_id=self._user, roles=list(ADMIN_ROLES), is_admin=True,
            request_id=request.request_id, overwrite=False,
        )  # fmt: skip
        path = request.path_info.rstrip('/')  # as the API takes it
        action = self._action(request, path)
        response = self._handle(request)
        if response.status_int >= 300 or response.content_type != 'application/json':
            return response
        found = response.json
        if response.status_int == 202 and action != 'pause':
            self._run(found['drain']['uuid'])
            found = self._asked.get(f'/drains/{found["drain"]["uuid"]}')
        response.body = json.dumps(self._shown(request, path, found)).encode()
        return response

    def _action(self, request: Request, path: str) -> str | None:
        """Return what a request does to a drain; None: nothing, or it makes a new one.

        :raises migrator.exception.Invalid: the drain is an evacuation, which has no such action; or no nova-compute has
            the name of the host.
        """
        from migrator.views import names

        of = _OF_DRAIN.fullmatch(path)
        if request.method != 'POST' or (of is None and path != _DRAINS):
            return None
        document = request.json_document()
        if not isinstance(document, dict):
            return None  # the API refuses it
        try:
            if of is None:
                if not document.get('dry_run'):  # a plan looks for its host itself
                    plan.check_host(self._asked.cloud[0], document.get('host'))
                return None
            action = str(next(iter(document), None))
            if action in ('restore', 'retry'):
                fenced.refuse(self._asked, names.drain(self._asked.database, of[1]), action)
            return action
        except exception.ServiceUnreachable as error:
            raise webob.exc.HTTPServiceUnavailable(str(error)) from None

    def _run(self, uuid: str) -> None:
        """Let a process run a drain unless one does, or is being started for it."""
        if self._asked.database.drains.get(uuid).ended or self._asked.runner(uuid) is not None:
            return
        with self._lock:
            if uuid in self._beginning:
                return
            self._beginning.add(uuid)
        try:
            self._begin(self._asked, uuid)
        except detached.NotBegun as error:
            raise webob.exc.HTTPServiceUnavailable(f'The drain was accepted, but {error.message}') from None
        finally:
            with self._lock:
                self._beginning.discard(uuid)

    def _with_pid(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the document of a drain with who runs it, and whether it is an evacuation."""
        uuid = document['uuid']
        shown = document | {'pid': None} if uuid in self._beginning else self._asked.shown(document)
        return shown | {'is_evacuation': self._is_evacuation(uuid, shown['ended_at'] is not None)}

    def _is_evacuation(self, uuid: str, has_ended: bool) -> bool:
        if uuid not in self._evacuations:
            found = fenced.Recorded.of(self._asked.database.drains.read_log(uuid)).words is not None
            if not found and not has_ended:
                return False
            self._evacuations[uuid] = found
        return self._evacuations[uuid]

    def _shown(self, request: Request, path: str, found: dict[str, Any]) -> dict[str, Any]:
        """Return a document of the API with what only this command knows."""
        from migrator.api import common
        from migrator.views import names

        asked = self._asked
        if path == _ATTENTION:
            lines = self._lines()
            return {'attention': lines[: common.page_size(request)], 'count': len(lines)}
        if 'drains' in found:
            return found | {'drains': [self._with_pid(one) for one in found['drains']]}
        if 'drain' in found:
            return found | {'drain': self._with_pid(found['drain'])}
        at = _OF_DRAIN.fullmatch(path)
        if at is not None and 'members' in found:
            of = names.drain(asked.database, at[1])
            whole = self._with_pid({'uuid': of.uuid, 'ended_at': of.ended_at, 'status': of.shown_status, **found})
            return {name: whole[name] for name in found}
        return found

    def _lines(self) -> list[dict[str, Any]]:
        """Return what needs an operator: there is no conductor to miss, and a drain may be run by no process."""
        from migrator.api.request import answer
        from migrator.views import attention

        asked = self._asked
        found = attention.documents(asked.database, asked.conf.conductor.lease)
        kinds = attention.Attention
        going = asked.database.drains.list(in_progress=True)
        left = {one.uuid for one in going if one.uuid not in self._beginning and asked.runner(one.uuid) is None}
        lines = [attention.interrupted(one) for one in going if one.uuid in left and one.shown_status != 'paused']
        # What a drain without a process waited for is an old reading, and nothing tries it again.
        old = (kinds.DRAIN_WAITS, kinds.STUCK)
        lines += [
            one
            for one in found
            if one['kind'] != kinds.NO_CONDUCTOR and not (one['kind'] in old and one['drain_uuid'] in left)
        ]
        for line in lines:
            if line['kind'] == kinds.DRAIN_INCOMPLETE and self._is_evacuation(line['drain_uuid'], has_ended=True):
                see = line['commands'][:1]
                text = f'The evacuation has left guests. This shows what to type next: {" ".join(see)}'
                title = f'Incomplete: the evacuation of {line["host"]}'
                line |= {'title': title, 'text': text, 'commands': see, 'is_evacuation': True}
        # The services' commands about drains are those of this command.
        here = json.dumps(asked.drain_command)[1:-1]
        text = answer(sorted(lines, key=attention.urgency)).text.replace(f'{remedies.DRAINS} ', f'{here} ')
        shown: list[dict[str, Any]] = json.loads(text)
        return shown
