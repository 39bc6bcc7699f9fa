# SPDX-License-Identifier: Apache-2.0

"""Mutants of migrator/placement_client."""

from tests.mutants.mutant import Mutant

ALLOCATIONS = 'migrator/placement_client/allocations.py'
CANDIDATES = 'migrator/placement_client/candidates.py'
CLIENT = 'migrator/placement_client/client.py'
PAIRS = 'migrator/placement_client/allocation_state.py'

MUTANTS = (
    Mutant(
        'generation-not-sent-with-a-removal',
        ALLOCATIONS,
        "'consumer_generation': self.generation,",
        "'consumer_generation': self.generation if self.allocations else None,",
        'Placement refuses each removal, so the allocation of the source is never released.',
    ),
    Mutant(
        'pair-read-without-generations',
        ALLOCATIONS,
        'if after == before:',
        'if after.allocations == before.allocations:',
        'A write between the two reads goes unseen, and an allocation that is still needed counts as released.',
    ),
    Mutant(
        'null-generation-allowed',
        ALLOCATIONS,
        'if generation is None:\n        raise ValueError',
        'if generation == -1:\n        raise ValueError',
        'A write without a generation makes the allocation of a deleted instance anew.',
    ),
    Mutant(
        'full-host-counts-as-a-race',
        CLIENT,
        "if status == 409 and first.get('code') == CONCURRENT_UPDATE:",
        'if status == 409:',
        'A migration tries a full host again and again instead of the next candidate.',
    ),
    Mutant(
        'server-error-counts-as-not-done',
        CLIENT,
        'if status >= 500 or status in NOT_NOW:',
        'if status > 500 or status in NOT_NOW:',
        'After a 500 of Placement a write that was done counts as refused, and the allocation leaks.',
    ),
    Mutant(
        'named-host-gets-the-candidate-of-another',
        CANDIDATES,
        'found = [candidate for candidate in found if candidate.compute_roots == (in_tree,)]',
        'found = [candidate for candidate in found if candidate.compute_roots]',
        'The instance is allocated on another host than the one that the user has named.',
    ),
    Mutant(
        'candidate-on-two-hosts-accepted',
        CANDIDATES,
        'if len(candidate.compute_roots) == 1:',
        'if candidate.compute_roots:',
        'The allocation of one guest is spread over two compute hosts.',
    ),
    Mutant(
        'forced-move-flattens-nested-allocations',
        PAIRS,
        'if len(held) > 1:',
        'if len(held) > 2:',
        'A forced migration claims only a part of what the guest holds.',
    ),
    Mutant(
        'refused-together-counts-as-refused-alone',
        ALLOCATIONS,
        'if len(callers) > 1 and isinstance(error',
        'if len(callers) > 99 and isinstance(error',
        'A guest without room at its destination makes the migrations fail that are written with it.',
    ),
    Mutant(
        'no-reply-counts-as-refused',
        ALLOCATIONS,
        'exception.PlacementConflict | exception.PlacementRefused):',
        'exception.MigratorException):',
        'Writes that may have been done are sent again with the same generations.',
    ),
    Mutant(
        'one-of-a-refused-request-is-forgotten',
        ALLOCATIONS,
        'self._waiting[:0] = callers',
        'self._waiting[:0] = callers[:-1]',
        'A migration waits for ever for the reply to its write.',
    ),
    Mutant(
        'joint-read-of-a-nested-host-is-used',
        ALLOCATIONS,
        'self._client, root)) != 1:',
        'self._client, root)) == 0:',
        'What a guest holds of child providers is lost when it moves.',
    ),
    Mutant(
        'joint-read-with-a-part-is-used',
        ALLOCATIONS,
        'if found is None or [dict(held) for held in found.allocations.values()] not in legal:',
        'if found is None:',
        'What a guest holds of a sharing provider is lost when it moves.',
    ),
    Mutant(
        'joint-read-is-older-than-its-guest',
        ALLOCATIONS,
        'if queue.read_for < number:',
        'if not queue.found:',
        'A guest gets the reading of a moment before it was asked for.',
    ),
)
