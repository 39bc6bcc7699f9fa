# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""The bug museum's index: for each of nova's bugs where its test is, what will bring it, or why there can be none.

A test has the number in its docstring. The bugs themselves, with their causes, are described in nova's Launchpad under
the numbers given here. What was seen in nova 34 and has no number is in :data:`SEEN`.
"""

from __future__ import annotations

import dataclasses

_DAYS = 'tests/functional/test_bad_days.py'
_SERVICES = 'tests/functional/test_bad_days_of_services.py'
_ABORT = 'tests/functional/test_abort.py'
_ABORT_DAYS = 'tests/functional/test_abort_bad_days.py'
_FORCE = 'tests/functional/test_force_complete.py'
_RESTARTS = 'tests/functional/test_museum_restarts.py'
_STOP = 'tests/functional/test_planned_stop.py'
_INPUT = 'tests/functional/test_bad_input.py'
_MOVE = 'tests/functional/test_live_migration.py'
_ALLOCATIONS = 'tests/unit/placement_client/test_allocations.py'
_PAIRS = 'tests/unit/placement_client/test_pairs.py'
_ORDERS = 'tests/unit/compute/test_orders.py'
_FAKE_JOB = 'tests/unit/virt/test_fake_job.py'


@dataclasses.dataclass(frozen=True)
class Exhibit:
    """One bug.

    :ivar bugs: Launchpad's numbers; nova's commit where there is none.
    :ivar what: the symptom.
    :ivar tests: where it is tried, each ``file::test``.
    :ivar later: what will bring the part that the rest of it needs; '' where nothing is missing.
    :ivar never: why it does not apply; '' where it does. The tests, if there are any, are of the nearest part there is.
    """

    bugs: str
    what: str
    tests: tuple[str, ...] = ()
    later: str = ''
    never: str = ''


def _at(file: str, *names: str) -> tuple[str, ...]:
    return tuple(f'{file}::{name}' for name in names)


_HEALED = _at('tests/functional/test_audit.py', 'test_what_is_wrong_is_found_and_put_right_and_nothing_else_is_touched')
_EVACUATION = 'evacuation, the second story'
_NO_PORTS = "there are no Neutron ports: networks are the embedding service's"
_NO_VOLUMES = "there are no Cinder volumes: attachments are the embedding service's"

#: Those about the queue, an abort, a stop or a restart: each has a test of this part, whatever else it waits for.
OF_THE_QUEUE = frozenset({1, 2, 7, 8, 13, 17, 18, 20, 34, 36, 41, 42})

EXHIBITS: dict[int, Exhibit] = {
    1: Exhibit(
        '1949808, 1960412',
        'a queued abort left everything behind',
        _at(
            _ABORT,
            'test_an_aborted_server_is_exactly_as_it_was',
            'test_one_that_waits_is_cancelled_at_once_and_its_driver_is_never_called',
        )
        + _at(_ABORT_DAYS, 'test_wherever_a_conductor_is_killed_in_an_abort_another_one_finishes_it'),
    ),
    2: Exhibit(
        '1753676',
        'the transfer went on unmanaged after a restart',
        _at(
            _SERVICES,
            'test_a_source_that_is_killed_while_it_copies_finds_its_job_again_or_its_guest_gone',
            'test_a_source_that_is_killed_while_it_copies_and_never_comes_back_owes_its_cleanup',
            'test_a_source_that_is_killed_before_its_hypervisor_has_the_job_starts_it_once',
            'test_what_waited_on_a_source_that_was_killed_is_queued_again_in_its_order',
        )
        + _at(_ABORT_DAYS, 'test_a_source_that_is_killed_when_the_abort_has_come_is_asked_when_it_is_back'),
    ),
    3: Exhibit(
        '1905944',
        'the watcher died, and the guest went on to the destination',
        _at(
            _DAYS,
            'test_a_database_that_refuses_for_five_seconds_in_the_middle_costs_time_only',
            'test_a_driver_whose_connection_breaks_while_the_job_goes_on_is_listened_to_again',
        ),
    ),
    4: Exhibit(
        '1628606',
        'the host was not updated when a post step failed',
        _at(
            _DAYS,
            'test_a_post_step_that_fails_once_is_done_again_and_the_server_is_at_its_new_host_meanwhile',
            'test_a_post_step_that_fails_for_ever_becomes_a_debt_and_the_migration_ends',
        ),
    ),
    5: Exhibit(
        '1379581',
        'a guest was lost when a post step failed at the destination',
        _at(_DAYS, 'test_a_post_step_that_fails_once_is_done_again_and_the_server_is_at_its_new_host_meanwhile'),
    ),
    6: Exhibit(
        '2000069',
        'MIGRATING for ever, for the destination died in its post step',
        _at(
            _DAYS,
            'test_a_destination_that_dies_in_its_post_step_owes_it_and_the_migration_ends',
            'test_a_post_step_that_fails_for_ever_becomes_a_debt_and_the_migration_ends',
        ),
    ),
    7: Exhibit(
        '1662626',
        'MIGRATING for ever, for a cleanup raised',
        _at(
            _DAYS,
            'test_a_rollback_that_fails_a_few_times_is_tried_again_until_it_is_clean',
            'test_a_destination_that_cannot_be_cleaned_owes_it_and_the_server_is_free',
        )
        + _at(_ABORT_DAYS, 'test_a_rollback_that_fails_a_few_times_is_tried_again_until_it_is_clean'),
    ),
    8: Exhibit(
        '1397153',
        'MIGRATING for ever, for the conductor met an unknown exception',
        _at(_DAYS, 'test_an_error_that_nobody_has_thought_of_costs_a_few_seconds_and_no_more')
        + _at(_ORDERS, 'test_an_error_that_nobody_foresaw_is_reported_as_a_failure'),
    ),
    9: Exhibit(
        '1435633',
        'ERROR, for the destination did not answer its check',
        _at(_DAYS, 'test_a_host_that_hangs_in_its_check_and_is_killed_counts_as_failing'),
    ),
    10: Exhibit(
        '2044235',
        'ERROR, for the source did not answer its check',
        _at(_DAYS, 'test_a_host_that_hangs_in_its_check_and_is_killed_counts_as_failing'),
    ),
    11: Exhibit(
        '1377644',
        'MIGRATING for ever with mixed RPC versions',
        _at(
            'tests/simulation/test_versions.py',
            'test_an_upgrade_under_running_migrations_ends_in_order',
            'test_every_path_under_every_floor_ends_in_order_and_so_do_some_cells_of_it',
        )
        + _at('tests/functional/test_versions.py', 'test_a_pin_has_new_hosts_told_as_old_ones_are'),
    ),
    12: Exhibit(
        '1785031',
        'a bad host was looked at after the state had been changed',
        _at(_INPUT, 'test_an_unknown_host_is_a_400_and_nothing_has_changed'),
    ),
    13: Exhibit(
        '1715182, 1714237',
        'the allocation at the destination leaked on rollback',
        _at(
            _DAYS,
            'test_when_every_candidate_fails_everything_is_as_before',
            'test_when_the_named_host_fails_no_other_is_tried',
            'test_a_driver_that_fails_leaves_the_guest_running_where_it_was',
        )
        + _at(
            _ABORT,
            'test_an_abort_is_taken_in_every_status_from_its_microversion_on',
            'test_an_aborted_server_is_exactly_as_it_was',
        ),
    ),
    14: Exhibit(
        '1712411',
        'a rejected candidate kept its allocation',
        _at(_DAYS, 'test_a_candidate_that_fails_its_check_is_left_clean_and_the_next_one_is_used'),
    ),
    15: Exhibit(
        '1712008',
        'a forced move had no allocation at the destination',
        _at(_INPUT, 'test_a_host_that_is_too_full_is_not_forced')
        + _at(_MOVE, 'test_a_forced_move_goes_where_it_was_told_with_a_claim_there'),
    ),
    16: Exhibit(
        '1713786',
        'a claim that failed leaked its allocation',
        _at(
            _DAYS,
            'test_a_capacity_that_was_taken_meanwhile_is_a_refusal_and_the_next_candidate_is_used',
            'test_a_capacity_that_was_taken_at_the_named_host_fails_the_migration',
        ),
        later=_EVACUATION,
    ),
    17: Exhibit(
        '1713783',
        'a restart of the source destroyed guests that were never evacuated',
        _at(
            _RESTARTS,
            'test_a_source_that_restarts_after_no_host_was_found_still_has_its_guests',
            'test_a_source_that_restarts_destroys_nothing_whatever_the_migration_stands_at',
        ),
        later=_EVACUATION,
    ),
    18: Exhibit(
        '1721652',
        'the cleanup at start failed on a cold cache',
        _at(_RESTARTS, 'test_when_everything_is_started_anew_at_once_nothing_depends_on_what_was_known'),
        later=_EVACUATION,
    ),
    19: Exhibit(
        '1724172',
        'allocations were kept when the hypervisor had lost the guest',
        _at(
            _SERVICES,
            'test_a_source_that_loses_its_power_and_is_fenced_ends_in_error_with_nothing_left_elsewhere',
        )
        + _HEALED,
    ),
    20: Exhibit(
        '1794996',
        'a service did not start, for an evacuated guest had been deleted',
        _at(_RESTARTS, 'test_a_host_whose_server_was_deleted_while_it_was_away_starts_and_serves'),
        later=_EVACUATION,
    ),
    21: Exhibit('1829479', 'a provider could not be deleted after an evacuation', later=_EVACUATION),
    22: Exhibit(
        '1852610',
        'deleting a service orphaned its provider',
        _at(
            'tests/unit/cmd/test_manage_service.py',
            'test_a_compute_that_is_gone_for_good_is_forgotten_with_its_providers',
            'test_one_that_is_still_needed_is_not_deleted_and_it_says_by_what',
        ),
    ),
    23: Exhibit(
        '66297f0c4a',
        'allocations of child providers leaked',
        _at(_ALLOCATIONS, 'test_a_nested_allocation_moves_and_comes_back_whole'),
    ),
    24: Exhibit(
        'fd351903a1',
        'a forced move lost nested resources',
        _at(_PAIRS, 'test_a_forced_move_of_a_nested_allocation_is_refused_and_the_providers_are_named')
        + _at(_ALLOCATIONS, 'test_a_forced_move_from_a_sharing_provider_is_refused_at_once'),
    ),
    25: Exhibit(
        '53ca096750',
        'updates were lost for want of a consumer generation',
        _at(
            _DAYS,
            'test_a_consumer_that_somebody_else_writes_between_all_our_requests_is_not_overwritten',
            'test_no_fault_of_a_single_request_to_placement_harms_a_migration',
        ),
    ),
    26: Exhibit(
        '55f4552621',
        'a revert of what was reverted',
        _at(
            _DAYS,
            'test_a_move_that_arrives_when_all_is_over_is_refused_by_its_generation',
            'test_no_fault_of_a_single_request_to_placement_harms_a_rollback',
        ),
    ),
    27: Exhibit(
        '1729356',
        'a misleading message where the allocation was missing',
        _at(_INPUT, 'test_a_server_without_an_allocation_is_told_so_and_not_moved'),
    ),
    28: Exhibit(
        '1836754',
        'a delete met the race of GET and PUT',
        _at(_ALLOCATIONS, 'test_an_instance_deleted_during_the_move_stays_gone'),
    ),
    29: Exhibit(
        '1848343',
        'a deleted instance had allocations again',
        _at(
            _ALLOCATIONS,
            'test_an_instance_deleted_before_the_move_stays_gone',
            'test_an_instance_deleted_during_the_move_stays_gone',
        )
        + _at(
            'tests/functional/test_deleted_meanwhile.py',
            'test_before_it_has_moved_the_migration_is_unwound_and_nothing_is_left',
            'test_when_it_has_moved_nothing_is_left_of_it_but_a_word_to_a_person',
        ),
    ),
    30: Exhibit(
        '1793569',
        'orphaned allocations could not be found',
        _at('tests/functional/test_demo.py', 'test_books_that_are_wrong_are_told_and_end_in_1') + _HEALED,
    ),
    31: Exhibit(
        '1790204',
        'allocations were doubled on one provider',
        _at(_MOVE, 'test_the_books_are_exact_at_every_stage'),
    ),
    32: Exhibit(
        '1896463, 1849165',
        'the periodic task counted wrong between two steps',
        _at(
            _MOVE,
            'test_a_heartbeat_between_every_step_changes_nothing',
            'test_the_providers_in_placement_are_what_the_computes_report',
        ),
    ),
    33: Exhibit(
        '1894095',
        'pins were wrong after the periodic task',
        _at(_MOVE, 'test_a_heartbeat_between_every_step_changes_nothing'),
        never='there is no CPU pinning, and nothing is recounted: Placement keeps the books',
    ),
    34: Exhibit(
        '1580609',
        'a guest stayed paused after force complete',
        _at(
            _FORCE,
            'test_at_the_last_moment_it_is_harmless',
            'test_a_guest_that_never_ends_its_copy_is_paused_and_arrives',
        )
        + _at(
            _ABORT,
            'test_whenever_it_comes_around_the_cut_over_it_is_cancelled_or_completed_and_never_both_or_neither',
        ),
    ),
    35: Exhibit(
        '1470420',
        'files were left after a delete, for what had failed was not cleaned',
        _at(_DAYS, 'test_when_every_candidate_fails_everything_is_as_before'),
    ),
    36: Exhibit(
        '1841411',
        'a guest that had been rolled back was in ERROR',
        _at(
            _DAYS,
            'test_a_driver_that_fails_leaves_the_guest_running_where_it_was',
            'test_a_guest_that_was_paused_by_its_user_is_still_paused_after_a_failed_cut_over',
        )
        + _at(_ABORT, 'test_a_guest_that_its_user_has_paused_is_paused_after_the_abort'),
    ),
    37: Exhibit(
        '1944619',
        'a rollback touched the source, which had not been changed',
        _at(_DAYS, 'test_when_the_named_host_fails_no_other_is_tried'),
    ),
    38: Exhibit(
        '1969980',
        'a rollback crashed on optional data that was not there',
        _at(_DAYS, 'test_a_candidate_that_fails_its_check_is_left_clean_and_the_next_one_is_used'),
    ),
    39: Exhibit('1888395', 'bad data of ports without an extension', never=_NO_PORTS),
    40: Exhibit(
        '1757292',
        'a port still said where it was migrating to',
        _at(_DAYS, 'test_a_driver_that_fails_leaves_the_guest_running_where_it_was'),
        never=f'{_NO_PORTS}; that nothing is left after a rollback is tried with what the hypervisors keep',
    ),
    41: Exhibit(
        '1788014',
        'an event was taken for success',
        _at(
            _SERVICES,
            'test_when_every_event_is_lost_the_polls_finish_a_rollback_too',
        )
        + _at(_ABORT_DAYS, 'test_when_every_event_is_lost_the_polls_finish_an_abort'),
    ),
    42: Exhibit(
        '1786346, 1901707',
        'events too early, too late or never',
        _at(
            _SERVICES,
            'test_when_every_event_is_lost_the_polls_finish_it',
            'test_events_that_come_twice_or_late_change_nothing',
            'test_no_single_message_that_is_lost_late_or_doubled_harms_a_migration',
        )
        + _at(
            _ABORT_DAYS,
            'test_no_abort_that_is_lost_late_or_doubled_on_its_way_to_the_source_is_forgotten',
        )
        + _at(
            _FORCE,
            'test_no_wish_that_is_lost_late_or_doubled_on_its_way_to_the_source_is_forgotten',
        )
        + _at(_ABORT, 'test_at_whatever_message_it_comes_there_is_one_end'),
    ),
    43: Exhibit(
        '1879787',
        'a post step died on something that it did not need',
        _at(_DAYS, 'test_a_post_step_that_fails_once_is_done_again_and_the_server_is_at_its_new_host_meanwhile'),
        never=f'{_NO_PORTS}; a post step that fails is tried all the same',
    ),
    44: Exhibit('1647451', 'a token ran out during the copy', later='the tests on real services, with Keystone tokens'),
    45: Exhibit(
        '1889108',
        'the source lost its volume when the preparation was rolled back',
        _at(_DAYS, 'test_when_the_named_host_fails_no_other_is_tried'),
        never=f'{_NO_VOLUMES}; that the source is not touched is tried all the same',
    ),
    46: Exhibit(
        '1778206',
        'what was half prepared leaked',
        _at(_DAYS, 'test_a_destination_that_prepares_badly_once_is_cleaned_and_the_next_one_is_used'),
    ),
    47: Exhibit(
        '1780973, 1939545',
        'the state was another after the rollback than before',
        _at(
            _DAYS,
            'test_a_driver_that_fails_leaves_the_guest_running_where_it_was',
            'test_a_guest_that_was_paused_by_its_user_is_still_paused_after_a_failed_cut_over',
        ),
    ),
    48: Exhibit('1899835', 'the destination was cleaned with what the source knew', never=_NO_VOLUMES),
    49: Exhibit(
        '1475411, 1843639',
        'an error of the cleanup failed the migration',
        _at(_DAYS, 'test_a_post_step_that_fails_for_ever_becomes_a_debt_and_the_migration_ends'),
    ),
    50: Exhibit(
        '1488435',
        'one part of the cleanup failed, and the others were skipped',
        _at(
            _DAYS,
            'test_a_driver_that_fails_leaves_the_guest_running_where_it_was',
            'test_a_destination_that_cannot_be_cleaned_owes_it_and_the_server_is_free',
        ),
    ),
    51: Exhibit('2080436', 'a shared disk was deleted after a success', later='the libvirt driver, which has disks'),
    52: Exhibit(
        '1821755',
        'many moves at once to one host',
        _at(
            _MOVE,
            'test_twelve_leave_one_host_in_turn_and_never_more_at_once_than_it_allows',
            'test_many_moves_at_once_to_one_host_stop_at_what_fits_there',
        ),
        never='there are no server groups, so no anti-affinity; that places are not given twice is tried all the same',
    ),
    53: Exhibit(
        '1797580, 1669054, 1561357',
        'the next move found no host',
        _at(_MOVE, 'test_two_moves_in_a_row_find_their_way_as_the_first_did'),
    ),
    54: Exhibit(
        '2153425',
        'limits were ignored at the destination',
        _at(_INPUT, 'test_a_host_whose_hypervisor_says_that_it_is_too_small_is_refused')
        + _at(_MOVE, 'test_many_moves_at_once_to_one_host_stop_at_what_fits_there'),
    ),
    55: Exhibit(
        '1893221', 'a claim of PCI devices ignored NUMA', never='there are neither PCI devices nor NUMA claims'
    ),
    56: Exhibit(
        '1982284',
        'the watcher died when the job had no figures any more',
        _at(_FAKE_JOB, 'test_remaining_goes_up_between_two_iterations_and_the_figures_go_at_the_very_end')
        + _at(_MOVE, 'test_the_progress_of_the_copy_is_seen_while_it_runs_and_only_grows'),
    ),
    57: Exhibit(
        '1644248',
        'a copy that was slow was given up',
        _at(_DAYS, 'test_a_copy_that_is_slow_but_moves_is_never_given_up')
        + _at(_MOVE, 'test_a_guest_that_writes_its_memory_arrives_however_fast_it_does'),
    ),
    58: Exhibit(
        '1267862',
        'what had become free was not seen',
        _at(_MOVE, 'test_what_has_become_free_can_be_used_by_the_very_next_move'),
    ),
    59: Exhibit(
        '06d25926a1',
        'a notification that failed stopped the post step',
        _at(
            _SERVICES,
            'test_a_broker_that_is_away_for_a_minute_costs_time_only',
        ),
        later='notifications',
    ),
    60: Exhibit(
        'dd952f9fdf, f628dc9099',
        'one time-out of RPC led to the next',
        _at(_DAYS, 'test_a_destination_that_hangs_in_its_preparation_is_waited_for')
        + _at(
            _SERVICES,
            'test_no_single_message_that_is_lost_late_or_doubled_harms_a_migration',
        ),
    ),
    61: Exhibit('1605016', 'the network came too late in post-copy', never=_NO_PORTS),
    62: Exhibit(
        'cfb99acd6a',
        'an error in the handling of errors hid the real one',
        _at(_DAYS, 'test_an_error_that_nobody_has_thought_of_costs_a_few_seconds_and_no_more'),
    ),
}


#: What nova 34 does, in words; ``bugs`` is empty, for nobody has reported it.
SEEN = (
    Exhibit(
        '',
        'a clean stop cancels what is queued, and leaves both allocations',
        _at(_STOP, 'test_what_waits_is_cancelled_and_clean_and_what_runs_goes_on_however_the_driver_hangs'),
    ),
    Exhibit(
        '',
        'a compute that is killed leaves what is queued so for ever',
        _at(_SERVICES, 'test_what_waited_on_a_source_that_was_killed_is_queued_again_in_its_order'),
    ),
    Exhibit(
        '',
        'an audit during a migration deletes the allocation of the moving instance',
        _at(
            'tests/functional/test_audit.py',
            'test_at_no_moment_of_a_migration_is_a_living_allocation_wrong',
            'test_what_a_migration_in_progress_is_about_is_left_to_it',
        )
        + _at(
            'tests/simulation/test_audit.py',
            'test_it_reports_no_living_allocation_during_random_migrations_aborts_and_failures',
        ),
    ),
    Exhibit(
        '',
        'an abort between two halves of the queueing is answered 202 and lost; the next one is swallowed',
        _at(
            _ABORT,
            'test_when_the_slot_becomes_free_as_it_is_aborted_the_abort_is_not_lost',
        )
        + _at(_ABORT_DAYS, 'test_an_abort_between_the_slot_and_the_job_is_not_lost'),
    ),
    Exhibit(
        '',
        'an abort while preparing takes effect when the preparation has run to its end',
        _at(
            _ABORT,
            'test_one_that_is_being_prepared_is_unwound_within_a_second_and_not_at_the_steps_end',
        ),
    ),
    Exhibit(
        '',
        'a migration that was rolled back cleanly turns a healthy server to ERROR',
        _at(_DAYS, 'test_a_driver_that_fails_leaves_the_guest_running_where_it_was'),
    ),
    Exhibit(
        '',
        'the conductor dies after it has moved the allocations: accepted for ever, which no API can abort',
        _at(_SERVICES, 'test_wherever_a_conductor_is_killed_another_one_finishes_the_migration')
        + _at(_ABORT_DAYS, 'test_a_migration_whose_conductor_is_dead_can_be_aborted'),
    ),
    Exhibit(
        '',
        'what is in post-copy is in none of the lists of what is in progress',
        _at(_ABORT, 'test_when_the_guest_runs_at_the_destination_it_is_a_400_that_says_so')
        + _at(_FORCE, 'test_where_the_hypervisor_can_and_may_it_goes_on_in_post_copy'),
    ),
)
