# SPDX-License-Identifier: Apache-2.0

"""A QEMU, a host, a daemon or the compute service fails while a real guest moves, and all is settled."""

from __future__ import annotations

import re

from tests.real.libvirt.lab import guests, hosts
from tests.real.libvirt.site import Cloud
from tests.real.libvirt.test_moves import a_guest


def under_way(cloud: Cloud, **settings: object) -> tuple[guests.Guest, object]:
    """Return a guest whose copy lasts, and its migration."""
    guest = a_guest(cloud, **{'rate': 2, **settings})
    cloud.slow()
    migration = cloud.live_migrate(guest)
    cloud.runs(migration, copied_mib=10)
    return guest, migration


def test_a_destination_whose_qemu_does_not_start(cloud: Cloud, alpha: hosts.Host, beta: hosts.Host) -> None:
    beta.fault_qemu('no such luck')
    guest = a_guest(cloud)
    migration = cloud.live_migrate(guest)
    assert cloud.ended(migration) == 'failed'
    why = str(cloud.migration(migration).failure)
    assert re.search('no such luck.*may be at the destination, .*beta', why, re.DOTALL)
    guest.unharmed(alpha)
    cloud.check(guest, 'alpha')
    beta.fault_qemu(None)
    assert cloud.ended(cloud.live_migrate(guest)) == 'completed'
    guest.survived(alpha, beta)
    cloud.check(guest, 'beta')


def test_a_destination_that_loses_its_power_in_mid_copy(cloud: Cloud, alpha: hosts.Host, beta: hosts.Host) -> None:
    guest, migration = under_way(cloud)
    beta.power_off()
    assert cloud.ended(migration) == 'failed'
    guest.unharmed(alpha)
    beta.power_on()
    cloud.start_compute('beta')
    cloud.check(guest, 'alpha')


def test_a_source_that_loses_its_power_in_mid_copy(cloud: Cloud, alpha: hosts.Host, beta: hosts.Host) -> None:
    guest, migration = under_way(cloud)
    alpha.power_off()
    alpha.power_on()
    cloud.start_compute('alpha')
    cloud.wait(lambda: not cloud.migration(migration).in_progress, 'the migration to end')
    assert cloud.migration(migration).status == 'failed'
    # as after any loss of power: it is off, and where it was
    assert alpha.virsh('domstate', guest.uuid).strip() == 'shut off'
    assert beta.domains() == []
    alpha.virsh('start', guest.uuid)
    cloud.check(guest, 'alpha')


def test_a_source_whose_libvirt_is_killed_in_mid_copy(cloud: Cloud, alpha: hosts.Host, beta: hosts.Host) -> None:
    guest, migration = under_way(cloud)
    alpha.kill_daemon()
    assert cloud.ended(migration) == 'failed'
    guest.unharmed(alpha)
    cloud.check(guest, 'alpha')


def test_a_compute_that_is_killed_in_mid_copy_finds_the_job_again(
    cloud: Cloud, alpha: hosts.Host, beta: hosts.Host
) -> None:
    guest, migration = under_way(cloud)
    cloud.site.services['alpha'].kill()
    cloud.start_compute('alpha')
    assert cloud.progress(migration)
    assert cloud.ended(migration) == 'completed'
    guest.survived(alpha, beta)
    cloud.check(guest, 'beta')


def test_a_job_that_was_found_again_can_be_aborted(cloud: Cloud, alpha: hosts.Host, beta: hosts.Host) -> None:
    guest, migration = under_way(cloud, rate=20)
    cloud.site.services['alpha'].kill()
    cloud.start_compute('alpha')
    cloud.abort(migration)
    assert cloud.ended(migration) == 'cancelled'
    guest.unharmed(alpha)
    cloud.check(guest, 'alpha')


def test_a_job_that_has_ended_while_its_compute_was_away(cloud: Cloud, alpha: hosts.Host, beta: hosts.Host) -> None:
    guest, migration = under_way(cloud)
    cloud.site.services['alpha'].kill()
    cloud.wait(lambda: guest.uuid not in alpha.domains(), 'the guest to have left')
    cloud.start_compute('alpha')
    assert cloud.ended(migration) == 'completed'
    guest.survived(alpha, beta)
    cloud.check(guest, 'beta')


def test_a_compute_that_is_killed_at_cut_over(cloud: Cloud, alpha: hosts.Host, beta: hosts.Host) -> None:
    guest, migration = under_way(cloud)
    # Paused with a job, as at cut-over, and for as long as the rest takes at this speed.
    alpha.virsh('suspend', guest.uuid)
    cloud.site.services['alpha'].kill()
    cloud.start_compute('alpha')
    assert cloud.ended(migration) == 'completed'
    guest.survived(alpha, beta)
    cloud.check(guest, 'beta')


def test_both_computes_killed_in_mid_copy(cloud: Cloud, alpha: hosts.Host, beta: hosts.Host) -> None:
    guest, migration = under_way(cloud)
    for name in ('alpha', 'beta'):
        cloud.site.services[name].kill()
    for name in ('alpha', 'beta'):
        cloud.start_compute(name)
    assert cloud.ended(migration) == 'completed'
    guest.survived(alpha, beta)
    cloud.check(guest, 'beta')


def test_a_post_copy_that_breaks_off_waits_for_an_operator_and_holds_up_no_other_guest(
    cloud: Cloud, alpha: hosts.Host, beta: hosts.Host
) -> None:
    for name in ('alpha', 'beta'):
        cloud.set_option(name, libvirt__live_migration_permit_post_copy=True, libvirt__live_migration_bandwidth=8)
    guest, other = a_guest(cloud, rate=40, audit=0), a_guest(cloud, 'guest-2')
    migration = cloud.live_migrate(guest)
    cloud.runs(migration, copied_mib=10)
    alpha.virsh('qemu-monitor-command', guest.uuid, '--hmp', 'migrate_set_parameter max-postcopy-bandwidth 1M')
    before = alpha.said_by_libvirt().count('switched to post-copy')
    cloud.force_complete(migration)
    cloud.wait(lambda: alpha.said_by_libvirt().count('switched to post-copy') > before, 'post-copy')
    beta.destroy(guest.uuid)
    assert cloud.ended(migration).startswith('stuck: ')
    cloud.set_option('alpha')
    assert cloud.ended(cloud.live_migrate(other)) == 'completed'
    other.survived(alpha, beta)
    # A compute that comes anew does not wait for it either.
    cloud.site.services['alpha'].kill()
    cloud.start_compute('alpha')
    assert cloud.ended(cloud.live_migrate(a_guest(cloud, 'guest-3'))) == 'completed'
