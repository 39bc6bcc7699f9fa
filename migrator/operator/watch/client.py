# SPDX-License-Identifier: Apache-2.0

"""The client of ``/migrator/v1``, at the compute endpoint of a cloud."""

from __future__ import annotations

from typing import Any
from urllib import parse

from keystoneauth1 import adapter, exceptions, session, token_endpoint
from oslo_config import cfg

from migrator import exception
from migrator.conf import service
from migrator.operator.watch import errors

#: Seconds without an answer after which the API counts as unreachable.
TIMEOUT = 10.0
#: A user whom an API with ``auth_strategy = noauth2`` takes for an administrator.
_NOAUTH_TOKEN = 'admin'


class Client:
    """The calls of ``/migrator/v1``.

    :param session: the session of keystoneauth1.
    :param options: options of :class:`keystoneauth1.adapter.Adapter`, such as ``region_name``.
    """

    def __init__(self, session: Any, **options: Any) -> None:
        self._adapter = adapter.Adapter(session, service_type='compute', client_name='migrator', **options)

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """Return the answer to a GET; see :meth:`request`."""
        return self.request('GET', path, **query)

    def request(self, method: str, path: str, body: Any = None, **query: Any) -> dict[str, Any]:
        """Send a request and return the answer.

        :param path: below ``/migrator/v1``.
        :raises migrator.operator.watch.errors.ApiInvalid: a value of the request is wrong.
        :raises migrator.operator.watch.errors.ApiRefused: the API refuses the request, or the credentials are not
            accepted.
        :raises migrator.operator.watch.errors.ApiUnreachable: the API does not answer now; the same request may succeed
            later.
        """
        url = 'the identity service'  # until it has named the compute endpoint
        more = {} if body is None else {'json': body}
        try:
            url = self._url(path)
            response = self._adapter.request(url, method, params=query, raise_exc=False, timeout=TIMEOUT, **more)
        except exceptions.SSLError as error:
            raise errors.ApiUntrusted(url=url, reason=exception.message_of(error)) from None
        except (exceptions.ConnectionError, exceptions.DiscoveryFailure, exceptions.HttpServerError) as error:
            raise errors.ApiUnreachable(url=url, reason=_reason_of(error)) from None
        except exceptions.ClientException as error:
            raise errors.ApiRefused(url=url, reason=exception.message_of(error)) from None
        if response.status_code >= 500:
            raise errors.ApiUnreachable(url=url, reason=_message_of(response))
        if response.status_code >= 400:
            refused = errors.ApiInvalid if response.status_code == 400 else errors.ApiRefused
            raise refused(url=url, reason=_message_of(response))
        try:
            found: dict[str, Any] = response.json()
        except ValueError:
            raise errors.ApiRefused(url=url, reason='the answer is not JSON: is it the API of migrator?') from None
        return found

    def _url(self, path: str) -> str:
        found = self._adapter.get_endpoint()
        if found is None:
            raise exceptions.EndpointNotFound('The catalog has no compute endpoint for this region and interface.')
        endpoint = parse.urlsplit(str(found))
        root = endpoint.path.partition('/v2')[0].rstrip('/')
        return endpoint._replace(path=f'{root}/migrator/v1{path}').geturl()


def _reason_of(error: exceptions.ClientException) -> str:
    """Return why a request has no answer.

    The operating system's reason is preferred, because the texts of the libraries repeat the URL.
    """
    if isinstance(error, exceptions.ConnectTimeout):
        return f'no answer within {TIMEOUT:g} s'
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return exception.message_of(error)


def _message_of(response: Any) -> str:
    """Return the message of an error, which is in nova's form: one object with the name of the error."""
    status = f'(HTTP {response.status_code})'
    try:
        (error,) = response.json().values()
        return f'{error["message"]} {status}'
    except (ValueError, TypeError, KeyError, AttributeError):  # not the API's form: a proxy may have replied
        return f'{response.text[:500]} {status}'


def client_from_conf(conf: cfg.ConfigOpts) -> Client:
    """Return the client of the cloud that the configuration or the environment names.

    A configuration with ``auth_strategy = noauth2`` names its own API: ``[api] listen`` and ``listen_port``. Otherwise
    the environment counts, as for the openstack client: ``OS_CLOUD``, or ``OS_AUTH_URL`` and so on.

    :raises migrator.exception.ConfigurationError: neither names a cloud.
    """
    service.register_opts(conf)
    if conf.api.auth_strategy == 'noauth2':
        host = f'[{conf.api.listen}]' if ':' in conf.api.listen else conf.api.listen
        auth = token_endpoint.Token(f'http://{host}:{conf.api.listen_port}/v2.1', _NOAUTH_TOKEN)
        return Client(session.Session(auth=auth))
    import openstack.config
    from openstack.exceptions import SDKException

    try:
        cloud = openstack.config.get_cloud_region(app_name='migrator-manage')
        return Client(
            cloud.get_session(),
            interface=cloud.get_interface('compute'),
            region_name=cloud.region_name,
            endpoint_override=cloud.get_endpoint('compute'),
        )
    except (exceptions.ClientException, SDKException) as error:
        raise exception.ConfigurationError(
            option='the cloud in the environment',
            value='incomplete',
            detail=f'{exception.message_of(error)} Name a cloud as for the openstack client: set OS_CLOUD, or '
            'OS_AUTH_URL, OS_USERNAME, OS_PASSWORD, OS_PROJECT_NAME and so on.',
        ) from None
