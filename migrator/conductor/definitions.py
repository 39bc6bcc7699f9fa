# SPDX-License-Identifier: Apache-2.0

"""The definitions of guests, which the conductor fetches while their hosts live.

Another host needs the definition to start the guest once its host is dead.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from oslo_log import log as logging

from migrator import context, exception, executors
from migrator.conductor.migration.context import Tools
from migrator.db.guests.definitions import Asked, Reported

LOG = logging.getLogger(__name__)

#: Seconds after which a definition is fetched again. A guest whose host or flavor has changed
#: has none, and it is fetched with the next sweep.
KEPT = 3600.0
#: Seconds after which a guest is asked for again whose host has reported no definition. Its hypervisor may have been
#: busy, or the guest was registered before it was there.
_AGAIN = 60.0
#: Guests whose definitions one sweep fetches, of all hosts and of one.
_AT_ONCE, _OF_A_HOST = 500, 20
#: Seconds for a reply, half of which the host waits for its driver, which may read the disks of each guest. A host that
#: does not answer holds a thread for polls as long.
_TIMEOUT = 4.0


def fetch_all(tools: Tools, pool: executors.BoundedExecutor) -> None:
    """Fetch the definitions that are missing or old, from the hosts that are up.

    :param pool: limits the hosts that are asked at a time.
    """
    for host, guests in tools.database.definitions.outdated(KEPT, _AT_ONCE).items():
        some = dict(itertools.islice(guests.items(), _OF_A_HOST))
        tools.submit_once(pool, ('definitions', host), _fetch, host, some)


def _fetch(tools: Tools, host: str, guests: Asked) -> None:
    try:
        found = tools.hosts.api.get_definitions(context.admin_context(), host, list(guests), _TIMEOUT)
        stored = {uuid: found.get(uuid) or {} for uuid in guests}
        before = tools.database.definitions.reported(stored)
        tools.database.definitions.store(host, stored, KEPT - _AGAIN, guests)
        after = tools.database.definitions.reported(stored)
        _log_new(tools, host, {uuid: (before.get(uuid, Reported()), now) for uuid, now in after.items()})
    except (exception.ServiceUnreachable, exception.RemoteError) as error:
        LOG.warning(
            'Could not fetch the definitions of guests of host %(host)s: %(error)s', {'host': host, 'error': error}
        )
    except Exception:  # the pool would drop the error; the next sweep tries again
        LOG.exception('Could not store the definitions of guests of host %s', host)


def _log_new(tools: Tools, host: str, found: Mapping[str, tuple[Reported, Reported]]) -> None:
    """Log what keeps guests where they are, if it was not known before."""
    new = {
        uuid: [
            (how, reason)
            for how, was, reason in (
                ('moved live', before.immovable, now.immovable),
                ('evacuated or moved cold', before.unstartable, now.unstartable),
            )
            if reason is not None and reason != was
        ]
        for uuid, (before, now) in found.items()
    }
    wanted = [uuid for uuid, reasons in new.items() if reasons]
    for instance in tools.database.instances.list({'uuid': wanted}) if wanted else ():
        for how, reason in new[instance.uuid]:
            LOG.warning(
                'Guest %(name)s (%(guest)s) of host %(host)s cannot be %(how)s: %(reason)s',
                {'name': instance.name, 'guest': instance.uuid, 'host': host, 'how': how, 'reason': reason},
            )
