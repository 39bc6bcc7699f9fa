# SPDX-License-Identifier: Apache-2.0

"""What an operator can do: for each kind a text, the command in it, and the readings that forbid it.

This is the only place of the product with commands for an operator, apart from help texts. A remedy is printed only if
each reading that forbids it was looked for, in the same look, and was not found. What nothing has looked for is not
known to be absent.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
from collections.abc import Mapping
from types import MappingProxyType


class Reading(enum.StrEnum):
    """What a look may find that forbids a remedy."""

    #: The compute service of the host reports, forced down or not.
    HOST_REPORTS = 'host-reports'
    #: It does not report.
    HOST_DOWN = 'host-down'
    #: A host that may run guests has not listed them.
    NOT_ALL_LISTED = 'not-all-listed'
    #: A host has the guest, or had it when it was last seen, that is not its host in the database.
    ELSEWHERE = 'elsewhere'
    #: A host has a guest with this uuid.
    ON_A_HOST = 'on-a-host'
    #: The guest runs.
    RUNS = 'runs'
    #: No copy of it runs.
    NONE_RUNS = 'none-runs'
    #: A migration of it is in progress.
    MOVING = 'moving'
    #: The machine of its host was replaced since the guest was there.
    REPLACED = 'replaced'
    #: The database has no definition of the guest.
    NOT_DEFINED = 'not-defined'
    #: What a control plane has recorded does not show where the guest is.
    DOUBT = 'doubt'


class Kind(enum.StrEnum):
    """The kind of a remedy."""

    # A host.
    DECLARE_DOWN = 'declare-down'
    DECLARE_UP = 'declare-up'
    DECLARE_UP_WHEN_BACK = 'declare-up-when-back'
    RETURN_HOST = 'return-host'
    ENABLE = 'enable'
    DELETE_SERVICE = 'delete-service'
    HAVE_LISTED = 'have-listed'
    SEE_REFUSED = 'see-refused'
    REPLACE_MACHINE = 'replace-machine'
    LIST_SERVICES = 'list-services'
    SEE_SERVICES = 'see-services'
    LIST_GUESTS = 'list-guests'
    LIST_CLEANUPS = 'list-cleanups'
    SEE_CLEANUPS = 'see-cleanups'
    RETRY_CLEANUP = 'retry-cleanup'
    WAIT_FOR_CLEANUP = 'wait-for-cleanup'
    # A guest.
    UNLOCK = 'unlock'
    EVACUATE = 'evacuate'
    EVACUATE_BY_NOVA = 'evacuate-by-nova'
    EVACUATE_ONCE_LOOKED = 'evacuate-once-looked'
    EVACUATE_IF_LOST = 'evacuate-if-lost'
    SAY_WHERE_DISKS_ARE = 'say-where-disks-are'
    EVACUATE_EACH = 'evacuate-each'
    EVACUATE_HOST = 'evacuate-host'
    FENCE_AND_EVACUATE = 'fence-and-evacuate'
    SET_ERROR = 'set-error'
    SET_ACTIVE = 'set-active'
    SET_ACTIVE_IF_THERE = 'set-active-if-there'
    CONFIRM_OR_REVERT = 'confirm-or-revert'
    CONFIRM = 'confirm'
    REVERT = 'revert'
    MOVE_LIVE = 'move-live'
    MOVE_AGAIN = 'move-again'
    MOVE_COLD = 'move-cold'
    MOVE_STOPPED = 'move-stopped'
    SHELVE = 'shelve'
    RESUME = 'resume'
    UNRESCUE = 'unrescue'
    OFFLOAD = 'offload'
    RESTORE_OR_DELETE = 'restore-or-delete'
    DELETE_GROUP = 'delete-group'
    DEFINE = 'define'
    DISCARD_SAVED_STATE = 'discard-saved-state'
    DELETE_SNAPSHOTS = 'delete-snapshots'
    DELETE_CHECKPOINTS = 'delete-checkpoints'
    DELETE_FROM_IMAGE = 'delete-from-image'
    # A guest that is not where the database has it.
    SEE_WHERE = 'see-where'
    SEE_OTHERS = 'see-others'
    STOP_COPIES = 'stop-copies'
    RECONCILE = 'reconcile'
    RECONCILE_IF_RIGHT = 'reconcile-if-right'
    RECONCILE_POWER = 'reconcile-power'
    FINISH_RECONCILE = 'finish-reconcile'
    KEEP_ONE = 'keep-one'
    UNDEFINE_COPIES = 'undefine-copies'
    START_AGAIN = 'start-again'
    DELETE_INSTANCE = 'delete-instance'
    RESTORE_REPLACED = 'restore-replaced'
    REGISTER = 'register'
    REMOVE_STRANGER = 'remove-stranger'
    # A migration or a drain.
    SHOW_MIGRATION = 'show-migration'
    RETRY = 'retry'
    ABANDON = 'abandon'
    ABANDON_YES = 'abandon-yes'
    ABANDON_ONCE_SEEN = 'abandon-once-seen'
    ABORT = 'abort'
    CANCEL_DRAIN = 'cancel-drain'
    SHOW_DRAIN = 'show-drain'
    SEE_DRAIN = 'see-drain'
    RETRY_DRAIN = 'retry-drain'
    RESUME_DRAIN = 'resume-drain'
    RESTORE_DRAIN = 'restore-drain'
    # An allocation.
    AUDIT = 'audit'
    HEAL = 'heal'
    SET_ALLOCATION = 'set-allocation'
    DELETE_ALLOCATION = 'delete-allocation'
    HEAL_UNKNOWN = 'heal-unknown'
    AUDIT_NOVA = 'audit-nova'
    HEAL_NOVA = 'heal-nova'
    HEAL_ONE_OF_NOVA = 'heal-one-of-nova'
    HEAL_BY_NOVA = 'heal-by-nova'
    # The installation.
    CHECK_UPGRADE = 'check-upgrade'
    CREATE_SCHEMA = 'create-schema'
    MIGRATE_DATA = 'migrate-data'
    CREATE_FLAVOR = 'create-flavor'


@dataclasses.dataclass(frozen=True)
class Remedy:
    """What an operator can do.

    :ivar text: a sentence, or a part of one, with ``{command}`` and further names in braces.
    :ivar command: what is typed, with names in braces; empty: no command does it.
    :ivar forbidden_by: the readings that forbid it.
    """

    text: str
    command: str = ''
    forbidden_by: frozenset[Reading] = frozenset()


def _row(text: str, command: str = '', *forbidden_by: Reading) -> Remedy:
    return Remedy(text, command, frozenset(forbidden_by))


_K, _R = Kind, Reading
_SERVICE_SET, _SERVER_SET = 'openstack compute service set', 'openstack server set --state'
#: The beginning of the services' commands about drains.
DRAINS = 'migrator-manage drain'
_RECONCILE = 'migrator-manage instance reconcile'
_ALLOCATION = 'openstack --os-placement-api-version {placement} resource provider allocation'

#: Kind -> the remedy. What starts, resets or deletes something is forbidden by each reading that calls it alive.
TABLE: Mapping[Kind, Remedy] = MappingProxyType(
    {
        _K.DECLARE_DOWN: _row(
            'if the host is fenced and nothing can run there, declare that: {command}',
            f'{_SERVICE_SET} --down {{host}} nova-compute', _R.HOST_REPORTS,
        ),
        _K.DECLARE_UP: _row('{command}', f'{_SERVICE_SET} --up {{host}} nova-compute', _R.HOST_DOWN),
        _K.DECLARE_UP_WHEN_BACK: _row(
            'If it is back, start its compute service, then: {command}.',
            f'{_SERVICE_SET} --up {{host}} nova-compute', _R.HOST_REPORTS,
        ),
        _K.ENABLE: _row('Enable it: {command}.', f'{_SERVICE_SET} --enable {{host}} nova-compute'),
        _K.DELETE_SERVICE: _row(
            'If {host} never comes back, delete its service, which completes the evacuations from it: {command}',
            '{manage} service delete {host}', _R.HOST_REPORTS,
        ),
        _K.HAVE_LISTED: _row(
            '{hosts} did not list guests: start the compute service of each or, once a host is fenced, declare it '
            'forced down. Then look again',
        ),
        _K.SEE_REFUSED: _row('{command}', '{manage} service list --host {host}'),
        _K.REPLACE_MACHINE: _row(
            'Only if the old machine of {host} is off for good, and the refused one takes its place: evacuate its '
            'guests first, if other hosts see their disks. Then: {command}.',
            '{manage} service replace {host} --old-machine-is-off', _R.HOST_REPORTS,
        ),
        _K.LIST_SERVICES: _row('{command}', 'openstack compute service list'),
        _K.SEE_SERVICES: _row('{command}', '{manage} service list'),
        _K.LIST_GUESTS: _row('{command}', 'openstack server list --all-projects --host {host}'),
        _K.LIST_CLEANUPS: _row('{command}', 'migrator-manage cleanup list --host {host}'),
        _K.SEE_CLEANUPS: _row('see "{command}"', 'migrator-manage cleanup list'),
        _K.RETRY_CLEANUP: _row('{command}', '{manage} cleanup retry {cleanup}'),
        _K.WAIT_FOR_CLEANUP: _row('when "{command}" no longer shows the cleanup', 'migrator-manage cleanup list'),
        _K.UNLOCK: _row(
            'Drain the host with --locked move, or unlock the guest: {command}.', 'openstack server unlock {guest}'
        ),
        _K.EVACUATE: _row(
            'If the host is dead and fenced, evacuate the guest: {command}.', 'openstack server evacuate {guest}',
            _R.HOST_REPORTS, _R.ELSEWHERE,
        ),
        _K.EVACUATE_BY_NOVA: _row(
            'If the host is dead: {command} changes nothing, and shows what each guest would lose, and how to fence '
            'and evacuate the host.',
            'migrator-drain evacuate {host}', _R.HOST_REPORTS, _R.ELSEWHERE,
        ),
        _K.EVACUATE_ONCE_LOOKED: _row(
            'If the source is dead: cut its power. Then look whether {host} runs the guest. Only if it does not: '
            '{command}. From microversion 2.95 on the guest is shut off at its new host.',
            'openstack server evacuate {guest}', _R.HOST_REPORTS,
        ),
        _K.SET_ERROR: _row(
            'To let Nova evacuate it, set its state to ERROR, which also ends its task. Nova '
            'starts it then: {command}.',
            f'{_SERVER_SET} error {{guest}}', _R.HOST_REPORTS,
        ),
        _K.SAY_WHERE_DISKS_ARE: _row(
            'If all hosts share the storage of the disks, add --disks-are-shared. If the guest may begin again from '
            'its image, add --rebuild-from-image.'
        ),
        _K.EVACUATE_EACH: _row(
            'Only if it is fenced, evacuate each guest: {command}. From microversion 2.95 on a guest is shut off at '
            'its new host.',
            'openstack --os-compute-api-version 2.90 server evacuate GUEST', _R.HOST_REPORTS, _R.ELSEWHERE,
        ),
        _K.EVACUATE_HOST: _row(
            'Once {host} has no power, or no network to storage and guests: {command}',
            '{drain} evacuate {host} --fenced{options}', _R.HOST_REPORTS,
        ),
        _K.FENCE_AND_EVACUATE: _row(
            'Or let a command fence it: {command}',
            '{drain} evacuate {host} --fence-command "PROGRAM {host}"{options}', _R.HOST_REPORTS,
        ),
        _K.RETURN_HOST: _row(
            'Leave {host} declared forced down until it is repaired. Then start nova-compute there. It removes its '
            'copies, and their migrations become "completed". Once none from it is shown as "done": {command}.',
            'openstack compute service set --up {host} nova-compute, and openstack compute service set --enable '
            '{host} nova-compute',
        ),
        _K.EVACUATE_IF_LOST: _row(
            'evacuate it if {host} is dead and fenced ({command})', 'openstack server evacuate {guest}',
            _R.HOST_REPORTS, _R.NOT_DEFINED, _R.ELSEWHERE,
        ),
        _K.SET_ACTIVE: _row('{command}', f'{_SERVER_SET} active {{guest}}', _R.HOST_DOWN),
        _K.SET_ACTIVE_IF_THERE: _row(
            'Look which host runs the guest. Only if {host} does: {command}.', f'{_SERVER_SET} active {{guest}}',
            _R.HOST_DOWN,
        ),
        _K.CONFIRM_OR_REVERT: _row(
            'Its user has to confirm or to revert its cold migration or resize: {command}.',
            'openstack server migration confirm {guest}, or openstack server migration revert {guest}', _R.HOST_DOWN,
        ),
        _K.CONFIRM: _row('{command}', 'openstack server migration confirm {guest}', _R.HOST_DOWN),
        _K.REVERT: _row('{command}', 'openstack server migration revert {guest}', _R.HOST_DOWN),
        _K.MOVE_LIVE: _row('Move each: {command}.', 'openstack server migrate --live-migration --host {host} GUEST'),
        _K.MOVE_AGAIN: _row(
            'Try it again: {command}.', 'openstack server migrate --live-migration {guest}', _R.HOST_DOWN, _R.ELSEWHERE
        ),
        _K.MOVE_COLD: _row('Move it cold: {command}.', 'openstack server migrate {guest}', _R.HOST_DOWN),
        _K.MOVE_STOPPED: _row(
            'Start it, or move it as it is: {command}.',
            'openstack server migrate --wait {guest}, then openstack server migration confirm {guest}', _R.HOST_DOWN,
        ),
        _K.SHELVE: _row('Shelve it: {command}.', 'openstack server shelve {guest}', _R.HOST_DOWN),
        _K.RESUME: _row('Resume it: {command}.', 'openstack server resume {guest}', _R.HOST_DOWN),
        _K.UNRESCUE: _row(
            'Its user has to end the rescue: {command}.', 'openstack server unrescue {guest}', _R.HOST_DOWN
        ),
        _K.OFFLOAD: _row(
            'It is shelved, so take it off its host: {command}.', 'openstack server shelve --offload {guest}',
            _R.HOST_DOWN,
        ),
        _K.RESTORE_OR_DELETE: _row(
            'Its user decides: {command}.',
            'openstack server restore {guest}; or, to delete it for good, openstack server delete --force {guest}',
        ),
        _K.DELETE_GROUP: _row(
            'Delete the group, its guests stay: {command}.', 'openstack server group delete {group}'
        ),
        _K.DEFINE: _row('define it first ({command})', 'virsh define'),
        _K.DISCARD_SAVED_STATE: _row('start the guest, or discard it ({command})', 'virsh managedsave-remove'),
        _K.DELETE_SNAPSHOTS: _row('delete them first ({command})', 'virsh snapshot-delete'),
        _K.DELETE_FROM_IMAGE: _row(
            'delete what is not needed while the guest is off ({command})',
            'qemu-img snapshot -d, qemu-img bitmap --remove',
        ),
        _K.DELETE_CHECKPOINTS: _row('delete them first ({command})', 'virsh checkpoint-delete'),
        _K.SEE_WHERE: _row('See "{command}" for where it is.', f'{_RECONCILE} --dry-run'),
        _K.SEE_OTHERS: _row('see {command}', f'{_RECONCILE} --dry-run'),
        _K.STOP_COPIES: _row(
            'find out which copy is right, and stop each other one at once (with libvirt: {command}): two that run '
            'write to the same disks',
            'virsh destroy {guest}', _R.NONE_RUNS,
        ),
        _K.RECONCILE: _row('{command} lets the database and Placement follow', _RECONCILE, _R.NOT_ALL_LISTED),
        _K.RECONCILE_IF_RIGHT: _row('type "{command}"', _RECONCILE),
        _K.RECONCILE_POWER: _row('{command} lets the database follow', _RECONCILE, _R.NOT_ALL_LISTED),
        _K.FINISH_RECONCILE: _row('{command} finishes it', _RECONCILE, _R.NOT_ALL_LISTED),
        _K.KEEP_ONE: _row(
            'start it on one host; on the others take its definition away, and keep its disks; then {command}',
            _RECONCILE, _R.NOT_ALL_LISTED, _R.RUNS,
        ),
        _K.UNDEFINE_COPIES: _row(
            'look which copy is right. If it is the one that runs, take the definition of the others away ({hosts}; '
            'with libvirt: {command}), and delete no disks: they may be the same',
            'virsh undefine --keep-nvram --keep-tpm {guest}', _R.NONE_RUNS,
        ),
        _K.START_AGAIN: _row('start it on {host} again', '', _R.NOT_ALL_LISTED, _R.ON_A_HOST, _R.REPLACED),
        _K.DELETE_INSTANCE: _row(
            'only if the guest itself is lost for good: {command}', 'migrator-manage instance delete {guest}',
            _R.NOT_ALL_LISTED, _R.ON_A_HOST, _R.REPLACED,
        ),
        _K.RESTORE_REPLACED: _row('restore it on {host}, or see "The machine was replaced" in the documentation'),
        _K.REGISTER: _row('register it with {command}', 'migrator-manage instance create'),
        _K.REMOVE_STRANGER: _row('take its definition from the host, and keep its disks', '', _R.RUNS),
        _K.SHOW_MIGRATION: _row(
            'ask an operator to look at it ({command})', 'migrator-manage migration show {migration}'
        ),
        _K.RETRY: _row('{command}', '{manage} migration retry {migration}'),
        _K.ABANDON: _row('{command}', '{manage} migration abandon {migration} --guest-on {host}'),
        _K.ABANDON_YES: _row('{command}', '{manage} migration abandon {migration} --guest-on {host} --yes'),
        _K.ABANDON_ONCE_SEEN: _row('type "{command}"', 'migrator-manage migration abandon {migration} --guest-on HOST'),
        _K.ABORT: _row(
            'If the host is dead: {command}.', 'openstack server migration abort {guest} {migration}', _R.HOST_REPORTS
        ),
        _K.CANCEL_DRAIN: _row('To cancel it: {command}', 'openstack host drain cancel {drain}'),
        _K.SHOW_DRAIN: _row('{command}', 'openstack host drain show {drain}'),
        _K.SEE_DRAIN: _row('{command}', '{manage} drain show {drain}'),
        _K.RESUME_DRAIN: _row('Resume it: {command}.', '{manage} drain resume {drain}'),
        _K.RETRY_DRAIN: _row(
            'Once what was in the way is corrected, move the others: {command}.', '{manage} drain retry {drain}',
        ),
        _K.RESTORE_DRAIN: _row(
            'To bring its guests back, and enable it: {command}.', '{manage} drain restore {drain}'
        ),
        _K.AUDIT: _row('look at {command}', 'migrator-manage placement audit'),
        _K.HEAL: _row('{command}', 'migrator-manage placement heal'),
        _K.SET_ALLOCATION: _row(
            '{command}', f'{_ALLOCATION} set {{amounts}} {{consumer}}', _R.ELSEWHERE, _R.MOVING
        ),
        _K.DELETE_ALLOCATION: _row(
            '{command}', f'{_ALLOCATION} delete {{consumer}}', _R.ON_A_HOST
        ),
        _K.HEAL_UNKNOWN: _row(
            'find out which service uses it; if none does: {command}',
            'migrator-manage placement heal --yes --consumer {consumer}', _R.ON_A_HOST,
        ),
        _K.AUDIT_NOVA: _row('Check the allocations: {command}', 'migrator-drain audit'),
        _K.HEAL_NOVA: _row('{command}', 'migrator-drain heal --yes', _R.DOUBT),
        _K.HEAL_ONE_OF_NOVA: _row(
            '{doubt}. Only if what it must hold, as shown here, is right then: {command}',
            'migrator-drain heal --yes --consumer {consumer}',
        ),
        _K.HEAL_BY_NOVA: _row(
            '{command}', 'nova-manage placement heal_allocations --instance {guest} --force', _R.DOUBT
        ),
        _K.CHECK_UPGRADE: _row('Check it with "{command}".', 'migrator-status upgrade check'),
        _K.CREATE_SCHEMA: _row("run '{command}'", 'migrator-manage db sync'),
        _K.MIGRATE_DATA: _row('run {command}, at any time', 'migrator-manage db online_data_migrations'),
        _K.CREATE_FLAVOR: _row('An operator adds one with "{command}".', 'migrator-manage flavor create'),
    }
)  # fmt: skip

#: What a look has found out: reading -> whether it holds.
Look = Mapping[Reading, bool]


def offer(kind: Kind, look: Look | None = None, **names: object) -> str:
    """Return the text of a remedy; empty if a reading forbids it, or was not looked for.

    :param look: what was found out. None: nothing was looked at.
    :param names: the names in the text and in the command.
    """
    row = TABLE[kind]
    if any((look or {}).get(reading, True) for reading in row.forbidden_by):
        return ''
    return row.text.format(command=row.command.format(**{'manage': 'migrator-manage', **names}), **names)


def command(kind: Kind, look: Look | None = None, **names: object) -> str:
    """Return the command of a remedy alone; see :func:`offer`."""
    row = TABLE[kind]
    forbidden = any((look or {}).get(reading, True) for reading in row.forbidden_by)
    return '' if forbidden else row.command.format(**{'manage': 'migrator-manage', **names})


def commands_in(text: str) -> list[str]:
    """Return the commands in a text that was made from the table, in their order."""
    found: dict[int, str] = {}
    for one in _forms():
        for match in one.finditer(text):
            found[match.start()] = max(found.get(match.start(), ''), match.group(), key=len)
    return [found[place] for place in sorted(found)]


@functools.cache
def _forms() -> list[re.Pattern[str]]:
    # A name may have a full stop within, as that of a host, but not at its end, where that of the sentence is.
    rows = [row.command.format_map(_AnyName()) for row in TABLE.values() if row.command]
    each = dict.fromkeys(one for row in rows for one in _BETWEEN.split(row))
    return [re.compile(r'(?<![\w-])' + re.escape(one).replace('NAME', r'[\w.:/-]*\w')) for one in each]


#: What stands between the commands of one remedy.
_BETWEEN = re.compile(r'[,;] (?:or|and|then)(?:, to [\w ]+,)? ')


class _AnyName(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return 'migrator-manage' if name == 'manage' else 'NAME'


def first(*offers: str) -> str:
    """Return the first remedy that is offered; empty if none is."""
    return next(filter(None, offers), '')


def joined(between: str, *offers: str) -> str:
    """Return those remedies that are offered, joined."""
    return between.join(filter(None, offers))


def template(kind: Kind) -> str:
    """Return the text of a remedy that nothing forbids, with its names still in braces."""
    row = TABLE[kind]
    assert not row.forbidden_by, f'{kind} needs a look'
    return row.text.replace('{command}', row.command)
