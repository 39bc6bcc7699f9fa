# SPDX-License-Identifier: Apache-2.0

"""Options of the REST API."""

from __future__ import annotations

import ipaddress

from oslo_config import cfg

from migrator import exception

API_OPTS = [
    cfg.StrOpt(
        'auth_strategy',
        default='keystone',
        choices=[
            ('keystone', 'Every request carries a token that Keystone validates; see [keystone_authtoken]'),
            ('noauth2', 'The token is USER:PROJECT and nobody validates it; user admin is an administrator'),
        ],
        help="""
How the API learns who asks.

One word; default keystone. With noauth2 anybody who reaches the API is whoever they say they are, so it is for
development, tests and embedding, and the API then binds to a loopback address only (noauth2_beyond_loopback).
""",
    ),
    cfg.BoolOpt(
        'noauth2_beyond_loopback',
        default=False,
        help="""
Whether the API may bind to another address than a loopback one although auth_strategy is noauth2.

True or false; default false: it refuses to start. True hands every guest to whoever reaches that address; it is for
networks that something else guards.
""",
    ),
    cfg.IntOpt(
        'max_limit',
        default=1000,
        min=1,
        help="""
How many items one page of a list holds at most.

A whole number of items, 1 or more; default 1000. A client that asks for more, or does not say, gets this many and a
link to the next page. More makes longer answers and more memory for each; less makes more requests.
""",
    ),
    cfg.IntOpt(
        'max_queued_live_migrations',
        default=1000,
        min=1,
        help="""
How many live migrations may wait to leave one host.

A whole number of migrations, 1 or more, for each source host; default 1000. One more is refused with 403 and nothing
is changed. Those that are waiting when it is lowered go on waiting.
""",
    ),
    cfg.IntOpt(
        'sync_timeout',
        default=20,
        min=0,
        help="""
How long the answer to os-migrateLive waits for the pre-checks, in seconds, below microversion 2.34.

A whole number of seconds, 0 or more; default 20. When it runs out, or no conductor can be told, the answer is 202: the
migration is accepted and goes on, and its own record tells what comes of it. It should be shorter than the time-out of
the clients and of the proxies before the API.
""",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the section ``[api]``.

    :param conf: the configuration that :func:`migrator.api.app.make_app` will be given.
    """
    conf.register_opts(API_OPTS, group='api')


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by section, for the generator of the sample file."""
    return [('api', API_OPTS)]


def check_bind(conf: cfg.ConfigOpts, address: str) -> None:
    """Raise unless the API may listen there.

    :param address: a host name or an address, as it will be bound to; '' is every address.
    :raises migrator.exception.ConfigurationError: auth_strategy is noauth2, and the address is no loopback one.
    """
    if conf.api.auth_strategy != 'noauth2' or conf.api.noauth2_beyond_loopback or is_loopback(address):
        return
    raise exception.ConfigurationError(
        option='[api] auth_strategy',
        value='noauth2',
        detail=f'with it, the API does not bind to {address or "every address"}: bind to 127.0.0.1, or set '
        'auth_strategy to keystone, or, where something else guards that network, set noauth2_beyond_loopback.',
    )


def is_loopback(address: str) -> bool:
    """Whether an address reaches this machine only. A name other than localhost is taken for one that does not."""
    if address == 'localhost':
        return True
    try:
        return ipaddress.ip_address(address.strip('[]')).is_loopback
    except ValueError:
        return False
