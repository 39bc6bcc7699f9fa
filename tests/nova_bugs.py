# SPDX-License-Identifier: Apache-2.0

"""The bugs of nova that this project must not have.

A test that would fail if migrator had one is marked ``@pytest.mark.nova_bug(1949808, 1960412)``. Launchpad describes
each bug under its number, and nova's repository under its commit. ``tests/unit/test_nova_bugs.py`` checks that marks
and table agree.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, init=False)
class Bug:
    """One bug, however often it was reported.

    :ivar symptom: what an operator of nova sees.
    :ivar ids: Launchpad's numbers; a commit of nova (str) where there is none; a name of ours where it has neither.
    :ivar later: what will bring the part that the rest of it needs; '' where nothing is missing.
    :ivar never: why it does not apply; '' where it does. Its tests, if there are any, are of the nearest part there is.
    """

    symptom: str
    ids: tuple[int | str, ...]
    later: str = ''
    never: str = ''

    def __init__(self, symptom: str, *ids: int | str, later: str = '', never: str = '') -> None:
        for name, value in (('symptom', symptom), ('ids', ids), ('later', later), ('never', never)):
            object.__setattr__(self, name, value)


_NO_PORTS = "there are no Neutron ports: networks are the embedding service's"
_NO_VOLUMES = "there are no Cinder volumes: attachments are the embedding service's"

BUGS = (
    Bug('A queued abort left everything behind.', 1949808, 1960412),
    Bug('The transfer went on unmanaged after a restart.', 1753676),
    Bug('The watcher died, and the guest went on to the destination.', 1905944),
    Bug('The host was not updated when a post step failed.', 1628606),
    Bug('A guest was lost when a post step failed at the destination.', 1379581),
    Bug('MIGRATING for ever, for the destination died in its post step.', 2000069),
    Bug('MIGRATING for ever, for a cleanup raised.', 1662626),
    Bug('MIGRATING for ever, for the conductor met an unknown exception.', 1397153),
    Bug('ERROR, for the destination did not answer its check.', 1435633),
    Bug('ERROR, for the source did not answer its check.', 2044235),
    Bug('MIGRATING for ever with mixed RPC versions.', 1377644),
    Bug('A bad host was looked at after the state had been changed.', 1785031),
    Bug('The allocation at the destination leaked on rollback.', 1715182, 1714237),
    Bug('A rejected candidate kept its allocation.', 1712411),
    Bug('A forced move had no allocation at the destination.', 1712008),
    Bug('A claim that failed leaked its allocation.', 1713786),
    Bug('A restart of the source destroyed guests that were never evacuated.', 1713783),
    Bug('The cleanup at start failed on a cold cache.', 1721652),
    Bug('Allocations were kept when the hypervisor had lost the guest.', 1724172),
    Bug('A service did not start, for an evacuated guest had been deleted.', 1794996),
    Bug('A provider could not be deleted after an evacuation.', 1829479),
    Bug('A task that had died with the host kept a server from being evacuated.', 1978983),
    Bug('Deleting a service orphaned its provider.', 1852610),
    Bug('Allocations of child providers leaked.', '66297f0c4a'),
    Bug('A forced move lost nested resources.', 'fd351903a1'),
    Bug('Updates were lost for want of a consumer generation.', '53ca096750'),
    Bug('A revert of what was reverted.', '55f4552621'),
    Bug('A misleading message where the allocation was missing.', 1729356),
    Bug('A delete met the race of GET and PUT.', 1836754),
    Bug('A deleted instance had allocations again.', 1848343),
    Bug('Orphaned allocations could not be found.', 1793569),
    Bug('Allocations were doubled on one provider.', 1790204),
    Bug('The periodic task counted wrong between two steps.', 1896463, 1849165),
    Bug(
        'Pins were wrong after the periodic task.',
        1894095,
        never='there is no CPU pinning, and nothing is recounted: Placement keeps the allocations',
    ),
    Bug('A guest stayed paused after force complete.', 1580609),
    Bug('Files were left after a delete, for what had failed was not cleaned.', 1470420),
    Bug('A guest that had been rolled back was in ERROR.', 1841411),
    Bug('A rollback touched the source, which had not been changed.', 1944619),
    Bug('A rollback crashed on optional data that was not there.', 1969980),
    Bug('Bad data of ports without an extension.', 1888395, never=_NO_PORTS),
    Bug(
        'A port still said where it was migrating to.',
        1757292,
        never=f'{_NO_PORTS}; that nothing is left after a rollback is tried with what the hypervisors keep',
    ),
    Bug('An event was taken for success.', 1788014),
    Bug('Events too early, too late or never.', 1786346, 1901707),
    Bug(
        'A post step died on something that it did not need.',
        1879787,
        never=f'{_NO_PORTS}; a post step that fails is tried all the same',
    ),
    Bug('A token ran out during the copy.', 1647451, later='the tests on real services, with Keystone tokens'),
    Bug(
        'The source lost its volume when the preparation was rolled back.',
        1889108,
        never=f'{_NO_VOLUMES}; that the source is not touched is tried all the same',
    ),
    Bug('What was half prepared leaked.', 1778206),
    Bug('The state was another after the rollback than before.', 1780973, 1939545),
    Bug('The destination was cleaned with what the source knew.', 1899835, never=_NO_VOLUMES),
    Bug('An error of the cleanup failed the migration.', 1475411, 1843639),
    Bug('One part of the cleanup failed, and the others were skipped.', 1488435),
    Bug('A shared disk was deleted after a success.', 2080436, later='the libvirt driver, which has disks'),
    Bug(
        'Many moves at once to one host.',
        1821755,
        never='there are no server groups, so no anti-affinity; that places are not given twice is tried all the same',
    ),
    Bug('The next move found no host.', 1797580, 1669054, 1561357),
    Bug('Limits were ignored at the destination.', 2153425),
    Bug('A claim of PCI devices ignored NUMA.', 1893221, never='there are neither PCI devices nor NUMA claims'),
    Bug('The watcher died when the job had no figures any more.', 1982284),
    Bug('A copy that was slow was given up.', 1644248),
    Bug('What had become free was not seen.', 1267862),
    Bug('A notification that failed stopped the post step.', '06d25926a1', later='notifications'),
    Bug('One time-out of RPC led to the next.', 'dd952f9fdf', 'f628dc9099'),
    Bug('The network came too late in post-copy.', 1605016, never=_NO_PORTS),
    Bug('An error in the handling of errors hid the real one.', 'cfb99acd6a'),
    # Seen in nova 34 and not reported there: these names are ours.
    Bug('A clean stop cancels what is queued, and leaves both allocations.', 'stop-cancels-what-waits'),
    Bug('A compute that is killed leaves what is queued so for ever.', 'killed-compute-leaves-queued'),
    Bug('An audit during a migration deletes the allocation of the moving instance.', 'audit-deletes-what-moves'),
    Bug(
        'An abort between two halves of the queueing is answered 202 and lost; the next one is swallowed.',
        'abort-lost-while-queueing',
    ),
    Bug(
        'An abort while preparing takes effect when the preparation has run to its end.', 'abort-waits-for-preparation'
    ),
    Bug('A migration that was rolled back cleanly turns a healthy server to ERROR.', 'error-after-clean-rollback'),
    Bug(
        'The conductor dies after it has moved the allocations: accepted for ever, which no API can abort.',
        'accepted-without-conductor',
    ),
    Bug('What is in post-copy is in none of the lists of what is in progress.', 'post-copy-in-no-list'),
)
