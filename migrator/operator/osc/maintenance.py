# SPDX-License-Identifier: Apache-2.0

"""``openstack host maintenance``: maintenances, and the work at their hosts."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

from osc_lib.command import command

from migrator import executors
from migrator.drain.maintenance.turns import MaintenanceStatus
from migrator.operator.maintenance import arguments, text, verbs, work
from migrator.operator.osc.shown import Usage, Value, client_of, listed, plain, words
from migrator.operator.watch import commands

_LIST = ('UUID', 'Status', 'Hosts', 'Created At')
_PLAN = ('Host', 'Beside', 'Moves', 'Move Again', 'In The Way')
#: The beginning of each command about maintenances.
_COMMAND = 'openstack host maintenance'


def _shown(given: argparse.Namespace, document: dict[str, Any]) -> tuple[Any, Any]:
    """Return the columns and the values of a maintenance, or of a host: its document."""
    texts = {name: words(value) for name, value in document.items()}
    if 'turns' in document:
        rows = [f'{one["host"]}: {text.status(one)}. {one["reason"] or ""}'.strip() for one in document['hosts']]
        texts |= {'hosts': '\n'.join(rows), 'turns': text.tally(document)}
        texts['message'] = '\n'.join([*filter(None, [document['message']]), *text.advice(document, _COMMAND)])
    as_read = given.formatter in ('json', 'yaml')
    return tuple(document), tuple(
        Value(value if as_read else plain(value), texts[name]) for name, value in document.items()
    )


class _Verb(Usage):
    """A command with the arguments of the verb of its name."""

    add_arguments: Callable[..., None]

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser with the arguments of the command."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        self.add_arguments(parser)
        return parser


def _add_request(parser: argparse.ArgumentParser) -> None:
    arguments.add(parser, 'server')


class PlanMaintenance(_Verb, command.Lister):
    """Show in which order hosts would leave service, and what is in the way. Nothing is changed."""

    add_arguments = staticmethod(_add_request)

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Request the plan, and return the columns and the rows."""
        client = client_of(self.app)
        found = verbs.request_plan(client, verbs.body(parsed_args, client, executors.SystemClock().now))
        rows = [tuple(map(words, row)) for row in text.plan_rows(found)]
        print('\n'.join(text.plan_in_all(found)), file=sys.stderr)
        return listed(parsed_args, found['hosts'], _PLAN, rows)


class StartMaintenance(_Verb, command.ShowOne):
    """Take hosts out of service for work, some at a time."""

    add_arguments = staticmethod(_add_request)

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Request the maintenance, and return its columns and values."""
        client = client_of(self.app)
        wanted = verbs.body(parsed_args, client, executors.SystemClock().now)
        return _shown(parsed_args, verbs.request_start(client, wanted))


class ListMaintenance(_Verb, command.Lister):
    """List maintenances, the newest first."""

    add_arguments = staticmethod(verbs.list_arguments)

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Request the list, and return the columns and the rows."""
        found = [*commands.pages(client_of(self.app), '/maintenances', **verbs.query(parsed_args))]
        return listed(parsed_args, found, _LIST, text.listed(found))


class ShowMaintenance(_Verb, command.ShowOne):
    """Show a maintenance with its hosts."""

    add_arguments = staticmethod(verbs.which)

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Request the maintenance, and return its columns and values."""
        return _shown(parsed_args, verbs.find(client_of(self.app), parsed_args.maintenance))


class _Action(_Verb, command.ShowOne):
    """A command that sends the action of its name."""

    action: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of the action."""
        (verbs.ACTIONS[self.action][1] if self.action in verbs.ACTIONS else verbs.which)(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Send the action, and return the columns and values of the maintenance, or of the host."""
        client = client_of(self.app)
        uuid = verbs.named(client, parsed_args)
        if self.action == 'retry':
            directory = parsed_args.directory or work.default_directory(os.environ)
            verbs.check_living(directory, uuid, parsed_args.host)
        given = verbs.of_host(parsed_args) if self.action in verbs.ACTIONS else None
        return _shown(parsed_args, verbs.request_action(client, uuid, self.action, given))


class PauseMaintenance(_Action):
    """Begin no further host; work in progress goes on."""

    action = 'pause'


class ResumeMaintenance(_Action):
    """Go on after a pause, and accept the failures so far."""

    action = 'resume'


class CancelMaintenance(_Action):
    """Begin no further host, and end once those in work are back."""

    action = 'cancel'


class BeginMaintenance(_Action):
    """Claim a host that is ready, before the work at it."""

    action = 'begin'


class DoneMaintenance(_Action):
    """Report that the work at a host has ended."""

    action = 'done'


class FailMaintenance(_Action):
    """Report that the work at a host has failed."""

    action = 'fail'


class RetryMaintenance(_Action):
    """Put a host that has failed back among those that wait."""

    action = 'retry'


class SkipMaintenance(_Action):
    """Leave out a host that waits, is ready, is worked on or has failed."""

    action = 'skip'


class WorkMaintenance(_Verb, command.Command):
    """Work at each host that is ready by commands, until the maintenance has ended."""

    add_arguments = staticmethod(verbs.add_work)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Work until it has ended, and return the exit status."""
        found = verbs.work_at(client_of(self.app), parsed_args, executors.NativeThreads())
        return 0 if found['status'] == MaintenanceStatus.COMPLETED else 1
