# SPDX-License-Identifier: Apache-2.0

"""A cloud, as the openstack client finds it: by ``clouds.yaml``, ``OS_*`` variables and the catalog."""

from __future__ import annotations

import dataclasses
import datetime
import getpass
import os
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import openstack.config
import yaml
from keystoneauth1 import adapter, exceptions, loading
from keystoneauth1.access.service_catalog import ServiceCatalog
from keystoneauth1.identity.base import BaseIdentityPlugin
from openstack.config import loader
from openstack.config.cloud_region import CloudRegion
from openstack.exceptions import ConfigException, SDKException

from migrator import exception
from migrator.nova import client
from migrator.placement_client.client import ROCKY, PlacementClient, public

#: The variables that have precedence over a named cloud, besides those of the auth plug-in.
_OVER_A_CLOUD = {'OS_INTERFACE': 'interface', 'OS_CACERT': 'cacert', 'OS_CERT': 'cert', 'OS_KEY': 'key'}
#: The old names of variables of auth plug-ins.
_OLD_NAMES = {'OS_PROJECT_NAME': 'OS_TENANT_NAME', 'OS_PROJECT_ID': 'OS_TENANT_ID'}
_HOW = (
    'Name a cloud as for the openstack client: give --os-cloud, or set OS_CLOUD, or OS_AUTH_URL, OS_USERNAME, '
    'OS_PASSWORD, OS_PROJECT_NAME and so on.'
)


@dataclasses.dataclass(frozen=True)
class File:
    """The first ``clouds.yaml`` that can be read.

    :ivar path: None if no file was found.
    :ivar clouds: the names of its clouds.
    """

    path: str | None
    clouds: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Identity:
    """What the identity service says of the user.

    :ivar url: its address.
    :ivar roles: the roles in the project, or in the whole system if ``project`` is None.
    """

    url: str
    user: str | None
    project: str | None
    roles: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Cloud:
    """A cloud that was found. Its identity service has answered, if it has one.

    :ivar name: its name in ``clouds.yaml``; None: it comes from ``OS_*`` variables.
    :ivar file: where it was looked for.
    :ivar region: None: the endpoint does not come from a catalog.
    :ivar has_one_region: whether it is found without the name of its region.
    :ivar endpoint: the URL of Nova in the catalog, whatever its interface, or the override of the catalog.
    :ivar identity: None: there is no identity service.
    :ivar lasts_until: when its credentials end, if they cannot be renewed; None: they can.
    """

    name: str | None
    file: File
    region: str | None
    has_one_region: bool
    endpoint: str
    identity: Identity | None
    compute: adapter.Adapter
    placement: adapter.Adapter
    lasts_until: datetime.datetime | None = None

    def clients(self) -> tuple[client.Nova, PlacementClient]:
        """Return the clients of its services."""
        return client.Nova(self.compute), PlacementClient(self.placement, ROCKY)


def find(cloud: str | None = None, region: str | None = None) -> Cloud:
    """Find a cloud, and read its catalog.

    :param cloud: its name in ``clouds.yaml``; None: ``OS_CLOUD`` or the other variables.
    :param region: None: ``OS_REGION_NAME``, or the region of the cloud.
    :raises migrator.exception.ConfigurationError: no cloud is named, or what is known of it is not enough.
    :raises migrator.nova.errors.NovaUnreachable: the identity service does not answer, or refuses the credentials.
    """
    name = cloud or os.environ.get('OS_CLOUD') or None
    region = region or os.environ.get('OS_REGION_NAME') or None
    file = read_files(name)
    found, of_cloud = _configured(name, region, file)
    compute, placement = (_adapter(found, service) for service in ('compute', 'placement'))
    auth = found.get_auth()
    catalog, identity, lasts_until = None, None, None
    if isinstance(auth, BaseIdentityPlugin):
        with client.of_identity():
            access = auth.get_access(compute.session)
        catalog, lasts_until = access.service_catalog, access.expires if _is_for_once(auth) else None
        identity = Identity(auth.auth_url or '', access.username, access.project_name, tuple(access.role_names or ()))
    if catalog is None or compute.endpoint_override:
        endpoint = str(compute.get_endpoint(skip_discovery=True) or '')
        return Cloud(name, file, None, True, endpoint, identity, compute, placement, lasts_until)
    endpoint, regions = _look_up(catalog, compute, name)
    if placement.region_name is None:
        placement.region_name = compute.region_name
    has_one_region = len(of_cloud or regions) == 1
    return Cloud(name, file, compute.region_name, has_one_region, endpoint, identity, compute, placement, lasts_until)


# --- the files -------------------------------------------------------------------------------------------------------


def read_files(cloud: str | None) -> File:
    """Check the files that would be read, and return which clouds there are.

    The SDK leaves out a file that it cannot parse, and goes on with another one.

    :param cloud: the cloud that is wanted; None: whichever is the only one.
    :raises migrator.exception.ConfigurationError: a file is broken.
    """
    given = os.environ.get('OS_CLIENT_CONFIG_FILE')
    path, node = _first(([given] if given else []) + loader.CONFIG_FILES)
    secure = os.environ.get('OS_CLIENT_SECURE_FILE')
    secure_path, secure_node = _first(([secure] if secure else []) + loader.SECURE_FILES)
    names = [name for name, _ in _clouds_of(path, node, cloud)] if path is not None else []
    if secure_path is not None:
        names += [name for name, _ in _clouds_of(secure_path, secure_node, cloud) if name not in names]
    return File(path or secure_path, tuple(names))


def _first(paths: list[str]) -> tuple[str | None, yaml.Node | None]:
    """Return the first file that exists and can be read, and its content."""
    for path in paths:
        try:
            content = pathlib.Path(path).read_bytes()
        except OSError:
            continue
        return path, _parsed(path, content)
    return None, None


def _parsed(path: str, content: bytes) -> yaml.Node | None:
    # JSON is YAML, but for a few escapes that these files do not need.
    try:
        reader = yaml.SafeLoader(content)
        node = reader.get_single_node()
        if node is not None:
            reader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f', line {mark.line + 1}, column {mark.column + 1}' if mark is not None else ''
        raise _broken(f'{path}{at}: {error.problem or error.context}') from None
    except yaml.reader.ReaderError as error:
        line = content[: error.position].count(b'\n') + 1
        raise _broken(f'{path}, line {line}: {error.reason}') from None
    except (ValueError, RecursionError) as error:
        raise _broken(f'{path}: {error}') from None
    return node


def _clouds_of(path: str, node: yaml.Node | None, wanted: str | None) -> Iterator[tuple[str, yaml.Node]]:
    """Yield the clouds of a file.

    :param wanted: the cloud that is checked; None: the only one.
    :raises migrator.exception.ConfigurationError: the file has no clouds, or the wanted one is not a mapping.
    """
    clouds = dict(_items(path, node, 'the file')).get('clouds') if node is not None else None
    if clouds is None:
        if wanted is None:
            return  # the variables may name one
        at = f'{path} is empty' if node is None else f'{path}, line {_line(node)}'
        raise _broken(f'{at}: there is no mapping named clouds')
    found = [*_items(path, clouds, 'clouds')]
    for name, one in found:
        if name == wanted or (wanted is None and len(found) == 1):
            auth = dict(_items(path, one, f'cloud {name}')).get('auth')
            if auth is not None:
                [*_items(path, auth, f'auth of cloud {name}')]
    yield from found


def _items(path: str, node: yaml.Node, what: str) -> Iterator[tuple[str, yaml.Node]]:
    if not isinstance(node, yaml.MappingNode):
        raise _broken(f'{path}, line {_line(node)}: {what} is not a mapping')
    for key, value in node.value:
        yield str(key.value), value


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _broken(detail: str) -> exception.ConfigurationError:
    return exception.ConfigurationError(f'A file of clouds cannot be read: {public(detail)}. Correct it there.')


# --- what is configured ----------------------------------------------------------------------------------------------


class _Config(openstack.config.OpenStackConfig):
    """The SDK's configuration. As with the openstack client, a variable has precedence over a named cloud."""

    def auth_config_hook(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a cloud with those that variables name."""
        auth = config['auth'] = config.get('auth') or {}
        config['auth_type'] = os.environ.get('OS_AUTH_TYPE') or config.get('auth_type') or 'password'
        options = loading.get_plugin_loader(config['auth_type']).get_options()
        for option in options:
            variable = f'OS_{option.dest.upper()}'
            value = os.environ.get(variable) or os.environ.get(_OLD_NAMES.get(variable, ''))
            if value:
                auth[option.dest] = value
        version = os.environ.get('OS_IDENTITY_API_VERSION') or config.get('identity_api_version')
        if str(version) == '3' and config['auth_type'] in ('password', 'v3password', 'v3totp'):
            default = os.environ.get('OS_DEFAULT_DOMAIN') or config.get('default_domain') or 'default'
            for owner in ('user', 'project'):
                if not (auth.get(f'{owner}_domain_id') or auth.get(f'{owner}_domain_name')):
                    auth[f'{owner}_domain_id'] = default
        has_url = bool(auth.get('auth_url'))
        if has_url and not _can_ask() and 'password' in {one.dest for one in options} and not auth.get('password'):
            raise ConfigException('it has no password: give it in clouds.yaml or secure.yaml, or set OS_PASSWORD')
        return config


def _configured(name: str | None, region: str | None, file: File) -> tuple[CloudRegion, list[str]]:
    """Return the options of a cloud, and the regions that its file names."""
    where = f'{file.path} has the clouds {", ".join(file.clouds)}' if file.clouds else _no_file(file)
    try:
        config = _Config(app_name='migrator-drain', pw_func=_ask if _can_ask() else None)
        if name is not None and name not in config.get_cloud_names():
            raise _unusable(name, f'there is no cloud of this name. {where}')
        if region is not None:
            # It has precedence over OS_REGION_NAME, which the SDK would take for the only region of the variables.
            (config.cloud_config['clouds'].get(config.envvar_key) or {}).pop('region_name', None)
        of_cloud = _regions(config.cloud_config['clouds'].get(name or config.default_cloud) or {})
        if region is None and len(of_cloud) > 1:
            raise _no_region(None, f'the cloud has the regions {", ".join(of_cloud)}')
        if region is not None and of_cloud and region not in of_cloud:
            raise _no_region(region, f'the cloud has the regions {", ".join(of_cloud)}')
        options: dict[str, Any] = {
            option: os.environ[variable] for variable, option in _OVER_A_CLOUD.items() if os.environ.get(variable)
        }
        found = config.get_one(cloud=name, region_name=region or '', **options)
        found.get_session()
    except (exceptions.ClientException, SDKException, TypeError, AttributeError, ValueError) as error:
        also = f' {where}.' if name is None and file.clouds else ''
        why = str(error) if isinstance(error, SDKException) else exception.message_of(error)
        raise _unusable(name, f'{why.rstrip(".")}.{also}') from None
    except LookupError as error:
        raise _unusable(name, f'a value has {error} in braces, and there is no other value of this name') from None
    return found, of_cloud


def _can_ask() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _ask(prompt: str | None = None) -> str:
    # A detached process, which inherits it, has no terminal to ask at.
    os.environ['OS_PASSWORD'] = getpass.getpass(prompt or 'Password: ')
    return os.environ['OS_PASSWORD']


def _is_for_once(auth: BaseIdentityPlugin) -> bool:
    """Return whether credentials give no second token, as a token and a one-time password do."""
    methods = [auth, *getattr(auth, 'auth_methods', ())]
    return any(word in type(one).__name__.lower() for one in methods for word in ('token', 'totp'))


def _no_file(file: File) -> str:
    """Return where files were looked for, in words."""
    if file.path is not None:
        return f'{file.path} has no clouds'
    given = os.environ.get('OS_CLIENT_CONFIG_FILE')
    named = f'{given} (OS_CLIENT_CONFIG_FILE), and ' if given else ''
    return f'{named}{", ".join(loader.CONFIG_SEARCH_PATH)} have no clouds.yaml that can be read'


def _unusable(name: str | None, detail: str) -> exception.ConfigurationError:
    return exception.ConfigurationError(option='--os-cloud', value=name, detail=f'{public(detail).rstrip(".")}. {_HOW}')


def _regions(cloud: Mapping[str, Any]) -> list[str]:
    """Return the regions that a cloud of a file names."""
    found = cloud.get('regions') or cloud.get('region_name') or []
    found = found.split(',') if isinstance(found, str) else found
    return [str(one.get('name')) if isinstance(one, Mapping) else str(one) for one in found]


def _no_region(region: str | None, detail: str) -> exception.ConfigurationError:
    detail = f'{detail}. Name one of them by --os-region-name'
    return exception.ConfigurationError(option='--os-region-name', value=region, detail=f'{detail}, or OS_REGION_NAME.')


def _adapter(config: CloudRegion, service: str) -> adapter.Adapter:
    interface = config.get_interface(service)
    if isinstance(interface, str):
        interface = re.sub('URL$', '', interface)
    found = adapter.Adapter(
        config.get_session(),
        service_type=config.get_service_type(service),
        service_name=config.get_service_name(service),
        interface=interface,
        region_name=config.get_region_name(service) or None,
        endpoint_override=config.get_endpoint(service),
    )
    return client.versioned(found) if service == 'compute' else found


# --- the catalog -----------------------------------------------------------------------------------------------------


def _look_up(catalog: ServiceCatalog, compute: adapter.Adapter, name: str | None) -> tuple[str, list[str]]:
    """Return the endpoint of Nova and the regions that have one, and set its region.

    :raises migrator.exception.ConfigurationError: the catalog has no endpoint, or those of several regions.
    """
    kind = compute.service_type
    # keystoneauth1 fails with an IndexError if an interface is given that no endpoint has.
    found = catalog.get_endpoint_data_list(kind, interface=None, service_name=compute.service_name)
    if not found:
        named = f' and name {compute.service_name}' if compute.service_name else ''
        types = ', '.join(sorted({one['type'] for one in catalog.normalize_catalog()})) or 'nothing'
        raise _unusable(name, f'its catalog has no endpoint of type {kind}{named}, but {types}')
    wanted = compute.interface if isinstance(compute.interface, list) else [compute.interface or 'public']
    usable = [one for one in found if one.interface in wanted]
    if not usable:
        has = ', '.join(sorted({str(one.interface) for one in found}))
        raise _unusable(name, f'its catalog has no {" or ".join(wanted)} endpoint of type {kind}, but those: {has}')
    regions = sorted({str(one.region_name) for one in usable})
    if compute.region_name is None and len(regions) > 1:
        raise _no_region(None, f'the catalog has Nova in the regions {", ".join(regions)}')
    if compute.region_name is not None and compute.region_name not in regions:
        raise _no_region(compute.region_name, f'the catalog has Nova in the regions {", ".join(regions)}')
    compute.region_name = compute.region_name or regions[0]
    of_region = [one for one in found if one.region_name == compute.region_name]
    # All who use one Nova have to find the same URL, whatever their interface.
    of_region.sort(key=lambda one: (one.interface != 'public', str(one.interface)))
    return str(of_region[0].catalog_url), regions
