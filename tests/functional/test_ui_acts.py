# SPDX-License-Identifier: Apache-2.0

"""What the page at ``/migrator/v1/ui`` requests, where its links lead, and its narrow form."""

import os
import uuid

import pytest
import sqlalchemy as sa

from migrator.db import models
from migrator.db.sql import columns, drain_rows
from migrator.drain.maintenance.turns import Maintenance, Turn
from migrator.objects import COMPUTE_BINARY, CURRENT_VERSION
from migrator.objects.difference import Difference
from migrator.objects.drain import Drain, Member
from migrator.views.attention import Attention
from tests.functional.pages import PAGE, page, site
from tests.reasons import stuck_for, waiting_for

__all__ = ['page', 'site']

#: A browser on two busy cores may take minutes to draw what it draws in seconds elsewhere.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def posts(site, words):
    return [path for path in site.changes if words in path]


def test_drain_is_paused_resumed_and_cancelled_once_each(site, page):
    site.migration()
    uuid_ = site.drain()
    page.open(f'{site.url}{PAGE}')
    page.sign_in('admin')
    for label, holds in (
        ('Pause', lambda drain: drain.paused),
        ('Resume', lambda drain: not drain.paused),
        ('Cancel', lambda drain: drain.cancel_requested_at is not None),
    ):
        page.wait(lambda label=label: page.text(f'#guests-acts button[aria-label^="{label}"]'))
        page.press(f'#guests-acts button[aria-label^="{label}"]')
        page.wait(lambda label=label: page.text('#question-title') == f'{label} the drain of host1')
        assert 'host1: the drain is' in page.text('#question-lines')
        assert page.run('return document.activeElement.id') == 'question-no'
        page.press('#question-yes')
        page.wait(lambda: page.text('#question') == '')
        page.wait(lambda holds=holds: holds(site.database.drains.get(uuid_)))
    assert len(posts(site, '/action')) == 3
    page.wait(lambda: page.text('#guests-acts') == '')


def test_state_that_has_changed_since_it_was_shown_is_refused(site, page):
    site.migration()
    uuid_ = site.drain()
    page.open(f'{site.url}{PAGE}')
    page.sign_in('admin')
    page.wait(lambda: page.text('#guests-acts button'))
    page.press('#guests-acts button[aria-label^="Cancel"]')
    page.wait(lambda: page.text('#question-yes'))
    site.database.drains.request(uuid_, 'pause', 'another operator')
    page.press('#question-yes')
    page.wait(
        lambda: 'It has changed since it was shown: the drain is paused. Nothing was sent.' in page.text('#question')
    )
    assert page.text('#question-yes') == ''
    assert posts(site, '/action') == []
    page.press('#question-no')
    page.wait(lambda: page.text('#question') == '')


@pytest.mark.parametrize(
    ('status', 'words'), [('403 Forbidden', 'Not for you.'), ('409 Conflict', 'Another one is there.')]
)
def test_refusal_is_shown_in_the_words_of_the_api_and_not_sent_again(site, page, status, words):
    def refusing(environ, start_response):
        if environ['REQUEST_METHOD'] == 'GET':
            return answer(environ, start_response)
        start_response(status, [('Content-Type', 'application/json')])
        return [b'{"forbidden": {"code": 403, "message": "%s"}}' % words.encode()]

    site.migration()
    site.drain()
    page.open(f'{site.url}{PAGE}')
    page.sign_in('admin')
    page.wait(lambda: page.text('#guests-acts button'))
    answer, site.answer = site.answer, refusing
    page.press('#guests-acts button[aria-label^="Pause"]')
    page.wait(lambda: page.text('#question-yes'))
    page.press('#question-yes')
    page.wait(lambda: page.text('#question-said') == words)
    assert len(posts(site, '/action')) == 1
    page.logged()


def test_migration_is_found_by_its_guest_shown_and_aborted(site, page):
    one = site.migration()
    site.change(one.uuid, status='running', memory_total=2**30, memory_remaining=2**28, memory_processed=3 * 2**28)
    page.open(f'{site.url}{PAGE}')
    page.sign_in('admin')
    page.wait(lambda: page.rows('#migration-rows tr[data-key]'))
    page.wait(lambda: page.rows('#migration-rows tr')[0][5].startswith('75 %'))
    page.type('#search', 'no-such-thing\n')
    page.wait(lambda: 'No host, migration or drain is found for no-such-thing.' in page.text('#search-said'))
    page.type('#search', 'vm-0\n')
    page.wait(lambda: page.text('#migration-title') == 'Live migration of vm-0')
    assert page.run('return location.hash') == f'#migration={one.uuid}'
    assert 'accepted' in page.text('#migration-events')
    assert page.text('#migration-next') != ''
    site.change(one.uuid, memory_remaining=2**27, memory_processed=7 * 2**27)
    page.wait(lambda: '87 %' in page.text('#migration-where') and '/s' in page.rows('#migration-rows tr')[0][5])
    page.press('#migration-acts button')
    page.wait(lambda: page.text('#question-title') == 'Abort the migration of vm-0')
    page.press('#question-yes')
    page.wait(lambda: site.database.migrations.get(one.uuid).abort_requested_at is not None)
    page.wait(lambda: page.text('#question') == '')
    page.press('#migration-close')
    page.wait(lambda: page.text('#migration') == '')
    assert page.run('return location.hash') == ''


@pytest.mark.parametrize('link', ['drain=host1', 'drain={drain}', 'migration=vm-0', 'migration={migration}'])
def test_links_name_things_as_the_commands_do(site, page, link):
    one = site.migration()
    place = link.format(drain=site.drain()[:8], migration=one.uuid[:8])
    page.open(f'{site.url}{PAGE}#{place}')
    page.sign_in('admin')
    if link.startswith('drain'):
        page.wait(lambda: page.text('#guests-title') == 'Guests of the drain of host1')
        page.wait(lambda: [row[0] for row in page.rows('#guest-rows tr')] == ['vm-0'])
    else:
        page.wait(lambda: page.text('#migration-title') == 'Live migration of vm-0')


def test_host_leads_to_its_migrations_and_those_that_ended_are_shown(site, page):
    one = site.migration()
    page.open(f'{site.url}{PAGE}')
    page.sign_in('admin')
    page.type('#search', 'host2\n')
    page.wait(lambda: page.text('#migrations-title') == 'Migrations from or to host2')
    page.wait(lambda: [row[0] for row in page.rows('#migration-rows tr')] == ['vm-0'])
    site.change(one.uuid, in_progress_instance_uuid=None, status='failed', failure='the disk is full')
    page.wait(lambda: page.rows('#migration-rows tr')[0][0] == 'No migration.')
    page.wait(
        lambda: 'Failed: the live migration of vm-0, which the database has on host1' in page.text('#trouble-list')
    )
    page.run(
        "const box = document.getElementById('migrations-which'); box.value = 'ended';"
        "box.dispatchEvent(new Event('change'))"
    )
    ended = ['vm-0', 'failed', 'the disk is full']
    page.wait(lambda: [[*row[:2], row[-1]] for row in page.rows('#migration-rows tr')] == [ended])


def test_dead_host_is_evacuated_only_with_the_guests_that_were_named(site, page):
    one = site.migration()
    site.change(one.uuid, in_progress_instance_uuid=None, status='failed')
    (service,) = site.database.services.list(COMPUTE_BINARY, 'host1')
    site.database.services.update(service.id, forced_down=True, down_since=service.last_seen_up)
    page.open(f'{site.url}{PAGE}')
    page.sign_in('admin')
    evacuate = '#trouble-list button[aria-label="Evacuate: host1"]'
    page.wait(lambda: page.text(evacuate))
    page.press(evacuate)
    page.wait(lambda: page.text('#question-title') == 'Evacuate host1')
    assert 'This starts 1 guest of host1 on other hosts: vm-0.' in page.text('#question-lines')
    page.press('#question-yes')
    page.wait(lambda: any(row.migration_type == 'evacuation' for row in site.database.migrations.list()))
    assert len(posts(site, '/action')) == 1


def test_option_hides_every_button_that_acts(site, page):
    site.conf.set_override('page_acts', False, group='api')
    site.migration()
    site.drain('incomplete')
    page.open(f'{site.url}{PAGE}')
    page.sign_in('admin')
    page.wait(lambda: page.text('#guests-title') and page.text('#trouble-list code'))
    assert page.text('#plan-form') == page.text('#guests-acts') == page.text('#trouble-list .acts') == ''


def test_many_lines_are_shown_in_pages_and_read_as_far_as_they_are_shown(site, page):
    site.migration()
    site.copy(120)
    site.drain()
    with site.database.engine.writer() as session:
        session.execute(sa.update(drain_rows.MEMBERS).values(status='blocked', reason='It is locked.'))
    page.open(f'{site.url}{PAGE}')
    assert page.run('return document.activeElement.id') == 'token'
    page.sign_in('admin')
    page.wait(lambda: page.text('#trouble-pages span') == '1 to 50 of 120')
    assert len(page.driver.find_elements('css selector', '#trouble-list > li')) == 50
    page.press('#trouble-pages button:last-child')
    page.wait(lambda: page.text('#trouble-pages span') == '51 to 100 of 120')
    page.press('#trouble-pages button:last-child')
    page.wait(lambda: len(page.driver.find_elements('css selector', '#trouble-list > li')) == 20)
    asked = [path for path in site.requests if path.startswith('/migrator/v1/attention')]
    assert {path.rpartition('=')[2] for path in asked} == {'50', '100', '150'}
    assert page.driver.title == '(120) migrator'
    assert page.text('#news-list') == ''


MARKUP = '<img src=x onerror=alert(1)>'


def test_markup_in_any_name_runs_nothing(site, page):
    one = site.migration()
    uuid_ = site.drain('incomplete')
    with site.database.engine.writer() as session:
        session.execute(sa.update(models.INSTANCES).values(name=MARKUP, host=MARKUP))
        session.execute(
            sa.update(models.SERVICES)
            .values(host=MARKUP, disabled_reason=MARKUP)
            .where(models.SERVICES.c.host == 'host1')
        )
        ended = {'ended_at': drain_rows.DRAINS.c.created_at, 'in_progress_host': None}
        session.execute(sa.update(drain_rows.DRAINS).values(host=MARKUP, message=MARKUP, reason=MARKUP, **ended))
        session.execute(
            sa.update(drain_rows.MEMBERS).values(name=MARKUP, reason=MARKUP, status='failed', destination=MARKUP)
        )
    site.change(one.uuid, source_compute=MARKUP, dest_compute=MARKUP, failure=MARKUP, **stuck_for(MARKUP))
    site.database.differences.replace(
        [Difference(instance_uuid=str(uuid.uuid4()), name=MARKUP, host=MARKUP, kind='moved', seen={MARKUP: 'running'})]
    )
    page.open(f'{site.url}{PAGE}#migration={one.uuid}')
    page.sign_in('admin')
    page.wait(lambda: MARKUP in page.text('#migration-title'))
    page.wait(lambda: page.text('#guests-acts button'))
    page.press('#guests-acts button[aria-label^="Retry"]')
    page.wait(lambda: MARKUP in page.text('#question-title'))
    page.press('#question-yes')
    # What it says is shown for a moment only, if the request is accepted.
    page.wait(lambda: page.text('#question-said') or not page.text('#question'))
    for selector in (
        '#trouble-list',
        '#drain-rows',
        '#guest-rows',
        '#host-rows',
        '#migration-rows',
        '#migration-waits',
    ):
        assert MARKUP in page.text(selector), selector
    assert page.run("return document.querySelectorAll('img, script:not([src])').length") == 0
    assert uuid_ in page.run('return document.body.outerHTML')
    page.logged()


def need_everything(site):
    """Write rows of which each kind of line needs an operator."""
    database, ago = site.database, sa.literal_column("datetime('now', '-20 minutes')")
    one = site.migration()
    site.copy(9)
    guests = database.instances.list()
    for host in ('host3', 'host4', 'host5', 'host6', 'host7', 'host8'):
        database.services.report(host, COMPUTE_BINARY, CURRENT_VERSION, str(uuid.uuid4()))
    with database.engine.writer() as session:
        session.execute(sa.update(models.MIGRATIONS).values(in_progress_instance_uuid=None, status='completed'))

    def put(guest, host, **fields):
        (row,) = database.migrations.list({'instance_uuid': guest.uuid})
        site.change(row.uuid, source_compute=host, **fields)
        with database.engine.writer() as session:
            session.execute(sa.update(models.INSTANCES).where(models.INSTANCES.c.uuid == guest.uuid).values(host=host))

    def write(host, **values):
        with database.engine.writer() as session:
            session.execute(sa.update(models.SERVICES).where(models.SERVICES.c.host == host).values(**values))

    def drain(host, status, members=(), **fields):
        made = Drain(uuid=str(uuid.uuid4()), host=host)
        database.drains.accept(made)
        database.drains.adopt('a conductor', made.uuid)
        row = database.drains.get(made.uuid)
        ended = {'ended_at': columns.now()} if status in ('incomplete', 'completed') else {}
        database.drains.write(row, {'status': status, **ended, **fields}, members, [])

    stuck, failed, down, dead, left, *others = guests
    put(
        stuck, 'host1', status='running', in_progress_instance_uuid=stuck.uuid, **stuck_for('no host reports the guest')
    )
    put(failed, 'host1', status='failed', failure='the disk of host2 is full')
    put(down, 'host3')
    put(dead, 'host4')
    put(left, 'host5')
    put(others[0], 'host6')
    write('host3', down_since=ago)
    write('host4', down_since=ago, forced_down=True)
    write('host2', refused_at=ago, refused_host='host2', refused_identity='another')
    members = [
        Member(
            instance_uuid=guest.uuid,
            name=f'web-{number}',
            position=number,
            source='host6',
            status=status,
            reason=reason,
        )
        for number, (guest, status, reason) in enumerate(
            [(others[0], 'failed', 'It has failed 3 times.'), (others[1], 'blocked', 'It is locked by its owner.')], 1
        )
    ]
    away = {'waits_for': 'Placement is not reachable: connection refused.', 'wait_error': 'away'}
    drain('host6', 'running', members, paused=True, **away)
    drain('host5', 'incomplete', checks=[{'what': 'guests in the database', 'left': ['vm-4']}])
    drain('host7', 'completed')
    # One that a user has paused, that waits for a service, and whose host has failed.
    maintenance = Maintenance(uuid=str(uuid.uuid4()), paused=True, **away)
    database.maintenances.accept(maintenance, [Turn(host='host8', status='failed', reason='Its work has failed.')])
    moved = Difference(instance_uuid=others[2].uuid, name='db-1', host='host1', kind='moved', seen={'host8': 'running'})
    database.differences.replace([moved])
    with database.engine.writer() as session:
        cleanup = {
            'host': 'host8',
            'migration_uuid': one.uuid,
            'instance_uuid': one.instance_uuid,
            'input': {},
            'epoch': 1,
        }
        cleanup |= {
            'step': 'post_live_migration_at_source',
            'reason': 'away',
            'blocked_because': 'The guest may run there.',
        }
        session.execute(sa.insert(models.CLEANUPS).values(**cleanup))
        session.execute(sa.delete(models.Base.metadata.tables['conductors']))


@pytest.mark.parametrize(('scheme', 'width'), [('light', 1280), ('dark', 1280), ('light', 400), ('dark', 400)])
def test_each_kind_of_line_is_shown_and_has_its_commands(site, page, scheme, width):
    need_everything(site)
    page.use_colours(scheme)
    page.use_width(width, 2700)
    page.open(f'{site.url}{PAGE}')
    page.sign_in('admin')
    page.wait(lambda: page.text('#trouble-title') == f'Attention ({len(Attention)})')
    keys = page.run("return [...document.querySelectorAll('#trouble-list > li')].map((one) => one.dataset.key)")
    assert {key.partition(' ')[0] for key in keys} == {kind.value for kind in Attention}
    bare = page.run("""
        return [...document.querySelectorAll('#trouble-list > li')].filter((one) => !one.querySelector('code'))
            .map((one) => one.dataset.key)
    """)
    # There are no commands for maintenances yet.
    assert {key.partition(' ')[0] for key in bare} == {kind.value for kind in Attention if 'maintenance' in kind}
    assert page.run('return document.documentElement.scrollWidth') <= width
    if os.environ.get('MIGRATOR_SCREENSHOTS') and width == 1280:
        page.keep_picture('#trouble', f'attention-{scheme}')


@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_narrow_window_shows_cards_and_cuts_nothing_off(site, page, scheme):
    one = site.migration()
    site.drain()
    site.change(one.uuid, status='running', **waiting_for('for a reason that is long ' * 8))
    page.use_colours(scheme)
    page.use_width(400)
    page.open(f'{site.url}{PAGE}')
    page.sign_in('admin')
    page.wait(lambda: page.rows('#migration-rows tr[data-key]') and page.rows('#guest-rows tr[data-key]'))
    assert page.run('return document.documentElement.scrollWidth') <= 400
    wide = page.run("""
        return [...document.querySelectorAll('td, th[scope=row], li, button, input')].filter(
            (one) => one.checkVisibility() && one.getBoundingClientRect().right > 401).map((one) => one.outerHTML)
    """)
    assert wide == []
    why = page.run(
        "return getComputedStyle(document.querySelector('#migration-rows td:last-child'), '::before').content"
    )
    assert why == '"Why: "'
