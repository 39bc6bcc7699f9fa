# SPDX-License-Identifier: Apache-2.0

"""The page at ``/migrator/v1/ui`` in a browser."""

import os
import threading
import uuid

import pytest
import requests

from migrator.api.own import events
from migrator.objects.difference import Difference
from migrator.runtime import http_server
from tests.functional import commands
from tests.functional.pages import PAGE, nothing_is_stuck, page, site
from tests.reasons import NOT_STUCK, stuck_for, waiting_for

__all__ = ['page', 'site']

#: A browser on two busy cores may take minutes to draw what it draws in seconds elsewhere.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: Rows of a page.
SIZE = 50
#: What the page requests for events, and once in each round.
STREAM, ROUND = '/migrator/v1/events?', f'/migrator/v1/migrations?in_progress=true&limit={SIZE}'


# --- a drain of the demo's cloud -------------------------------------------------------------------------------------


class Api:
    """The REST API of a served cloud."""

    def __init__(self, url):
        self.url = url

    def ask(self, method, path, body=None, token='admin'):
        headers = {'X-Auth-Token': token, 'OpenStack-API-Version': 'compute 2.80'}
        answer = requests.request(
            method, f'{self.url}{path}', json=body, headers=headers, timeout=commands.PATIENCE, proxies={'http': ''}
        )
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def guests_of(self, host):
        found = self.ask('GET', '/v2.1/servers/detail?all_tenants=1')['servers']
        return sorted(
            (one for one in found if one['OS-EXT-SRV-ATTR:host'] == host), key=lambda one: (one['created'], one['name'])
        )


def test_drain_is_shown_from_its_first_guest_to_its_end(tmp_path, page):
    words = ('--hosts', '4', '--instances', '14', '--guest-memory', '512', '--bandwidth', '200', '--dirty-rate', '20')
    with commands.Served(tmp_path, *words) as served:
        cloud = Api(served.url('Compute API').removesuffix('/v2.1'))
        guests = cloud.guests_of('host1')
        locked = guests[3]
        cloud.ask('POST', f'/v2.1/servers/{locked["id"]}/action', {'lock': {'locked_reason': 'a demo'}}, 'demo:demo')
        page.open(f'{cloud.url}{PAGE}')
        page.sign_in('admin')
        page.wait(lambda: 'No drain yet' in page.text('#drain-rows'))
        page.wait(lambda: nothing_is_stuck(page))

        page.type('#plan-host', 'host1')
        page.type('#plan-reason', 'disks\n')
        page.wait(lambda: len(page.rows('#plan-rows tr[data-key]')) == len(guests))
        plan = {row[0]: row[1:] for row in page.rows('#plan-rows tr')}
        assert plan[locked['name']][0] == '! cannot move'
        page.press('#plan-start button')
        page.wait(lambda: page.text('#question-title') == 'Drain host1')
        assert f'what is in the way is mended: {locked["name"]}.' in page.text('#question-lines')
        assert 'In progress now: no drain; 0 migrations.' in page.text('#question-lines')
        page.press('#question-yes')
        page.wait(lambda: len(page.rows('#guest-rows tr[data-key]')) == len(guests))
        (drain,) = cloud.ask('GET', '/migrator/v1/drains')['drains']
        assert drain['reason'] == 'disks'
        assert page.text('#guests-title') == 'Guests of the drain of host1'
        page.wait(lambda: f'openstack server unlock {locked["id"]}' in page.text('#trouble-list code'))
        assert f'Blocked: {locked["name"]}, in the drain of host1' in page.text('#trouble-list')
        page.wait(lambda: {row[0]: row[1] for row in page.rows('#guest-rows tr')}.get(locked['name']) == '! blocked')
        page.wait(lambda: any(row[1] == 'moved' for row in page.rows('#guest-rows tr')))
        page.wait(lambda: page.run("return document.querySelectorAll('#guest-rows .bar rect.moving').length") >= 3)
        hosts = {row[0]: row for row in page.rows('#host-rows tr')}
        assert 'drain in progress' in hosts['host1'][1]
        assert hosts['host1'][2].endswith(' of 2')
        if os.environ.get('MIGRATOR_SCREENSHOTS'):
            page.wait(lambda: page.run("return document.querySelector('#guest-rows .bar rect.expected')"))
            page.keep_pictures('ui')
            page.keep_picture('#guests', 'drain')

        cloud.ask('POST', f'/v2.1/servers/{locked["id"]}/action', {'unlock': None})
        page.wait(lambda: page.rows('#drain-rows tr')[0][1] == 'completed')
        page.wait(lambda: {row[1] for row in page.rows('#guest-rows tr')} == {'moved'})
        assert all(row[3] != 'host1' for row in page.rows('#guest-rows tr'))
        assert page.run("return document.querySelectorAll('#guest-rows .bar text.tidied').length") == len(guests)
        page.wait(lambda: 'Disabled: host1, since its drain' in page.text('#trouble-list'))
        assert f'Drain of host1: completed, {len(guests)} of {len(guests)} moved.' in page.text('#news-list')
        assert page.run("return document.querySelector('#drain-rows tr').dataset.key") == drain['uuid']
        # The axis of what has ended ends with it.
        marks = page.run("""
            return [...document.querySelectorAll('#guest-rows .bar text.tidied')].map(
                (one) => one.x.baseVal[0].valueInSpecifiedUnits)
        """)
        assert 80 < max(marks) <= 98

        page.press('#trouble-list button[aria-label^="Restore"]')
        page.wait(lambda: page.text('#question-title') == 'Restore the drain of host1')
        page.press('#question-yes')
        page.wait(lambda: page.rows('#drain-rows tr')[0][1] == 'restored')
        page.wait(lambda: nothing_is_stuck(page))
        assert [one['name'] for one in cloud.guests_of('host1')] == [one['name'] for one in guests]


# --- a site whose rows the tests write ------------------------------------------------------------------------------


def test_wrong_token_is_refused_and_no_token_is_kept(site, page):
    page.open(f'{site.url}{PAGE}')
    page.sign_in('wrong')
    page.wait(lambda: 'The token is not valid' in page.text('#error'))
    assert page.text('#picture') == ''
    page.sign_in('admin')
    page.wait(lambda: page.text('#fresh').startswith('As of'))
    assert page.text('#error') == ''
    kept = page.run("""
        const form = document.getElementById('token');
        return [location.href, document.documentElement.outerHTML, form.value, document.cookie, localStorage.length,
                sessionStorage.length, history.length]
    """)
    assert kept[0] == f'{site.url}{PAGE}'
    assert 'admin' not in kept[1].replace("administrator's", '')
    assert kept[2:6] == ['', '', 0, 0]
    page.press('#forget')
    page.wait(lambda: page.text('#sign-in-title') == 'Sign in')
    assert page.text('#picture') == ''
    assert page.run('return document.activeElement.id') == 'token'


def test_stuck_migration_is_shown_with_its_commands_and_as_text(site, page):
    one = site.migration()
    reason = 'Both hosts have the guest <img src=x onerror=alert(1)>'
    site.change(one.uuid, status='running', **stuck_for(reason))
    page.open(f'{site.url}{PAGE}')
    page.sign_in('admin')
    page.wait(lambda: 'Stuck: vm-0, running, host1 to host2' in page.text('#trouble-list'))
    assert reason in page.text('#trouble-list')
    shown = [row.text for row in page.driver.find_elements('css selector', '#trouble-list code')]
    assert shown == [
        f'migrator-manage migration show {one.uuid}',
        f'migrator-manage migration retry {one.uuid}',
        f'migrator-manage migration abandon {one.uuid} --guest-on host1',
        f'migrator-manage migration abandon {one.uuid} --guest-on host2',
    ]
    assert page.driver.title == '(1) migrator'
    assert page.rows('#migration-rows tr')[0][:2] == ['vm-0', '! stuck, running']
    site.change(one.uuid, **NOT_STUCK)
    page.wait(lambda: nothing_is_stuck(page))
    assert 'No longer: Stuck: vm-0, running, host1 to host2.' in page.text('#news-list')


def test_last_known_state_stays_while_the_api_is_away(site, page):
    one = site.migration()
    site.change(one.uuid, **stuck_for('host2 does not report'))
    page.open(f'{site.url}{PAGE}')
    page.sign_in('admin')
    page.wait(lambda: page.text('#trouble-list code'))
    site.server.stop()
    page.wait(lambda: page.text('#error').startswith('The API does not answer'))
    assert 'Below is the last known state.' in page.text('#error')
    assert page.rows('#migration-rows tr')[0][0] == 'vm-0'
    assert 'Host2 does not report' in page.text('#trouble-list')
    host, port = site.server.url.removeprefix('http://').split(':')
    site.server = http_server.listen(site.app, host, int(port))
    page.wait(lambda: page.text('#error') == '')


def test_page_waits_for_an_event_while_nothing_is_in_progress(site, page, monkeypatch):
    monkeypatch.setattr(events, 'LONGEST', 7.0)
    page.open(f'{site.url}{PAGE}')
    page.sign_in('admin')
    page.wait(lambda: site.requests.count(STREAM) == 3)
    assert [path for path in site.requests if path in (ROUND, STREAM)][:5] == [ROUND, STREAM, ROUND, STREAM, ROUND]
    site.migration()
    page.wait(lambda: [row[0] for row in page.rows('#migration-rows tr')] == ['vm-0'])
    # The progress of a migration changes without an event.
    streams, rounds = site.requests.count(STREAM), site.requests.count(ROUND)
    page.wait(lambda: site.requests.count(ROUND) >= rounds + 3)
    assert site.requests.count(STREAM) == streams


@pytest.mark.parametrize(('kind', 'body'), [('text/event-stream', b'retry: 1000\n\n'), ('text/html', b'hello')])
def test_streams_that_end_at_once_do_not_follow_each_other_without_a_pause(site, page, kind, body):
    def broken(environ, start_response):
        if environ['PATH_INFO'] != STREAM.removesuffix('?'):
            return answer(environ, start_response)
        start_response('200 OK', [('Content-Type', kind)])
        return [body]

    answer, site.answer = site.answer, broken
    page.open(f'{site.url}{PAGE}')
    page.sign_in('admin')
    page.wait(lambda: site.requests.count(ROUND) >= 5)
    assert 1 <= site.requests.count(STREAM) <= site.requests.count(ROUND)


def test_error_in_a_round_that_follows_another_does_not_stay(site, page, monkeypatch):
    monkeypatch.setattr(events, 'LONGEST', 600.0)

    def broken(environ, start_response):
        if environ['PATH_INFO'] != '/migrator/v1/hosts' or not left:
            return answer(environ, start_response)
        if left.pop() == 'hold':
            held.wait(60)
            return answer(environ, start_response)
        start_response('500 Odd', [('Content-Type', 'text/plain')])
        return [b'odd']

    answer, left, held = site.answer, [], threading.Event()
    page.open(f'{site.url}{PAGE}')
    page.sign_in('admin')
    page.wait(lambda: site.requests.count(ROUND) == 2 and page.text('#fresh').startswith('As of'))
    left, site.answer = ['fail', 'hold'], broken
    box = page.driver.find_element('id', 'hosts-idle')
    box.click()
    page.wait(lambda: left == ['fail'])
    box.click()
    held.set()
    page.wait(lambda: 'Below is the last known state.' in page.text('#error'))
    page.wait(lambda: page.text('#error') == '')


def test_page_behind_the_first_is_polled_and_left_when_it_is_empty(site, page):
    site.migration()
    site.copy(60)
    page.open(f'{site.url}{PAGE}')
    page.sign_in('admin')
    page.wait(lambda: len(page.rows('#migration-rows tr')) == SIZE)
    page.press('#migrations-pages button:last-child')
    page.wait(lambda: len(page.rows('#migration-rows tr')) == 10)
    shown = page.run("return [...document.querySelectorAll('#migration-rows tr')].map((row) => row.dataset.key)")
    for uuid_ in shown:
        site.change(uuid_, in_progress_instance_uuid=None, status='completed')
    page.wait(lambda: len(page.rows('#migration-rows tr')) == SIZE)


def test_guest_that_was_moved_by_hand_is_shown_by_its_name(site, page, monkeypatch):
    monkeypatch.setattr(events, 'LONGEST', 2.0)  # an audit is no event: the page shows it when the stream has ended
    page.open(f'{site.url}{PAGE}')
    page.sign_in('admin')
    page.wait(lambda: nothing_is_stuck(page))
    moved = Difference(
        instance_uuid=str(uuid.uuid4()), name='vm-7', host='host1', kind='moved', seen={'host2': 'running'}
    )
    site.database.differences.replace([moved])
    page.wait(lambda: 'Not as in the database: vm-7 is on host2' in page.text('#trouble-list'))
    assert 'It is on host2 (running), but the database has it on host1' in page.text('#trouble-list')
    assert page.text('#trouble-list code') == 'migrator-manage instance reconcile --dry-run'
    assert 'Not as in the database: vm-7 is on host2.' in page.text('#news-list')


def test_five_thousand_migrations_are_shown_in_pages_and_only_changed_rows_are_written(site, page):
    site.migration()
    site.copy(5000)
    site.drain()
    page.open(f'{site.url}{PAGE}')
    page.sign_in('admin')
    page.wait(lambda: len(page.rows('#migration-rows tr')) == SIZE)
    page.wait(lambda: len(page.rows('#guest-rows tr')) == SIZE)
    assert page.run("return document.querySelectorAll('tr').length") < 3 * SIZE
    assert page.run("return document.querySelectorAll('*').length") < 40 * SIZE

    first = page.run("return [...document.querySelectorAll('#migration-rows tr')].map((row) => row.dataset.key)")
    page.press('#migrations-pages button:last-child')
    page.wait(lambda: page.text('#migrations-pages span') == 'Page 2')
    second = page.run("return [...document.querySelectorAll('#migration-rows tr')].map((row) => row.dataset.key)")
    assert len(second) == SIZE
    assert not set(first) & set(second)

    page.run("""
        window.before = [...document.querySelectorAll('#migration-rows tr')];
        window.written = new Set();
        new MutationObserver((records) => {
            for (const {target} of records) {
                const element = target.nodeType === Node.TEXT_NODE ? target.parentElement : target;
                window.written.add(element?.closest('tr')?.dataset.key ?? 'the table');
            }
        }).observe(document.getElementById('migration-rows'),
                   {subtree: true, childList: true, characterData: true, attributes: true});
    """)
    site.change(second[7], **waiting_for('for the broker'))
    page.wait(lambda: page.rows('#migration-rows tr')[7][6] == 'for the broker')
    same = "return [...document.querySelectorAll('#migration-rows tr')].every((row, at) => row === window.before[at])"
    assert page.run(same)
    assert page.run('return [...window.written]') == [second[7]]


def test_page_is_usable_by_keyboard_and_has_names_for_its_parts(site, page):
    site.migration()
    site.drain()
    page.open(f'{site.url}{PAGE}')
    page.sign_in('admin')
    page.wait(lambda: page.rows('#guest-rows tr[data-key]'))
    assert page.run('return document.activeElement.id') == 'main'
    page.press('#drain-rows button')
    page.wait(lambda: page.text('#guests') == '')
    assert page.driver.find_element('css selector', '#drain-rows button').get_attribute('aria-expanded') == 'false'
    page.press('#drain-rows button')
    page.wait(lambda: page.text('#guests') != '')
    nameless = page.run("""
        const named = (element) => element.ariaLabel || element.labels?.length || element.innerText?.trim()
            || document.getElementById(element.getAttribute('aria-labelledby'))?.innerText;
        const wanted = 'button, a, input, select, section, nav, [role=region], [role=img] title, th, ul#legend';
        return [...document.querySelectorAll(wanted)].filter(
            (element) => !element.closest('[hidden], dialog:not([open])')
                && !(named(element) || element.textContent.trim())).map((element) => element.outerHTML);
    """)
    assert nameless == []
    landmarks = page.run("return ['header', 'main', 'nav'].map((name) => document.querySelectorAll(name).length)")
    assert landmarks == [1, 1, 1]
    assert page.run("return [...document.querySelectorAll('h1, h2')].map((one) => one.localName)")[0] == 'h1'
    outline = 'const {outlineStyle, outlineWidth} = getComputedStyle(document.activeElement); '
    assert page.run(f'{outline} return [outlineStyle, outlineWidth]') == ['solid', '3px']
