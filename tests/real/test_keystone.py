# SPDX-License-Identifier: Apache-2.0

"""API and Placement behind a real Keystone: who may do what, and tokens that expire."""

import datetime
import json
import pathlib
import sys
import uuid

import openstack
import pytest
import webob
from keystoneauth1 import identity, session

from migrator.objects import Flavor
from tests.functional import commands
from tests.real.cloud import ProcessCloud
from tests.real.servers import keystone as keystones
from tests.real.servers import placement
from tests.real.site import Shape, Site
from tests.real.tempest import front as fronts
from tests.real.tempest import suite

#: The first test waits for all servers.
pytestmark = pytest.mark.timeout(300)

DOMAIN = 'default'
#: The roles that Keystone knows by itself, and one that no policy names.
ROLES = ('admin', 'manager', 'member', 'reader', 'service', 'auditor')
#: The roles that have a role: Keystone's higher ones imply the lower ones.
LEAST = {
    'reader': {'admin', 'manager', 'member', 'reader'},
    'member': {'admin', 'manager', 'member'},
    'manager': {'admin', 'manager'},
    'admin': {'admin'},
}
_ACTION = ('POST', '/servers/{guest}/action')
#: The request; the least role of those that nova's policies allow it to; the status and words of the answer to them.
#: Both guests are suspended, so that no request moves them.
OPERATIONS = {
    'show': ('GET', '/servers/{guest}', None, 'reader', 200, '"id": "{guest}"'),
    'list actions': ('GET', '/servers/{guest}/os-instance-actions', None, 'reader', 200, '"instanceActions"'),
    'unlock': (*_ACTION, {'unlock': None}, 'member', 202, ''),
    'list migrations': ('GET', '/servers/{guest}/migrations', None, 'manager', 200, '"migrations": []'),
    'migrate': (
        *_ACTION, {'os-migrateLive': {'host': None, 'block_migration': 'auto'}}, 'manager', 409,
        "Cannot 'os-migrateLive' instance {guest}",
    ),
    'abort': ('DELETE', '/servers/{guest}/migrations/999', None, 'manager', 404, 'Migration 999 not found'),
    'show a migration': ('GET', '/servers/{guest}/migrations/999', None, 'admin', 404, '999'),
    'migrate to a host': (
        *_ACTION, {'os-migrateLive': {'host': 'host2', 'block_migration': 'auto'}}, 'admin', 409,
        "Cannot 'os-migrateLive' instance {guest}",
    ),
    'cold-migrate': (*_ACTION, {'migrate': None}, 'manager', 409, "Cannot 'migrate' instance {guest}"),
    'cold-migrate to a host': (
        *_ACTION, {'migrate': {'host': 'host2'}}, 'admin', 409, "Cannot 'migrate' instance {guest}",
    ),
    'resize': (*_ACTION, {'resize': {'flavorRef': 'roomy'}}, 'member', 409, "Cannot 'resize' instance {guest}"),
    'confirm': (*_ACTION, {'confirmResize': None}, 'member', 409, "Cannot 'confirmResize' instance {guest}"),
    'revert': (*_ACTION, {'revertResize': None}, 'member', 409, "Cannot 'revertResize' instance {guest}"),
}  # fmt: skip


class Identities:
    """The users and projects of a Keystone, as its administrator makes them."""

    def __init__(self, server):
        self.server = server
        self._admin = session.Session(auth=server.password('admin', 'admin'))
        self.projects = {}
        self.users = {}
        self.roles = {one['name']: one['id'] for one in self._admin.get(f'{server.url}/roles').json()['roles']}
        self.roles |= {'auditor': self._create('role', name='auditor')}
        for name in ('own', 'other'):
            self.projects[name] = self._create('project', name=name, domain_id=DOMAIN)
        for role in ROLES:
            password = keystones.PASSWORD
            self.users[role] = self._create('user', name=f'{role}1', domain_id=DOMAIN, password=password)
            where = f'projects/{self.projects["own"]}/users/{self.users[role]}/roles/{self.roles[role]}'
            self._admin.put(f'{server.url}/{where}')

    def _create(self, kind, **fields):
        return self._admin.post(f'{self.server.url}/{kind}s', json={kind: fields}).json()[kind]['id']

    def serve(self, kind, name, url):
        """Put a service into the catalog."""
        service = self._create('service', type=kind, name=name)
        self._create('endpoint', service_id=service, interface='public', url=url, region_id='RegionOne')

    def let_admin_govern(self):
        """Give the administrator's role on the whole system to the user who has it in a project."""
        self._admin.put(f'{self.server.url}/system/users/{self.users["admin"]}/roles/{self.roles["admin"]}')

    def token(self, role, project='own', **scope):
        """Return a new token of the user with a role."""
        return self.token_by(self.server.password(f'{role}1', project, **scope))

    def token_by(self, auth):
        return session.Session(auth=auth).get_token()

    def application_credential(self, role, expires_in=None):
        """Return the id and the secret of a new application credential with all roles of a user."""
        fields = {'name': uuid.uuid4().hex}
        if expires_in is not None:
            at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=expires_in)
            fields['expires_at'] = at.strftime('%Y-%m-%dT%H:%M:%S.%fZ')
        user = session.Session(auth=self.server.password(f'{role}1', 'own'))
        path = f'{self.server.url}/users/{self.users[role]}/application_credentials'
        made = user.post(path, json={'application_credential': fields}).json()['application_credential']
        return made['id'], made['secret']

    def by_credential(self, found):
        """Return how its holder gets tokens."""
        return identity.V3ApplicationCredential(
            auth_url=self.server.url, application_credential_id=found[0], application_credential_secret=found[1]
        )


@pytest.fixture(scope='module')
def identities(keystone):
    return Identities(keystone)


@pytest.fixture(scope='module')
def cloud(identities, workspace, postgresql, rabbitmq):
    """Return a cloud whose API and whose Placement both take tokens of the Keystone."""
    server = identities.server
    guarded = placement.Placement(workspace, postgresql.create_database('placement_keystone'), keystone_=server)
    guarded.start()
    identities.serve('placement', 'placement', guarded.url)
    options = {
        'api.auth_strategy': 'keystone',
        **{f'keystone_authtoken.{name}': value for name, value in server.options().items()},
        'placement.auth_type': 'password',
        **{f'placement.{name}': value for name, value in server.options().items() if name in _OF_A_CLIENT},
    }
    # tempest asks for block migrations, which need disks that no other host sees
    shape = Shape(hosts=2, options=tuple(options.items()), world=('--local-disks',))
    site = Site(workspace, shape, rabbitmq, postgresql, guarded)
    site.start()
    identities.serve('compute', 'nova', f'{site.url()}/v2.1')
    made = ProcessCloud(site)
    made.simulation.run_until(made.up)
    yield made
    made.close()
    site.end()


_OF_A_CLIENT = ('auth_url', 'username', 'password', 'project_name', 'user_domain_id', 'project_domain_id')


def boot(cloud, identities, name, project='own', **fields):
    return cloud.boot(name, 'host1', project_id=identities.projects[project], user_id='somebody', **fields)


def arrived(cloud, identities, guest, host):
    """Check that a guest was moved, and that the whole cloud is in order."""
    server = cloud.request('GET', f'/servers/{guest.uuid}', token=identities.token('admin')).json['server']
    assert (server['status'], server['OS-EXT-SRV-ATTR:host']) == ('ACTIVE', host)
    assert [one.status for one in cloud.migrations(guest)] == ['completed']
    cloud.judge(set())


def test_each_role_may_do_what_novas_policies_say_in_its_own_project(cloud, identities, record_property):
    guests = {name: boot(cloud, identities, name, name, vm_state='suspended') for name in identities.projects}
    wrong, cells = [], 0
    for role in ROLES:
        token = identities.token(role)
        for name, (method, path, body, least, status, text) in OPERATIONS.items():
            for project, guest in guests.items():
                answer = cloud.request(method, path.format(guest=guest.uuid), body, token=token)
                expected, words = status, text.format(guest=guest.uuid)
                if role not in LEAST[least]:
                    expected, words = 403, 'Policy does'
                if project == 'other' and role != 'admin':
                    expected, words = 404, f'Instance {guest.uuid} could not be found'
                cells += 1
                if answer.status_int != expected or words not in json.dumps(answer.json if answer.body else ''):
                    wrong.append(
                        f'{role}, {name}, {project}: {answer.status_int} {answer.text}, not {expected} {words}'
                    )
    record_property('cells', cells)
    assert not wrong, '\n'.join(wrong)
    assert cells == 156
    assert cloud.migrations() == []


def test_token_of_the_system_and_token_without_scope_may_do_nothing(cloud, identities):
    guest = boot(cloud, identities, 'scoped')
    identities.let_admin_govern()
    found = {
        scope: [
            cloud.request('GET', path, token=identities.token('admin', None, **values)).status_int
            for path in ('/os-services', f'/servers/{guest.uuid}')
        ]
        for scope, values in (('system', {'system_scope': 'all'}), ('none', {'unscoped': True}))
    }
    # Without a project, no server is one's own.
    assert found == {'system': [403, 403], 'none': [403, 404]}


def test_migration_ends_although_the_token_of_its_request_expires(cloud, identities):
    guest = boot(cloud, identities, 'long')
    copy = cloud.world.hypervisors['host1'].faults.stall('copying')
    token = identities.token_by(identities.by_credential(identities.application_credential('admin', expires_in=15)))
    migrate = {'os-migrateLive': {'host': 'host2', 'block_migration': 'auto'}}
    assert cloud.request('POST', f'/servers/{guest.uuid}/action', migrate, token=token).status_int == 202
    cloud.simulation.run_until(copy.is_set)
    show = f'/servers/{guest.uuid}'
    cloud.simulation.run_until(lambda: cloud.request('GET', show, token=token).status_int == 401)
    # What another service does for a user outlasts the user's token, if that service shows its own.
    request = webob.Request.blank(f'/v2.1{show}', headers={'X-Auth-Token': token})
    for role, status in (('service', 200), ('member', 401)):
        request.headers['X-Service-Token'] = identities.token(role)
        assert cloud.served(request).status_int == status
    assert cloud.request('GET', show, token=identities.token('reader')).json['server']['status'] == 'MIGRATING'
    copy.release()
    cloud.wait()
    arrived(cloud, identities, guest, 'host2')


@pytest.fixture
def command(identities, tmp_path):
    """Run ``openstack`` or ``nova`` with what gets its tokens, and return its output."""

    def run(client, auth, *words):
        known = {'OS_AUTH_URL': identities.server.url, 'OS_COMPUTE_API_VERSION': '2.80'}
        env = commands.environment(tmp_path, **known, **{f'OS_{name}': value for name, value in auth.items()})
        done = commands.client([str(pathlib.Path(sys.executable).with_name(client)), *words], env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_application_credential_works_with_the_openstack_command(cloud, identities, command):
    name, secret = identities.application_credential('admin')
    auth = {
        'AUTH_TYPE': 'v3applicationcredential',
        'APPLICATION_CREDENTIAL_ID': name,
        'APPLICATION_CREDENTIAL_SECRET': secret,
    }
    guest = boot(cloud, identities, 'by-command')
    command('openstack', auth, 'server', 'migrate', '--live-migration', '--host', 'host2', '--wait', guest.uuid)
    (row,) = json.loads(command('openstack', auth, 'server', 'migration', 'list', '--server', guest.uuid, '-f', 'json'))
    assert row['Status'] == 'completed'
    arrived(cloud, identities, guest, 'host2')


#: The client; the least role that it needs by nova's policies; what it does first, then, and how the migration ends.
#: Each moves a guest to the other host, with the flavor that it does not have, or with the same.
COLD = (
    ('openstack', 'member', 'server resize --flavor {flavor} {guest}', 'server resize confirm {guest}', 'confirmed'),
    ('nova', 'member', 'resize {guest} {flavor}', 'resize-revert {guest}', 'reverted'),
    ('sdk', 'member', 'resize_server {guest} {flavor}', 'confirm_server_resize {guest}', 'confirmed'),
    ('openstack', 'manager', 'server migrate {guest}', 'server migration revert {guest}', 'reverted'),
    ('nova', 'manager', 'migrate {guest}', 'resize-confirm {guest}', 'confirmed'),
    ('sdk', 'manager', 'migrate_server {guest}', 'revert_server_resize {guest}', 'reverted'),
)


def test_clients_resize_and_cold_migrate_with_tokens_of_keystone(cloud, identities, command):
    flavors = [Flavor(name=name, vcpus=1, memory_mb=ram, root_gb=1) for name, ram in (('snug', 256), ('roomy', 512))]
    for flavor in flavors:
        cloud.database.flavors.create(flavor)
    guest = boot(cloud, identities, 'cold', flavor=flavors[0])
    admin, host, flavor = identities.token('admin'), 'host1', 'snug'

    def act(client, role, words):
        if client == 'sdk':
            auth = identities.server.password(f'{role}1', 'own')
            name, *values = words.split()
            sdk = openstack.connection.Connection(session=session.Session(auth=auth), region_name='RegionOne')
            return getattr(sdk.compute, name)(*values)
        auth = {'USERNAME': f'{role}1', 'PASSWORD': keystones.PASSWORD, 'PROJECT_NAME': 'own'}
        return command(client, auth | {'USER_DOMAIN_ID': DOMAIN, 'PROJECT_DOMAIN_ID': DOMAIN}, *words.split())

    def shown():
        found = cloud.request('GET', f'/servers/{guest.uuid}', token=admin).json['server']
        return found['status'], found['OS-EXT-SRV-ATTR:host'], found['flavor']['original_name']

    for client, role, first, then, end in COLD:
        there = ('host2' if host == 'host1' else 'host1', flavor)
        if '{flavor}' in first:
            there = (there[0], 'roomy' if flavor == 'snug' else 'snug')
        act(client, role, first.format(guest=guest.uuid, flavor=there[1]))
        cloud.simulation.run_until(lambda: cloud.migrations(guest)[-1].status == 'finished')
        assert shown() == ('VERIFY_RESIZE', *there), (client, first)
        act(client, role, then.format(guest=guest.uuid))
        cloud.wait()
        if end == 'confirmed':
            host, flavor = there
        assert shown() == ('ACTIVE', host, flavor), (client, first)
    assert [one.status for one in cloud.migrations(guest)] == [end for *_, end in COLD]
    cloud.judge(set())


@pytest.mark.timeout(900)
def test_tempests_tests_pass_but_for_those_that_cannot_apply(cloud, identities, tmp_path, record_property):
    # migrator knows the flavors that guests have
    for name, flavor in fronts.FLAVORS.items():
        boot(cloud, identities, f'with-flavor-{name}', flavor=flavor)
    front = fronts.Front(cloud, identities.server.url)
    identities.serve(suite.SERVICE, 'front', f'{front.url}/v2.1')
    suite.configure(tmp_path, identities.server.url, 'own')
    try:
        outcomes = suite.run(tmp_path, timeout=800)
    finally:
        front.close()
    record_property('tests', len(outcomes))
    assert not (wrong := suite.wrong(outcomes, suite.table())), '\n\n'.join(wrong)
    assert front.errors == []
    cloud.judge(set())
