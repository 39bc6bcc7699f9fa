# SPDX-License-Identifier: Apache-2.0


"""The subject of a thread's work: nested, and separate from every other thread's."""

import threading

import pytest

from migrator import context


def test_thread_has_no_subject_before_and_after_the_block():
    assert context.subject() == context.Subject()
    with context.about(migration_uuid='m'):
        assert context.subject() == context.Subject(None, 'm', None)
    assert context.subject() == context.Subject()
    with pytest.raises(ZeroDivisionError), context.about(migration_uuid='m'):
        raise ZeroDivisionError
    assert context.subject() == context.Subject()


def test_omitted_value_is_inherited_unless_the_migration_changes():
    request = context.RequestContext(request_id='req-1', overwrite=False)
    with context.about(request, 'm', 'i'):
        with context.about(migration_uuid='m'):
            assert context.subject() == context.Subject(request, 'm', 'i')
        with context.about(migration_uuid='other'):
            assert context.subject() == context.Subject(request, 'other', None)
        with context.about(instance_uuid='i2'):
            assert context.subject() == context.Subject(request, 'm', 'i2')
        assert context.subject() == context.Subject(request, 'm', 'i')


def test_admin_context_has_the_id_of_the_request_in_work():
    with context.about(context.RequestContext(request_id='req-1', overwrite=False)):
        assert context.admin_context().request_id == 'req-1'
        assert context.admin_context('req-2').request_id == 'req-2'
    assert context.admin_context().request_id not in ('req-1', 'req-2')


def test_another_thread_has_its_own_subject():
    seen = []
    with context.about(migration_uuid='m'):
        thread = threading.Thread(target=lambda: seen.append(context.subject()))
        thread.start()
        thread.join()
    assert seen == [context.Subject()]


def test_another_green_thread_has_its_own_subject():
    eventlet = pytest.importorskip('eventlet')
    seen = []

    def work(uuid):
        with context.about(migration_uuid=uuid):
            eventlet.sleep(0)  # let the other thread run
            seen.append((uuid, context.subject().migration_uuid))

    for each in [eventlet.spawn(work, uuid) for uuid in ('one', 'two')]:
        each.wait()
    assert seen == [('one', 'one'), ('two', 'two')]
    assert context.subject() == context.Subject()


HEADER = f'00-{32 * "a"}-{16 * "b"}-01'


@pytest.mark.parametrize(
    ('sent', 'kept'),
    [(HEADER, HEADER), (HEADER + '0' * 100_000, None), (HEADER + '\n', None), ({'a': HEADER}, None), (17, None)],
    ids=['valid', 'long', 'line break', 'dict', 'number'],
)
def test_traceparent_of_another_form_is_dropped(sent, kept):
    primitive = context.RequestContext(overwrite=False).to_primitive()
    assert context.RequestContext.from_primitive(primitive | {'traceparent': sent}).traceparent == kept
