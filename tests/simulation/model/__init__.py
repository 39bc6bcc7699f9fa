# SPDX-License-Identifier: Apache-2.0
"""An executable model of one live migration, searched breadth first in every possible order.

It drives the product's own pure functions: :func:`migrator.conductor.migration.settle_table.decide` with
``source_observed`` and ``destination_observed``, :func:`migrator.placement_client.allocation_state.observe_pair`, and
the table of legal moves.
What a conductor does with their answers is written again here, after ``conductor/tasks/live_migrate.py``,
``conductor/migration/{context,settle,hosts,allocations}.py``, ``conductor/{takeover,cleanups}.py`` and
``saga/executor.py``; what a host does, after ``compute/step_runner.py``, ``compute/work.py`` and
``compute/inherited_jobs.py``. A change of these changes the model with them.

**In it**: one migration, two conductors, a source S, a destination D, Placement with its generations; as variants a
second candidate E, planned stops of S, and one deferred cleanup by itself (:mod:`.cleanups`). Faults: conductors
killed, or paused between a commit and the call that follows it; compute services killed (also within the driver's call,
also with their compute_started on its way) or out of reach; calls and answers lost, delayed without a bound, or
doubled; Placement killed during a move; the hypervisor of D hanging while its service answers. A budget bounds their
number; within it, the search looks at everything that can happen.

**Left out**: time (an unreachable host may be found down at once, and every wait may end at once); post-copy, guests
that are shut off, force complete, ``forced_down``; the check at the source (it changes nothing, and fails as the other
does); capacity, other migrations, the doubled strategy; failures of the database; post steps and rollbacks that fail at
the driver; an event received instead of a poll (it reports the same, earlier); the acknowledgement of reports; aborts
after the outcome; the abort that a time-out requests.

**Kept small without leaving anything out**, each said where it is done: the conductors are interchangeable; a call
leaves at once, for it may arrive late; a conductor that has lost its row releases it at once; calls that every target
will refuse are dropped; commits with nothing in between are one; adopters ask hosts once where they ask again anyway.

**Reading a trace**: one line per step, the shortest way there. ``left`` is the owner, ``right`` the other conductor, at
that moment: when the row changes hands, they change names. ``FAULT`` costs the budget, ``USER`` is an act of a user or
an operator; everything else happens by itself. ``check to D (epoch 1, boot 1)`` is a call; ``move(2, -1)`` a request to
Placement, bound to the instance's generation 2, with no consumer of the migration (0: an orphan consumer). A
*violation* is a broken invariant of :mod:`.safety`; a *trap* is a state from which, without a fault or an operator, no
end can be reached; *stuck* counts how often an operator is needed, which is no mistake if the world can still go on by
itself. While D hangs, it also counts as an end that only D is waited for (:func:`.safety.waits_for_a_hang`).

``python -m tests.simulation.model --crashes 1 --messages 2`` searches one variant. The files: :mod:`.state`,
:mod:`.search` (knows nothing of migrations), :mod:`.next_act`, :mod:`.rules`, :mod:`.asking`, :mod:`.ledger` and
:mod:`.conductor`, :mod:`.settling`, :mod:`.placement`, :mod:`.hosts`, :mod:`.messages`, :mod:`.faults`,
:mod:`.cleanup`, :mod:`.safety`, :mod:`.world` (puts it together), :mod:`.plants`, :mod:`.cleanups`, :mod:`.tenure`,
:mod:`.slots` and :mod:`.evacuation` (systems of their own).
"""
