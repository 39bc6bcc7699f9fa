# SPDX-License-Identifier: Apache-2.0

"""``migrator-demo kill | revive | move | slow | fail``: what breaks a demo that is being served.

The cloud listens on a socket in its own directory, which only its user may open. No request of the REST API breaks
anything.
"""

from __future__ import annotations

import argparse
import glob
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from migrator import exception
from migrator.demo import channel, transport
from migrator.demo.cloud import DOWN_TIME, DemoCloud
from migrator.demo.options import PREFIX, PROG, USAGE, VERBS
from migrator.objects import COMPUTE_BINARY, Instance
from migrator.testing.hypervisor.hypervisor import FakeHypervisor
from migrator.views import names

RIGHT, WRONG, UNREACHABLE = 0, 1, 3
#: The only conductor of the cloud, which kill and revive take too.
CONDUCTOR = 'conductor1'
_ROLLBACK = 'rollback_live_migration_at_source'


# --- the command -----------------------------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Ask a demo to break something, and return the exit status."""
    try:
        given = _make_parser().parse_args(argv)
    except SystemExit as stop:  # argparse has printed the reason
        return int(stop.code or 0)
    words = vars(given)
    found = [words.pop('state')] if given.state else _running()
    if len(found) != 1:
        listed = f': {", ".join(found)}' if found else ''
        print(f'{PROG}: {len(found)} demos of yours are served{listed}; name one by --state DIRECTORY', file=sys.stderr)
        return USAGE if found else UNREACHABLE
    words.pop('state', None)
    try:
        answer = channel.ask(pathlib.Path(found[0]), words)
    except (OSError, ValueError) as error:
        print(f'{PROG}: the demo of {found[0]} does not answer: {error}', file=sys.stderr)
        return UNREACHABLE
    if 'refused' in answer:
        print(f'{PROG}: {answer["refused"]}', file=sys.stderr)
        return WRONG
    print(answer['text'])
    return RIGHT


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROG, allow_abbrev=False, description='Break the cloud of a demo that runs with --serve.'
    )
    verbs = parser.add_subparsers(metavar='VERB', required=True, dest='verb')
    for verb, help_ in VERBS.items():
        one = verbs.add_parser(verb, help=help_, description=help_, allow_abbrev=False)
        if verb == 'move':
            one.add_argument('guest', metavar='GUEST', help='its name or uuid')
        one.add_argument('host', metavar='HOST', help=f'such as host1; kill and revive take {CONDUCTOR} too')
        one.add_argument('--state', metavar='DIRECTORY', help='the directory of the demo, if several are served')
        if verb == 'kill':
            one.add_argument('--power', action='store_true', help='also cut the power, which ends its guests')
        if verb == 'revive':
            help_ = 'its service starts on another machine of the same name; its own one stays off'
            one.add_argument('--other-machine', action='store_true', help=help_)
        if verb == 'slow':
            one.add_argument('factor', metavar='FACTOR', type=_factor, help='a number of 1 or more')
        if verb == 'fail':
            one.add_argument('count', metavar='N', type=_count, help='how many of them; 0 for none any more')
            help_ = 'the host cannot roll them back either, until N is 0, so that they are stuck'
            one.add_argument('--no-rollback', action='store_true', help=help_)
    return parser


def _factor(text: str) -> float:
    value = float(text)
    if not 1 <= value <= 1e6:
        raise argparse.ArgumentTypeError(f'is {text!r}: give a number of 1 to 1000000')
    return value


def _count(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 1000:
        raise argparse.ArgumentTypeError(f'is {text!r}: give a whole number of 0 to 1000')
    return value


def _running() -> list[str]:
    """Return the directories of the demos that this user has started and that are served."""
    found = glob.glob(f'{glob.escape(tempfile.gettempdir())}/{PREFIX}*/{channel.SOCKET}')
    mine = [pathlib.Path(path) for path in sorted(found)]
    return [str(path.parent) for path in mine if path.lstat().st_uid == os.getuid()]


# --- the cloud -------------------------------------------------------------------------------------------------------


class Stage:
    """The cloud of a demo, and what was broken of it."""

    def __init__(self, cloud: DemoCloud) -> None:
        self._cloud = cloud
        self._links = {host: hypervisor.link for host, hypervisor in cloud.world.hypervisors.items()}

    def do(self, words: dict[str, Any]) -> str:
        """Do what a request says, and return what was done.

        :raises ValueError: it is not possible; the text says why.
        """
        verbs: dict[str, Callable[..., str]] = {
            'kill': self._kill, 'revive': self._revive, 'move': self._move, 'slow': self._slow, 'fail': self._fail,
        }  # fmt: skip
        verb, host = words.get('verb'), words.get('host')
        if verb not in verbs or not isinstance(host, str):
            raise ValueError('this demo is another version of migrator')
        if host == CONDUCTOR and verb in ('kill', 'revive'):
            return self._conductor(verb == 'revive')
        if host not in self._links:
            raise ValueError(f'there is no host {host[:80]!r}: the hosts are {", ".join(self._links)}, and {CONDUCTOR}')
        return verbs[verb](host, **{name: value for name, value in words.items() if name not in ('verb', 'host')})

    def _kill(self, host: str, power: bool = False) -> str:
        hypervisor = self._cloud.world.hypervisors[host]
        if host in self._cloud.computes:
            self._cloud.kill_service(host)
        elif not power or not hypervisor.powered:
            raise ValueError(f'{host} is dead already')
        if power:
            hypervisor.power_off()
        guests = 'Its power is cut, and its guests are gone' if power else 'Its guests go on, and their copies too'
        return f'The compute service of {host} is killed. {guests}. It counts as down in {DOWN_TIME} s.'

    def _revive(self, host: str, other_machine: bool = False) -> str:
        if host in self._cloud.computes:
            raise ValueError(f'{host} is not dead')
        world = self._cloud.world
        before = world.hypervisors[host]
        machine = world.add(host) if other_machine else self._own_machine(host)
        if machine is not before:
            before.power_off()
        world.hypervisors[host] = machine
        machine.power_on()
        self._cloud.start_compute(host)
        which = f'Another machine with the name {host}' if other_machine else host
        return f'{which} has power, and its compute service runs.'

    def _own_machine(self, host: str) -> FakeHypervisor:
        """Return the machine that is registered as a host, or the newest one if none is."""
        registered = {one.identity for one in self._cloud.database.services.list(COMPUTE_BINARY, host)}
        machines = self._cloud.world.machines[host]
        return next((one for one in machines if one.identity in registered), machines[-1])

    def _move(self, host: str, guest: str) -> str:
        instance, world = self._find(guest), self._cloud.world
        target = world.hypervisors[host]
        if not target.powered:
            raise ValueError(f'{host} has no power')
        holders = [one for one in world.hypervisors.values() if instance.uuid in one.guests]
        rates = [one.guests[instance.uuid].dirty_rate for one in holders]
        for holder in holders:
            holder.delete(instance.uuid)
        target.spawn(instance, dirty_rate=max(rates, default=0.0))
        return f'{instance.name} runs on {host} now. The database has it on {instance.host}.'

    def _find(self, guest: str) -> Instance:
        try:
            return names.guest(self._cloud.database, guest)
        except (exception.InstanceNotFound, names.AmbiguousError) as error:
            raise ValueError(str(error)) from None

    def _conductor(self, revive: bool) -> str:
        conductors = self._cloud.conductors
        if revive:
            if CONDUCTOR in conductors:
                raise ValueError(f'{CONDUCTOR} is not dead')
            self._cloud.start_conductor(CONDUCTOR)
            return f'{CONDUCTOR} runs.'
        if CONDUCTOR not in conductors:
            raise ValueError(f'{CONDUCTOR} is dead already')
        conductors.pop(CONDUCTOR).stop()
        return f'{CONDUCTOR} has ended. Copies go on, and nothing else does.'

    def _slow(self, host: str, factor: float) -> str:
        link = self._links[host] / factor
        self._cloud.world.hypervisors[host].set_link(link)
        return f'Copies from and to {host} share {link:g} MiB/s now.'

    def _fail(self, host: str, count: int, no_rollback: bool = False) -> str:
        faults = self._cloud.world.hypervisors[host].faults
        for phase in ('cutover', _ROLLBACK):
            faults.clear(phase)
        for _ in range(count):
            faults.fail('cutover')
        if count and no_rollback:
            faults.fail(_ROLLBACK, sticky=True)
        also = ', and it cannot roll them back' if no_rollback else ''
        return (
            f'The next {count} live migrations from {host} fail{also}.'
            if count
            else f'Migrations from {host} no longer fail.'
        )


def serve(cloud: DemoCloud, directory: str) -> Callable[[], None]:
    """Answer the commands, and deliver the messages of ``migrator-manage``; return what ends that."""
    stage, lock = Stage(cloud), cloud.world.threads.lock()
    rpc = cloud.rpc_for('manage', 'manage')

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if 'rpc' in request:
            return transport.deliver(rpc, request['rpc'])
        with lock:
            return {'text': stage.do(request)}

    return channel.serve(pathlib.Path(directory), answer, cloud.world.threads)
