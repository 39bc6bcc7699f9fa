# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from migrator.conductor.migration import context, hosts, settle_table
from migrator.objects import protocol
from migrator.objects.reasons import Reason, WaitKind
from migrator.saga import log
from migrator.saga.saga import Parked
from tests.unit.conductor import stage

Stage = stage.Stage
CLEAN = 'rollback_live_migration_at_destination'
LIVE = 'live_migration'


def report(m: context.MigrationContext, host: str, step: str, **fields: Any) -> protocol.Report:
    known = {'boot_id': 'this boot', 'epoch': m.row.epoch, 'state': 'failed', 'reason': 'because'}
    return protocol.Report(migration_uuid=m.row.uuid, host=host, step=step, **{**known, **fields})


def observation(m: context.MigrationContext, **fields: Any) -> protocol.Observation:
    guest = protocol.Guest(instance_uuid=m.row.instance_uuid, state='running')
    known = {'migration_uuid': m.row.uuid, 'host': 'host1', 'boot_id': 'this boot', 'epoch': m.row.epoch}
    return protocol.Observation(**{**known, 'guest': guest, **fields})


@pytest.mark.parametrize(('ahead', 'observed'), [(0, settle_table.Observed.HERE), (1, settle_table.Observed.MISSING)])
def test_an_answer_that_was_given_to_a_newer_owner_decides_nothing(
    still: Stage, monkeypatch: pytest.MonkeyPatch, ahead: int, observed: settle_table.Observed
) -> None:
    m = still.adopt(still.accept())
    said = [observation(m, epoch=m.row.epoch + ahead)]
    monkeypatch.setattr(m.tools.hosts, 'poll', lambda *args, **kwargs: said)
    assert hosts.poll(m, 'host1').observed is observed


def test_a_report_from_before_the_step_was_to_be_done_again_does_not_count(still: Stage) -> None:
    m = still.adopt(still.accept('host2'))
    again = log.StepRecord(CLEAN, log.UNDO, log.StepState.INTENT.value, 1, epoch=m.row.epoch)
    m.replies.take_report(report(m, 'host2', CLEAN, epoch=m.row.epoch - 1), m.row.epoch)
    # The answer to the second try is still out, so that nothing is sent.
    m.replies.unsure.add(('host2', CLEAN))
    assert hosts.carry_out(m, 'host2', CLEAN, again) == Parked(Reason.of(WaitKind.STEP, 'host2', step=CLEAN))
    new = report(m, 'host2', CLEAN)
    m.replies.take_report(new, m.row.epoch)
    assert still.do(lambda: hosts.carry_out(m, 'host2', CLEAN, again)) == new


@pytest.mark.parametrize(
    ('boot', 'observed'),
    [('this boot', settle_table.Observed.RETURNED), ('an earlier one', settle_table.Observed.HERE)],
)
def test_only_a_report_of_this_boot_ends_the_call(still: Stage, boot: str, observed: settle_table.Observed) -> None:
    m = still.adopt(still.accept())
    m.replies.take_report(report(m, 'host1', LIVE, boot_id=boot), m.row.epoch)
    assert hosts.observed_in(m, observation(m)).observed is observed


def test_epoch_raised_during_poll_polls_every_host_in_new_epoch(still: Stage) -> None:
    still.simulation.advance(5)  # so that the hosts are ready
    m = still.adopt(still.accept())
    m.set(dest_compute='host2', dest_node='host2')
    m.commit()
    m.raise_epoch()
    # A newer owner has sent to the host that is asked second.
    newer = dataclasses.replace(hosts.command(m, 'host2', 'poll'), epoch=5)
    still.do(lambda: m.tools.hosts.poll('host2', [newer]))
    m.replies.must_poll = {'host1', 'host2'}
    assert still.do(lambda: hosts.poll_first(m)) is None
    assert m.row.epoch > 5
    assert {host: said.epoch for host, said in m.replies.seen.items()} == {'host1': m.row.epoch, 'host2': m.row.epoch}
