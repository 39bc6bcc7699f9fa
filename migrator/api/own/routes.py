# SPDX-License-Identifier: Apache-2.0

"""The URLs under ``/migrator/v1``, which has no minor versions, and their policies."""

from __future__ import annotations

from migrator.api.own import (
    answers,
    attention,
    audits,
    cleanups,
    drains,
    events,
    hosts,
    maintenances,
    migrations,
    services,
)
from migrator.api.route import Route
from migrator.api.schemas.types import NO_QUERY

_C, _D, _M, _W = '/cleanups/{cleanup_id}', '/drains/{uuid}', '/migrations/{uuid}', '/maintenances/{uuid}'

#: A fixed path stands before one that would take it for an id.
OWN = (
    Route('GET', '/attention', attention.index, query=attention.INDEX_QUERY, answers={200: answers.ATTENTION}),
    Route('GET', '/cleanups', cleanups.index, query=cleanups.INDEX_QUERY, answers={200: answers.CLEANUPS}),
    Route('GET', _C, cleanups.show, query=NO_QUERY, answers={200: answers.CLEANUP}),
    Route(
        'POST',
        f'{_C}/action',
        cleanups.act,
        query=NO_QUERY,
        bodies=(cleanups.ACTION_BODY,),
        answers={200: {'anyOf': [answers.PLAN, answers.MESSAGE]}, 202: answers.MESSAGE},
    ),
    Route(
        'GET', '/differences', audits.list_differences,
        query=audits.DIFFERENCES_QUERY, answers={200: answers.DIFFERENCES},
    ),
    Route('GET', '/drains', drains.index, query=drains.INDEX_QUERY, answers={200: answers.DRAINS}),
    Route(
        'POST',
        '/drains',
        drains.create,
        query=NO_QUERY,
        bodies=(drains.CREATE_BODY,),
        answers={200: answers.DRAIN_PLAN, 202: answers.DRAIN},
    ),
    Route(
        'POST', '/drains/action', drains.act_on_all,
        query=NO_QUERY, bodies=(drains.PURGE_BODY,), answers={200: answers.PURGED_DRAINS},
    ),
    Route(
        'GET', '/drains/calibration', drains.show_calibration,
        query=drains.CALIBRATION_QUERY, answers={200: answers.CALIBRATION},
    ),
    Route('GET', _D, drains.show, query=NO_QUERY, answers={200: answers.DRAIN}),
    Route('GET', f'{_D}/members', drains.members, query=drains.MEMBERS_QUERY, answers={200: answers.MEMBERS}),
    Route('GET', f'{_D}/report', drains.report, query=NO_QUERY, answers={200: answers.DRAIN_REPORT}),
    Route('GET', f'{_D}/events', drains.events, query=drains.EVENTS_QUERY, answers={200: answers.DRAIN_EVENTS}),
    Route(
        'POST', f'{_D}/action', drains.act,
        query=NO_QUERY, bodies=(drains.ACTION_BODY,), answers={202: answers.DRAIN},
    ),
    Route(
        'GET', '/events', events.follow,
        query=events.QUERY, answers={200: answers.STREAM}, media='text/event-stream',
    ),
    Route('GET', '/findings', audits.list_findings, query=NO_QUERY, answers={200: answers.FINDINGS}),
    Route('GET', '/hosts', hosts.index, query=hosts.INDEX_QUERY, answers={200: answers.HOSTS}),
    Route('GET', '/hosts/{name}', hosts.show, query=NO_QUERY, answers={200: answers.HOST}),
    Route(
        'GET', '/maintenances', maintenances.index,
        query=maintenances.INDEX_QUERY, answers={200: answers.MAINTENANCES},
    ),
    Route(
        'POST',
        '/maintenances',
        maintenances.create,
        query=NO_QUERY,
        bodies=(maintenances.CREATE_BODY,),
        answers={200: answers.MAINTENANCE_PLAN, 202: answers.MAINTENANCE},
    ),
    Route(
        'POST', '/maintenances/action', maintenances.act_on_all,
        query=NO_QUERY, bodies=(maintenances.PURGE_BODY,), answers={200: answers.PURGED_DRAINS},
    ),
    Route('GET', _W, maintenances.show, query=NO_QUERY, answers={200: answers.MAINTENANCE}),
    Route(
        'GET', f'{_W}/events', maintenances.events,
        query=maintenances.EVENTS_QUERY, answers={200: answers.DRAIN_EVENTS},
    ),
    Route(
        'POST',
        f'{_W}/action',
        maintenances.act,
        query=NO_QUERY,
        bodies=(maintenances.ACTION_BODY,),
        answers={200: answers.MAINTENANCE_HOST, 202: answers.MAINTENANCE},
    ),
    Route('GET', '/migrations', migrations.index, query=migrations.INDEX_QUERY, answers={200: answers.MIGRATIONS}),
    Route(
        'POST', '/migrations/action', migrations.act_on_all,
        query=NO_QUERY, bodies=(migrations.PURGE_BODY,), answers={200: answers.PURGED_MIGRATIONS},
    ),
    Route('GET', _M, migrations.show, query=NO_QUERY, answers={200: answers.MIGRATION}),
    Route('GET', f'{_M}/timeline', migrations.show_timeline, query=NO_QUERY, answers={200: answers.TIMELINE}),
    Route(
        'POST',
        f'{_M}/action',
        migrations.act,
        query=NO_QUERY,
        bodies=(migrations.ACTION_BODY,),
        answers={200: answers.PLAN, 202: answers.MIGRATION},
    ),
    Route('GET', '/services', services.index, query=services.INDEX_QUERY, answers={200: answers.SERVICES}),
)  # fmt: skip

RULES = [
    *attention.RULES,
    *audits.RULES,
    *cleanups.RULES,
    *drains.RULES,
    *events.RULES,
    *hosts.RULES,
    *maintenances.RULES,
    *migrations.RULES,
    *services.RULES,
]
