# SPDX-License-Identifier: Apache-2.0

"""How clouds are configured: files, variables and catalogs, with where each has to end."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping

from tests.unit.nova import cloud_server

NOVA, PLACEMENT = '/nova/v2.1/os-services', '/placement/resource_providers'
_IN_PROJECT = f'/nova/v2.1/{cloud_server.PROJECT}/os-services'


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to configure a cloud.

    :ivar files: name -> text. In them and in the variables ``@URL@`` is the address of the server, ``@HOME@`` the
        folder of the files, and ``@CLOSED@`` an address where nothing listens.
    :ivar finds: the paths of the two requests, in case of success.
    :ivar refuses: parts of the error.
    :ivar unlike: why the openstack client ends elsewhere.
    """

    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cloud: str | None = None
    region: str | None = None
    finds: tuple[str, str] | None = (NOVA, PLACEMENT)
    refuses: tuple[str, ...] = ()
    unlike: str | None = None

    def write(self, home: pathlib.Path, url: str, closed: str) -> dict[str, str]:
        """Write the files, and return the variables."""

        def fill(text: str) -> str:
            return text.replace('@CLOSED@', closed).replace('@URL@', url).replace('@HOME@', str(home))

        for name, text in self.files.items():
            (home / name).write_text(fill(text))
        at = {'OS_CLIENT_CONFIG_FILE': str(home / 'clouds.yaml'), 'OS_CLIENT_SECURE_FILE': str(home / 'secure.yaml')}
        return at | {name: fill(value) for name, value in self.variables.items()}


def clouds(user: str, *more: str, auth: str = '', name: str = 'mine') -> dict[str, str]:
    """Return a ``clouds.yaml`` with one cloud.

    :param user: names the catalog.
    :param more: further options, one a line.
    """
    lines = [f'  {name}:', *(f'    {line}' for line in more), '    auth:']
    lines += [f'      {line}' for line in _auth(user)] + ([f'      {auth}'] if auth else [])
    return {'clouds.yaml': '\n'.join(['clouds:', *lines, ''])}


def _auth(user: str, password: str = cloud_server.PASSWORD) -> list[str]:
    return [
        'auth_url: @URL@/identity',
        f'username: {user}',
        f'password: {password}',
        'project_name: admin',
        'user_domain_name: Default',
        'project_domain_name: Default',
    ]


def _variables(user: str, **more: str) -> dict[str, str]:
    named = dict(line.split(': ', 1) for line in _auth(user))
    return {f'OS_{name.upper()}': value for name, value in named.items()} | more


def _of(user: str, *more: str, **fields) -> Variant:
    return Variant(clouds(user, *more), cloud='mine', **fields)


_WITHOUT_PASSWORD = {'clouds.yaml': clouds('plain')['clouds.yaml'].replace('      password: a secret\n', '')}
_TWO = {
    'clouds.yaml': clouds('plain')['clouds.yaml']
    + '\n'.join(clouds('slash', name='other')['clouds.yaml'].split('\n')[1:])
}

#: Why the client ends elsewhere.
_PLAIN = 'osc-placement reads no options of single services'

VARIANTS: dict[str, Variant] = {
    # --- catalogs ---
    'versioned entry': _of('plain'),
    'versioned entry with a slash': _of('slash'),
    'unversioned entry': _of('unversioned'),
    'unversioned entry with a slash': _of('unversioned-slash'),
    'entry with the project': _of('with-project', finds=(_IN_PROJECT, PLACEMENT)),
    'discovery at the root only': _of('root-only', finds=('/root-only/v2.1/os-services', PLACEMENT)),
    'discovery at the root only, unversioned': _of(
        'root-only-unversioned', finds=('/root-only/v2.1/os-services', PLACEMENT)
    ),
    'discovery at the root only, with the project': _of(
        'root-only-project', finds=(f'/root-only/v2.1/{cloud_server.PROJECT}/os-services', PLACEMENT)
    ),
    'links to an internal host': _of('other-links', finds=('/other-links/v2.1/os-services', PLACEMENT)),
    'entry of the legacy API': _of('legacy', finds=(_IN_PROJECT, PLACEMENT), unlike='v2.0 has no microversions'),
    'old Placement without a status': _of('old-placement', finds=(NOVA, '/placement-old/resource_providers')),
    'no compute service': _of('no-compute', finds=None, refuses=('no endpoint of type compute',)),
    'Nova is away': _of('silent', finds=None, refuses=('Nova is not reachable', '503')),
    'another server instead of Nova': _of(
        'web', finds=None, refuses=('/web/v2.1 shows no microversions of version 2.1',)
    ),
    # --- interfaces, types, names and overrides ---
    'interface of the cloud': _of(
        'interfaces',
        'interface: internal',
        finds=('/nova-internal/v2.1/os-services', '/placement-internal/resource_providers'),
    ),
    'interface by its old name': _of(
        'interfaces',
        'endpoint_type: internalURL',
        finds=('/nova-internal/v2.1/os-services', '/placement-internal/resource_providers'),
    ),
    'interface of one service': _of(
        'interfaces', 'compute_interface: admin', finds=('/nova-admin/v2.1/os-services', PLACEMENT)
    ),
    'interface of a variable': _of(
        'interfaces',
        variables={'OS_INTERFACE': 'internal'},
        finds=('/nova-internal/v2.1/os-services', '/placement-internal/resource_providers'),
    ),
    'interface that does not exist': _of('plain', 'interface: internal', finds=None, refuses=('internal', 'public')),
    'compute_service_type': _of('types', 'compute_service_type: computev21'),
    'placement_service_type': _of(
        'types',
        'compute_service_type: computev21',
        'placement_service_type: placement-two',
        finds=(NOVA, '/placement-two/resource_providers'),
        unlike=_PLAIN,
    ),
    'compute_service_name': _of('names', 'compute_service_name: nova'),
    'compute_api_version': _of('plain', 'compute_api_version: 2.1'),
    'compute_default_microversion': _of('unversioned', "compute_default_microversion: '2.79'"),
    'override with a version': _of('no-compute', 'compute_endpoint_override: @URL@/nova/v2.1'),
    'override without a version': _of('no-compute', 'compute_endpoint_override: @URL@/nova'),
    'override of Placement': _of(
        'plain',
        'placement_endpoint_override: @URL@/placement-two',
        finds=(NOVA, '/placement-two/resource_providers'),
        unlike=_PLAIN,
    ),
    'no identity service': Variant(
        {
            'clouds.yaml': 'clouds:\n  mine:\n    auth_type: none\n    compute_endpoint_override: @URL@/nova/v2.1\n'
            '    placement_endpoint_override: @URL@/placement\n'
        },
        cloud='mine',
        unlike=_PLAIN,
    ),
    # --- regions ---
    'several regions in the catalog': _of(
        'regions',
        finds=None,
        refuses=('RegionOne', 'RegionTwo', '--os-region-name'),
        unlike='the client takes the first',
    ),
    'region of the cloud': _of(
        'regions', 'region_name: RegionTwo', finds=('/nova-two/v2.1/os-services', '/placement-two/resource_providers')
    ),
    'region of the command line': _of(
        'regions', region='RegionTwo', finds=('/nova-two/v2.1/os-services', '/placement-two/resource_providers')
    ),
    'region of a variable': _of(
        'regions',
        variables={'OS_REGION_NAME': 'RegionTwo'},
        finds=('/nova-two/v2.1/os-services', '/placement-two/resource_providers'),
    ),
    'region of one service': _of(
        'regions',
        'region_name: RegionOne',
        'compute_region_name: RegionTwo',
        finds=('/nova-two/v2.1/os-services', PLACEMENT),
    ),
    'region that the catalog lacks': _of(
        'regions', 'region_name: RegionTen', finds=None, refuses=('RegionTen', 'RegionOne, RegionTwo')
    ),
    'several regions in the file': _of(
        'regions',
        'regions: [RegionOne, {name: RegionTwo}]',
        finds=None,
        refuses=('RegionOne, RegionTwo', '--os-region-name'),
        unlike='the client takes the first',
    ),
    'one of the regions in the file': _of(
        'regions',
        'regions: [RegionOne, {name: RegionTwo}]',
        region='RegionTwo',
        finds=('/nova-two/v2.1/os-services', '/placement-two/resource_providers'),
    ),
    'region that the file lacks': _of(
        'regions',
        'regions: [RegionOne, RegionTwo]',
        region='RegionTen',
        finds=None,
        refuses=('RegionTen', 'RegionOne, RegionTwo'),
    ),
    # --- variables ---
    'variables alone': Variant(variables=_variables('unversioned')),
    'variables with old names': Variant(
        variables=_variables('plain', OS_TENANT_NAME='admin') | {'OS_PROJECT_NAME': ''}
    ),
    'variables without domains': Variant(
        variables={
            name: value
            for name, value in _variables('plain', OS_IDENTITY_API_VERSION='3').items()
            if 'DOMAIN' not in name
        }
    ),
    'token of a variable': Variant(
        variables={
            'OS_AUTH_TYPE': 'v3token',
            'OS_TOKEN': 'plain',
            'OS_AUTH_URL': '@URL@/identity/v3',
            'OS_PROJECT_NAME': 'admin',
            'OS_PROJECT_DOMAIN_NAME': 'Default',
        }
    ),
    'region of the command line above that of a variable': Variant(
        variables=_variables('regions', OS_REGION_NAME='RegionOne'),
        region='RegionTwo',
        finds=('/nova-two/v2.1/os-services', '/placement-two/resource_providers'),
        unlike='the client refuses a region besides that of the variable',
    ),
    'variables beside an empty file': Variant({'clouds.yaml': ''}, variables=_variables('plain')),
    'variables beside a file without clouds': Variant({'clouds.yaml': 'client: {}\n'}, variables=_variables('plain')),
    'application credential': Variant(
        {
            'clouds.yaml': 'clouds:\n  mine:\n    auth_type: v3applicationcredential\n    auth:\n'
            '      auth_url: @URL@/identity/v3\n      application_credential_id: unversioned\n'
            '      application_credential_secret: a secret\n'
        },
        cloud='mine',
    ),
    'application credential of variables': Variant(
        variables={
            'OS_AUTH_TYPE': 'v3applicationcredential',
            'OS_AUTH_URL': '@URL@/identity/v3',
            'OS_APPLICATION_CREDENTIAL_ID': 'unversioned',
            'OS_APPLICATION_CREDENTIAL_SECRET': cloud_server.PASSWORD,
        }
    ),
    'anchors in YAML': Variant(
        {
            'clouds.yaml': clouds('plain', name='base &base')['clouds.yaml'].replace('base &base:', 'base: &base')
            + '  mine: *base\n'
        },
        cloud='mine',
    ),
    'cloud of a variable': Variant(_TWO, variables={'OS_CLOUD': 'other'}),
    'password of a variable': Variant(
        _WITHOUT_PASSWORD, variables={'OS_PASSWORD': cloud_server.PASSWORD}, cloud='mine'
    ),
    'password in secure.yaml': Variant(
        _WITHOUT_PASSWORD | {'secure.yaml': 'clouds:\n  mine:\n    auth:\n      password: a secret\n'}, cloud='mine'
    ),
    'only cloud of the file': Variant(clouds('plain')),
    # --- what is wrong ---
    'broken YAML': Variant(
        {'clouds.yaml': 'clouds:\n  mine:\n    auth: {username: a\n'},
        cloud='mine',
        finds=None,
        refuses=('@HOME@/clouds.yaml, line 4',),
    ),
    'tab in YAML': Variant(
        {'clouds.yaml': 'clouds:\n  mine:\n\tauth: x\n'},
        cloud='mine',
        finds=None,
        refuses=('@HOME@/clouds.yaml, line 3',),
    ),
    'byte that is no text': Variant(
        {'clouds.yaml': 'clouds:\n  mine:\n    x: \x07\n'},
        cloud='mine',
        finds=None,
        refuses=('@HOME@/clouds.yaml, line 3',),
    ),
    'broken secure.yaml': Variant(
        clouds('plain') | {'secure.yaml': 'clouds: ]\n'},
        cloud='mine',
        finds=None,
        refuses=('@HOME@/secure.yaml, line 1',),
        unlike='the client ignores the file',
    ),
    'list of clouds': Variant(
        {'clouds.yaml': '# mine\nclouds:\n  - name: mine\n'},
        cloud='mine',
        finds=None,
        refuses=('@HOME@/clouds.yaml, line 3', 'clouds'),
    ),
    'file without clouds': Variant(
        {'clouds.yaml': 'mine:\n  auth: {}\n'},
        cloud='mine',
        finds=None,
        refuses=('@HOME@/clouds.yaml, line 1', 'clouds'),
    ),
    'empty file': Variant({'clouds.yaml': ''}, cloud='mine', finds=None, refuses=('@HOME@/clouds.yaml', 'empty')),
    'empty cloud': Variant(
        {'clouds.yaml': 'clouds:\n  mine:\n'}, cloud='mine', finds=None, refuses=('@HOME@/clouds.yaml, line 2', 'mine')
    ),
    'auth is a text': Variant(
        {'clouds.yaml': 'clouds:\n  mine:\n    auth: admin\n'},
        cloud='mine',
        finds=None,
        refuses=('@HOME@/clouds.yaml, line 3', 'auth'),
    ),
    'unknown cloud': Variant(
        _TWO, cloud='misspelt', finds=None, refuses=('misspelt', '@HOME@/clouds.yaml', 'mine, other')
    ),
    'unknown cloud, and no file': Variant(cloud='misspelt', finds=None, refuses=('misspelt', '@HOME@/clouds.yaml')),
    'several clouds, and none named': Variant(_TWO, finds=None, refuses=('@HOME@/clouds.yaml', 'mine, other')),
    'nothing at all': Variant(finds=None, refuses=('OS_CLOUD', 'OS_AUTH_URL')),
    'unknown auth_type': _of('plain', 'auth_type: pasword', finds=None, refuses=('pasword',)),
    'no auth_url': Variant(
        {'clouds.yaml': 'clouds:\n  mine:\n    auth:\n      username: plain\n'},
        cloud='mine',
        finds=None,
        refuses=('auth_url',),
    ),
    'no password': Variant(_WITHOUT_PASSWORD, cloud='mine', finds=None, refuses=('password',)),
    'braces in the auth_url': Variant(
        {'clouds.yaml': clouds('plain')['clouds.yaml'].replace('@URL@', 'http://{host}')},
        cloud='mine',
        finds=None,
        refuses=("'host' in braces",),
    ),
    'missing file of the CA': Variant(
        {
            'clouds.yaml': clouds('plain', 'cacert: /nowhere/ca.pem')['clouds.yaml'].replace(
                '@URL@', 'https://127.0.0.1:1'
            )
        },
        cloud='mine',
        finds=None,
        refuses=('identity service', '/nowhere/ca.pem'),
    ),
    'wrong password': Variant(
        {'clouds.yaml': clouds('plain')['clouds.yaml'].replace('a secret', 'wrong')},
        cloud='mine',
        finds=None,
        refuses=('identity service', 'credentials'),
    ),
    'identity service is away': Variant(
        {'clouds.yaml': clouds('plain')['clouds.yaml'].replace('@URL@', '@CLOSED@')},
        cloud='mine',
        finds=None,
        refuses=('identity service', '@CLOSED@'),
    ),
}
