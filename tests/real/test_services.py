# SPDX-License-Identifier: Apache-2.0


"""The services as an operator runs them: processes on RabbitMQ, a database and Placement over HTTP."""

import pytest
import requests
from prometheus_client import parser

from tests.functional import state
from tests.real.cloud import ProcessCloud
from tests.real.servers import process
from tests.real.site import Shape, Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: The services that are asked for their health and their metrics, each with its section.
MONITORED = {'api1': 'api', 'conductor1': 'conductor', 'host1': 'compute'}


@pytest.fixture
def ports():
    return {name: process.free_port() for name in MONITORED}


@pytest.fixture
def site(workspace, server, rabbitmq, placement_http, ports):
    options = (('conductor.lease', 6), ('compute.report_interval', 1))
    made = Site(workspace, Shape(hosts=2, options=options), rabbitmq, server, placement_http)
    for name, section in MONITORED.items():
        made.configure(name, **{f'{section}.metrics_port': ports[name]})
    yield made
    made.end()


@pytest.fixture
def cloud(site):
    # All at once and in no order: each waits for what it needs.
    site.start()
    made = ProcessCloud(site, site.tap())
    made.simulation.run_until(made.up)
    yield made
    made.close()


def away(port):
    """Return the status of a service's health, and what it needs and is away."""
    answer = requests.get(f'http://{process.HOST}:{port}/healthcheck', timeout=30)
    checks = answer.json()['checks']
    return answer.status_code, {what for what, one in checks.items() if one['needed'] and one['result'] != 'ok'}


def metric(port, name, **labels):
    """Return the sum of what a service serves of a metric with these labels."""
    text = requests.get(f'http://{process.HOST}:{port}/metrics', timeout=30).text
    samples = [one for family in parser.text_string_to_metric_families(text) for one in family.samples]
    return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())


def name_what_is_away(site, cloud, server, ports):
    """Check that each service names the database, the lease or the hypervisor while it is away.

    The API counts the 503 of a request meanwhile, for which there is an alert.
    """

    def health():
        return {name: away(port) for name, port in ports.items()}

    ready = dict.fromkeys(ports, (200, set()))
    cloud.simulation.run_until(lambda: health() == ready)
    server.stop()
    site.world_process.stop()
    gone = {
        'api1': (503, {'database'}), 'conductor1': (503, {'database', 'lease'}), 'host1': (503, {'hypervisor'}),
    }  # fmt: skip
    cloud.simulation.run_until(lambda: health() == gone)
    refused = requests.get(f'{site.url()}/v2.1/servers', headers={'X-Auth-Token': 'admin'}, timeout=60)
    assert refused.status_code == 503
    assert metric(ports['api1'], 'migrator_http_request_seconds_count', code='503') == 1
    server.start()
    cloud.simulation.run_until(lambda: health() == ready | {'host1': gone['host1']})


def test_a_migration_completes_what_is_away_is_named_and_every_service_ends_with_0_on_sigterm(
    site, cloud, server, ports
):
    instance, second = cloud.boot('guest', 'host1', dirty_rate=50.0), cloud.boot('second', 'host1')
    stall = cloud.world.hypervisors['host1'].faults.stall('copying')
    for guest, status in ((instance, 'running'), (second, 'queued')):
        assert cloud.live_migrate(guest, 'host2').status_int == 202
        cloud.simulation.run_until(lambda guest=guest, status=status: cloud.migrations(guest)[0].status == status)
    # The conductor writes "queued" before it asks the host, so the host may not know of it yet.
    cloud.simulation.run_until(lambda: metric(ports['host1'], 'migrator_live_migrations_oldest_wait_seconds') > 0)
    stall.release()
    cloud.wait()
    state.completed(cloud, instance, 'host2')
    cloud.judge(set())
    sent = cloud.tap.recorder.per_migration()[cloud.migrations(instance)[0].uuid]
    assert (sent['call'], sent['reply']) == (6, 6)
    # Three ends of steps are in the replies if the hosts are quick.
    assert 3 <= sent['cast'] <= 6

    # The log of each says by which request or migration a line was caused, and no password.
    assert instance.uuid in site.services['conductor1'].log.read_text()
    for each in site.services.values():
        log = each.log.read_text()
        assert 'guessed' not in log
        assert 'Traceback' not in log
    name_what_is_away(site, cloud, server, ports)
    for each in site.processes:
        each.stop()
        assert each.status == 0, each.tail()
