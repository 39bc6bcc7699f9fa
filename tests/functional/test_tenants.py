# SPDX-License-Identifier: Apache-2.0

"""What a tenant reads of moves that fail: sentences of one table, and no other text.

Each kind of error carries a canary. Then each role asks for whatever it may: every route, in several versions.
"""

import re

import pytest

from migrator.api import policies, routes, tenants
from migrator.api.own.routes import OWN
from migrator.objects import MigrationStatus
from migrator.objects.reasons import FailureKind
from migrator.testing import placement_faults
from migrator.testing.placement_faults import Fault
from tests.functional.faults import faults
from tests.functional.test_evacuation import evacuate, lose

pytestmark = [
    pytest.mark.simulated(reason='it plants errors, and reads the database of the cloud'),
    pytest.mark.not_quiet(reason='what it breaks stays broken'),
]

CANARY = "unable to connect to server at '10.20.30.40:16509'; cannot open /srv/nfs-7.internal/inst/x"
SECRETS = re.compile(r'10\.20\.30|nfs-7')
HOSTS = re.compile(r'host[123]')


def fail(*phases):
    """Return what lets all hosts fail in some phases."""

    def plant(cloud, _instance):
        for host in cloud.world.hypervisors:
            for phase in phases:
                faults(cloud, host).fail(phase, CANARY, sticky=True)

    return plant


def placement(fault, **which):
    """Return what lets Placement answer with an error."""
    return lambda cloud, _instance: cloud.adapter.inject(fault, times=1000, **which)


def act(**body):
    """Return the request of an action of the server."""

    def ask(cloud, instance):
        response = cloud.request('POST', f'/servers/{instance.uuid}/action', body)
        assert response.status_int < 300, response.text

    return ask


def live(cloud, instance):
    assert cloud.live_migrate(instance).status_int == 202


def live_named(cloud, instance):
    assert cloud.live_migrate(instance, 'host2').status_int == 202


def evacuated(cloud, instance):
    cloud.simulation.advance(120)  # its host reports its definition
    lose(cloud, 'host1')
    evacuate(cloud, instance)


def aborted(cloud, instance):
    """Abort a live migration that cannot be aborted, and fails afterwards."""
    stall = faults(cloud, 'host1').stall('copying')
    live_named(cloud, instance)
    cloud.simulation.run_until(stall.reached.is_set)
    row = cloud.migrations(instance)[-1]
    assert cloud.request('DELETE', f'/servers/{instance.uuid}/migrations/{row.id}').status_int == 202
    cloud.simulation.advance(30)
    stall.release()


#: Kind of error: what is planted, what is requested, and what a tenant reads of it (None: it goes on waiting).
ERRORS = {
    'the check of one host': (fail('check_can_live_migrate_destination'), live_named, tenants.GENERAL),
    'the check of every host': (fail('check_can_live_migrate_destination'), live, tenants.NO_VALID_HOST),
    'the check of the source': (fail('check_can_live_migrate_source'), live_named, tenants.GENERAL),
    'the preparation': (fail('pre_live_migration'), live_named, tenants.GENERAL),
    'the copy': (fail('live_migration'), live_named, tenants.GENERAL),
    'the start at the destination': (fail('post_live_migration_at_destination'), live_named, None),
    'the abort': (fail('live_migration_abort', 'cutover'), aborted, tenants.NOT_CANCELLED),
    'the copy of disks': (fail('migrate_disk_and_power_off'), act(migrate=None), tenants.NO_VALID_HOST),
    'the arrival': (fail('finish_migration'), act(migrate=None), tenants.NO_VALID_HOST),
    'the evacuation': (fail('evacuate'), evacuated, tenants.NO_VALID_HOST),
    'a refusal of Placement': (placement(Fault.REFUSED, method='POST', url='/alloc'), live_named, tenants.GENERAL),
    'an error of Placement': (placement(Fault.ERROR_NOT_DONE, url='/allocations'), live_named, None),
    'an odd answer of Placement': (placement(Fault.ODD, url='/allocation_candidates'), live, None),
}  # fmt: skip

#: What has an answer without a text.
WITHOUT_CANARY = ('an odd answer of Placement', 'the abort')

_EVENTS, _DETAILS = (f'os_compute_api:os-instance-actions:{name}' for name in ('events', 'events:details'))
_OWN_PROJECT = 'role:admin or project_id:%(project_id)s'
#: Role: its token, the lines of the policy file, whether it may read hosts, and texts.
ROLES = {
    'tenant': ('ada:blue', {}, False, False),
    'tenant who may read hosts': ('ada:blue', {_EVENTS: _OWN_PROJECT}, True, False),
    'tenant who may read texts': ('ada:blue', {_EVENTS: _OWN_PROJECT, _DETAILS: _OWN_PROJECT}, True, True),
    'administrator': ('admin', {}, True, True),
}
#: Those at which a page of actions shows more, and the others' first and last.
OF_ACTIONS, VERSIONS = ('2.1', '2.51', '2.84', '2.90'), ('2.1', '2.90')


def pages(cloud, instance):
    """Return the path of every page that shows something of a guest."""
    row = cloud.migrations(instance)[-1]
    known = {
        'server_id': instance.uuid, 'migration_id': row.id, 'request_id': row.request_id, 'uuid': row.uuid,
        'name': 'host1', 'flavor_id': 'm1', 'server_group_id': instance.uuid, 'hypervisor_id': instance.uuid,
        'service_id': instance.uuid, 'key': 'hw:x',
    }  # fmt: skip
    for prefix, table in (('', routes.ROUTES), ('/migrator/v1', OWN)):
        for route in table:
            if route.method == 'GET' and route.media == 'application/json':
                yield prefix + re.sub(r'\{(\w+)\}', lambda found: str(known.get(found[1], 1)), route.path)


def requests_of(cloud, instance):
    return [one.request_id for one in cloud.database.actions.list(instance.uuid)]


@pytest.mark.parametrize('error', ERRORS)
def test_each_role_reads_what_it_may_know(cloud, error, tmp_path, monkeypatch):
    plant, ask, sentence = ERRORS[error]
    monkeypatch.setattr(placement_faults, 'DETAIL', CANARY)
    instance = cloud.boot('one', 'host1', project_id='blue', user_id='ada')
    plant(cloud, instance)
    ask(cloud, instance)
    cloud.simulation.advance(300)
    cloud.adapter._plans.clear()  # the reader is answered
    actions = f'/servers/{instance.uuid}/os-instance-actions'
    read = set()
    for role, (token, lines, may_see_hosts, may_see_texts) in ROLES.items():
        use_policies(cloud, tmp_path, lines)
        paths = {*pages(cloud, instance), *(f'{actions}/{one}' for one in requests_of(cloud, instance))}
        shown = {}
        for path in sorted(paths):
            for version in OF_ACTIONS if path.startswith(actions) else VERSIONS:
                response = cloud.request('GET', path, version=version, token=token)
                assert response.status_int < 500 or response.status_int == 501, response.text
                shown[path, version] = response.text
        seen = {key for key, text in shown.items() if SECRETS.search(text)}
        read |= {role} if seen else set()
        assert may_see_texts or not seen, (role, seen)
        named = {key for key, text in shown.items() if HOSTS.search(text.replace('"host1.', '"'))}
        assert may_see_hosts or not named, (role, named)
        newest = cloud.request('GET', actions, token=token).json['instanceActions'][0]['message']
        if not may_see_texts:
            assert newest == sentence, role
    assert ('administrator' in read) == (error not in WITHOUT_CANARY), cloud.migrations(instance)[-1]


def test_what_a_request_below_2_34_waits_for_is_one_of_the_sentences_too(cloud, tmp_path):
    use_policies(cloud, tmp_path, {'os_compute_api:os-migrate-server:migrate_live': 'project_id:%(project_id)s'})
    instance = cloud.boot('one', 'host1', project_id='blue', user_id='ada')
    fail('check_can_live_migrate_destination')(cloud, instance)
    body = {'os-migrateLive': {'host': None, 'block_migration': 'auto'}}
    response = cloud.request('POST', f'/servers/{instance.uuid}/action', body, version='2.30', token='ada:blue')
    assert (response.status_int, SECRETS.search(response.text)) == (400, None), response.text
    assert tenants.NO_VALID_HOST in response.text


def test_the_stream_of_events_is_not_for_tenants(cloud):
    assert cloud.request('GET', '/migrator/v1/events', token='ada:blue').status_int == 403


def use_policies(cloud, tmp_path, lines):
    """Start the API again, with a policy file."""
    path = tmp_path / 'policy.yaml'
    path.write_text(''.join(f'"{name}": "{check}"\n' for name, check in lines.items()))
    conf = cloud.conf()
    policies.make_enforcer(conf)  # which registers the option
    conf.set_override('policy_file', str(path), 'oslo_policy')
    cloud.start_api(policies.make_enforcer(conf))


def test_every_kind_of_failure_has_its_sentence():
    assert {*tenants.SENTENCES} == {*FailureKind, MigrationStatus.CANCELLED}
