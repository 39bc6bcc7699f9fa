# SPDX-License-Identifier: Apache-2.0

"""Options of the REST API."""

from __future__ import annotations

import ipaddress

from oslo_config import cfg

from migrator import exception
from migrator.conf import sections

API_OPTS = [
    cfg.StrOpt(
        'auth_strategy',
        default='keystone',
        choices=[
            ('keystone', 'Every request carries a token that Keystone validates; see [keystone_authtoken]'),
            ('noauth2', 'The token is USER:PROJECT and is not validated; user admin is an administrator'),
        ],
        help="""
How the API authenticates callers.

One word; default keystone. With noauth2 a caller can take any identity. It is for development, tests and embedding, and
the API then binds only to a loopback address (noauth2_beyond_loopback).
""",
    ),
    cfg.BoolOpt(
        'noauth2_beyond_loopback',
        default=False,
        help="""
Whether the API may bind to an address other than loopback although auth_strategy is noauth2.

True or false; default false: it refuses to start. With true, every caller that reaches the address controls every
guest. It is for networks with a protection of their own.
""",
    ),
    cfg.ListOpt(
        'host_names',
        default=[],
        help="""
The names and addresses under which clients reach the API, besides those of loopback, if auth_strategy is noauth2.

A list of names and addresses, each without a port; default empty. With noauth2, a request whose Host header has another
name is answered 403: a page of another site could otherwise have its own name point at this API, and use it from an
operator's browser. With keystone the option has no effect, since such a page has no token.
""",
    ),
    cfg.BoolOpt(
        'page_acts',
        default=True,
        help="""
Whether the page in a browser has buttons that act.

True or false; default true. It can start, pause, resume, cancel, restore and retry drains, retry and abort migrations,
and evacuate a host that is forced down. With false the page has no such buttons. That forbids nothing: who may act is a
policy, for the page as for every other client.
""",
    ),
    cfg.IntOpt(
        'max_limit',
        default=1000,
        min=1,
        help="""
The greatest number of items in one page of a list.

A whole number of items, 1 or more; default 1000. A client that requests more, or gives no limit, receives this number
and a link to the next page. A larger value makes longer answers that need more memory; a smaller one makes more
requests.
""",
    ),
    cfg.IntOpt(
        'max_event_streams',
        default=8,
        min=0,
        help="""
How many clients may follow /migrator/v1/events at a time, in each process of the API.

A whole number of streams, 0 or more; default 8. A further one gets 503 with Retry-After. Each stream holds one thread
of the server, so the value should be well below the number of threads. migrator-api refuses to start if it is not below
[api] threads.
""",
    ),
    cfg.IntOpt(
        'max_queued_live_migrations',
        default=1000,
        min=1,
        help="""
How many live migrations may wait in the queue of one host.

A whole number of migrations, 1 or more, for each source host; default 1000. The API refuses a further one with 403, and
changes nothing. When the value is lowered, migrations that wait already stay in the queue.
""",
    ),
    cfg.IntOpt(
        'sync_timeout',
        default=20,
        min=0,
        help="""
How long the answer to os-migrateLive waits for the pre-checks, in seconds, below microversion 2.34.

A whole number of seconds, 0 or more; default 20. After that time, or if no conductor can be reached, the answer is 202:
the migration is accepted and goes on, and its own record shows its result. The value should be smaller than the
time-outs of the clients and of the proxies in front of the API.
""",
    ),
]

register_opts, list_opts = sections.of(api=API_OPTS)


def check_bind(conf: cfg.ConfigOpts, address: str) -> None:
    """Raise unless the API may listen on an address.

    :param address: the host name or address to bind to; '' is every address.
    :raises migrator.exception.ConfigurationError: auth_strategy is noauth2, and the address is not a loopback address.
    """
    if conf.api.auth_strategy != 'noauth2' or conf.api.noauth2_beyond_loopback or is_loopback(address):
        return
    raise exception.ConfigurationError(
        option='[api] auth_strategy',
        value='noauth2',
        detail=f'with it, the API does not bind to {address or "every address"}: bind to 127.0.0.1, or set '
        'auth_strategy to keystone, or, in a network with a protection of its own, set noauth2_beyond_loopback.',
    )


def check_streams(conf: cfg.ConfigOpts) -> None:
    """Raise unless event streams leave a thread for all other requests of migrator-api.

    :raises migrator.exception.ConfigurationError: as many event streams may be open as there are threads.
    """
    if conf.api.max_event_streams >= conf.api.threads:
        raise exception.ConfigurationError(
            option='[api] max_event_streams',
            value=conf.api.max_event_streams,
            detail=f'each stream holds a thread, and there are {conf.api.threads} ([api] threads): set it well below.',
        )


def is_loopback(address: str) -> bool:
    """Return whether an address can be reached only from this machine. The only such name is localhost."""
    if address == 'localhost':
        return True
    try:
        return ipaddress.ip_address(address.strip('[]')).is_loopback
    except ValueError:
        return False
