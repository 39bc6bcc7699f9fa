# SPDX-License-Identifier: Apache-2.0

"""An attempt of the owner to advance a drain. If it fails, the drain waits for what has prevented it."""

from __future__ import annotations

from oslo_log import log as logging

from migrator import exception
from migrator.drain import run
from migrator.drain.engine import Engine, Store
from migrator.objects import base
from migrator.objects.drain import LONGEST_ERROR, Drain

LOG = logging.getLogger(__name__)


def attempt(store: Store, engine: Engine, drain: Drain, process: str, is_whole: bool = True) -> run.Advanced:
    """Advance a drain as far as possible now. Log an error, and write it as what the drain waits for.

    No error is final: the next attempt of the owner tries again.

    :param drain: a drain in progress, as its owner has read it.
    :param process: the name of the owner's process in messages, such as ``conductor c1``.
    :param is_whole: as in :func:`migrator.drain.run.advance`.
    :returns: the drain as written; after an error, as given and without a rest.
    """
    try:
        done = run.advance(store, engine, drain, is_whole)
    except exception.NotOwnerOfDrain as error:
        LOG.info(
            'Could not write drain %(drain)s, because a user or another owner has changed it; the next poll reads it '
            'again: %(error)s',
            {'drain': drain.uuid, 'error': error},
        )
    except exception.ServiceUnreachable as error:
        LOG.warning(
            'Could not advance drain %(drain)s of %(host)s; the next poll tries again: %(error)s',
            _named(drain, error=error),
        )
        _note(store, drain, error, str(error))
    except Exception as error:  # it concerns this drain only; the next poll tries again
        LOG.exception(
            'Could not advance drain %(drain)s of %(host)s for an unexpected reason; the next poll tries again',
            _named(drain),
        )
        what = f'Unexpected error in {process}, which tries again at each poll. See its log: {error!r}'
        _note(store, drain, error, what)
    else:
        if done.drain.ended:
            LOG.info('Drain has ended: %(drain)s of %(host)s is %(status)s: %(message)s', _named(done.drain))
        return done
    return run.Advanced(drain)


def _note(store: Store, drain: Drain, why: Exception, reason: str) -> None:
    """Write why a drain waits, unless it waits for such an error already. A failure is only logged."""
    try:
        now = store.get(drain.uuid)
        is_mine = (now.owner, now.epoch) == (drain.owner, drain.epoch)
        error = base.text(repr(why), LONGEST_ERROR)
        if is_mine and now.wait_error != error and not now.ended:
            store.write(now, {'waits_for': reason, 'wait_error': error}, [], [('waits', {'reason': reason})])
    except (exception.ServiceUnreachable, exception.NotOwnerOfDrain) as error:
        LOG.info('Could not write why a drain waits: %(drain)s: %(error)s', {'drain': drain.uuid, 'error': error})


def _named(drain: Drain, **more: object) -> dict[str, object]:
    named = {'drain': drain.uuid, 'host': drain.host, 'status': drain.status, 'message': drain.message}
    return named | more
