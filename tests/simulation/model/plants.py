# SPDX-License-Identifier: Apache-2.0
"""The planted mistakes: what each is, and the variant in which the search must catch it.

A model that finds nothing may be blind; so each of these has to be found.
"""

from __future__ import annotations

import dataclasses

from tests.simulation.model.world import Variant


@dataclasses.dataclass(frozen=True)
class Plant:
    """A mistake. :ivar caught: what part of the finding's text is; '' for any."""

    what: str
    variant: Variant
    caught: str

    def planted(self, name: str) -> Variant:
        """Return its variant with the mistake in it."""
        return dataclasses.replace(self.variant, plants=frozenset({name}))


_MESSAGE = Variant(crashes=0, messages=1)
_CRASH = Variant(crashes=1, messages=0)
_BOTH = Variant(crashes=1, messages=1)
_STOP = Variant(crashes=0, messages=1, aborts=0, stops=1)
_STOP_AND_CRASH = Variant(crashes=1, messages=0, aborts=0, stops=1)
_HANG = Variant(crashes=0, messages=0, hangs=1)
_HANG_AND_CRASH = Variant(crashes=1, messages=0, hangs=1, late=True)

PLANTS = {
    'a': Plant('no epoch is raised before back is decided', _MESSAGE, 'not covered'),
    'b': Plant('no generation is burnt where nothing was moved', _MESSAGE, 'ended migration holds'),
    'c': Plant('no boot_id is looked at', _BOTH, 'after the end'),
    'd': Plant('the destination is cleaned while nothing is settled', _MESSAGE, 'while nothing is settled'),
    'e': Plant('a time-out decides back', _MESSAGE, 'back while the destination runs'),
    'f': Plant('an adopter acts by the log, and asks no host', _MESSAGE, 'back while the destination runs'),
    'g': Plant("nova's two requests instead of one move", _MESSAGE, 'not covered'),
    'h': Plant('between queue and driver call the source says that there is nothing', _MESSAGE, 'back while'),
    'lateget': Plant("generations are read after the intent's commit", _CRASH, 'ended migration holds'),
    'xf': Plant('source paused without a job, destination down: forward', _CRASH, 'does not run it'),
    'xb': Plant('the same: back', _CRASH, 'back while the destination runs'),
    'late-boot': Plant(
        'a start report that comes late takes the place of a newer one',
        Variant(crashes=2, messages=0, aborts=0),
        'an older boot',
    ),
    'i16': Plant('no mistake: "no effect of an older epoch" taken by its letter', _MESSAGE, 'by its letter'),
    'cleanup-epoch': Plant('a refused cleanup is sent again in the same epoch', _CRASH, 'deferred cleanup clean'),
    'no-check': Plant(
        'a check that was sent without a record of the move leaves its data',
        Variant(crashes=0, messages=0),
        'not covered',
    ),
    'next-too-early': Plant(
        "the second candidate's intent before the first is cleaned and its move burnt",
        Variant(crashes=0, messages=1, aborts=0, candidates=2),
        'debris',
    ),
    'stop-names-started': Plant('a stop names as cancelled what has started', _STOP, 'back while the destination runs'),
    'stop-unreported': Plant('a stop cancels work and reports it to no conductor', _STOP, 'without an abort request'),
    'stop-any-boot': Plant('a late compute_stopping counts for any boot', _STOP, 'back while the destination runs'),
    'stop-final': Plant(
        'a stop is authoritative for work queued again at the start, which an earlier boot had begun',
        _STOP_AND_CRASH,
        'left paused',
    ),
    'abort-waits': Plant('an abort waits for the destination, which hangs', _HANG, 'S job, D waiting, whose'),
    'adopter-waits': Plant('an adopter polls all hosts before it aborts', _HANG_AND_CRASH, 'S job, D waiting, whose'),
}
#: What the product does at the time of writing, and should not: the model does what is right. Mend it, and drop these.
HOLES = ('cleanup-epoch', 'stop-final')
