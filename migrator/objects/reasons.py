# SPDX-License-Identifier: Apache-2.0

"""What a migration waits for, and why it is stuck: a kind, hosts, and the words of a sentence.

A migration keeps these in its row, and decides by kind and hosts alone. The tables have a sentence for each kind. It is
made where it is shown, and compared nowhere.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from migrator.objects import base, protocol, remedies


class WaitKind(enum.StrEnum):
    """What a migration waits for. The kinds are public: the API, ``--json`` and metrics show them."""

    #: A bound on migrations leaves no slot. Nothing is prepared yet.
    SLOT = 'slot'
    CALL_SLOT = 'call-slot'
    QUEUE = 'queue'
    BEGIN = 'begin'
    #: The source is too old to abort the migration in its queue.
    BEGIN_TO_ABORT = 'begin-to-abort'
    COPY = 'copy'
    LAST_PAGES = 'last-pages'
    #: The host is down.
    LAST_PAGES_DOWN = 'last-pages-down'
    ABORT = 'abort'
    START = 'start'
    RESIZE = 'resize'
    USER = 'user'
    STEP = 'step'
    RETRY = 'retry'
    #: A step after the point of no return has failed, and is tried again.
    FAILURE = 'failure'
    CLEANUP = 'cleanup'
    REPORT = 'report'
    POLL = 'poll'
    READY = 'ready'
    PROGRESS = 'progress'
    #: A host does not answer.
    HOST = 'host'
    #: A host does not answer, and its hypervisor may go on.
    COPYING_HOST = 'copying-host'
    #: A host answers, but its hypervisor does not report the guest.
    GUEST = 'guest'
    #: Another host may have the guest, and does not answer.
    ELSEWHERE = 'elsewhere'
    #: Other writers were faster each time.
    PLACEMENT_BUSY = 'placement-busy'
    PLACEMENT_ERROR = 'placement-error'
    PLACEMENT = 'placement'
    BROKER = 'broker'


class StuckKind(enum.StrEnum):
    """Why a migration needs an operator. The kinds are public: the API and ``--json`` show them."""

    #: It has waited too long for what :attr:`Reason.waits` says.
    NO_PROGRESS = 'no-progress'
    #: The reports of both hosts fit no known case.
    UNKNOWN_GUEST = 'unknown-guest'
    UNKNOWN_ALLOCATIONS = 'unknown-allocations'
    NOT_REPORTED = 'not-reported'
    GUEST_THERE = 'guest-there'
    GUEST_NOT_THERE = 'guest-not-there'
    GUEST_GONE = 'guest-gone'
    POST_COPY_BROKE = 'post-copy-broke'
    NOT_RESTORED = 'not-restored'
    NOT_ENDED = 'not-ended'
    NOT_ABORTED = 'not-aborted'
    NOT_CONFIRMED = 'not-confirmed'
    NOT_REVERTED = 'not-reverted'
    #: A host that has no part in the migration has the guest.
    OTHER_COPY = 'other-copy'
    RESIZE_NOT_CONFIRMED = 'resize-not-confirmed'
    RESIZE_NOT_REVERTED = 'resize-not-reverted'
    DESTINATION_MAY_RUN = 'destination-may-run'
    DESTINATION_DOWN = 'destination-down'
    EVACUATION_DOWN = 'evacuation-down'
    RESIZE_DOWN = 'resize-down'
    BLOCKED_CLEANUP = 'blocked-cleanup'
    NO_ROOM = 'no-room'
    SAME_ERROR = 'same-error'
    OTHER_ERRORS = 'other-errors'


class FailureKind(enum.StrEnum):
    """Why a migration has failed, as far as its tenant may know (:mod:`migrator.api.tenants`)."""

    NO_VALID_HOST = 'no-valid-host'
    #: A host did not answer.
    HOST_AWAY = 'host-away'
    GUEST_LOST = 'guest-lost'


#: Kind of a wait -> what is waited for. ``{hosts}`` are the hosts that it concerns.
WAITS: Mapping[str, str] = MappingProxyType(
    {
        WaitKind.SLOT: '{what}',
        WaitKind.CALL_SLOT: 'a free call slot of {hosts}',
        WaitKind.QUEUE: 'a slot in the queue of {hosts}',
        WaitKind.BEGIN: '{hosts} to begin the copy',
        WaitKind.BEGIN_TO_ABORT: 'the copy to begin, since only then it can be aborted: {reason}',
        WaitKind.COPY: '{hosts} to copy the guest',
        WaitKind.LAST_PAGES: 'the last pages to leave {hosts}',
        WaitKind.LAST_PAGES_DOWN: 'the last pages to leave {hosts}, which is down',
        WaitKind.ABORT: '{hosts} to abort the job',
        WaitKind.START: '{hosts} to start the guest',
        WaitKind.RESIZE: '{hosts} to resize the guest',
        WaitKind.USER: 'a user to confirm or to revert it',
        WaitKind.STEP: '{hosts} to end {step}',
        WaitKind.RETRY: 'the next try of {step} at {hosts}, which has failed ({reason})',
        WaitKind.FAILURE: '{reason}',
        WaitKind.CLEANUP: '{hosts} to do {step}, the deferred cleanup of migration {migration}{detail}',
        WaitKind.REPORT: '{hosts} to report where the guest is',
        WaitKind.POLL: 'a poll of {hosts}',
        WaitKind.READY: '{hosts} to be ready after its start',
        WaitKind.PROGRESS: 'progress of the migration ({reason})',
        WaitKind.HOST: '{hosts} to answer',
        WaitKind.COPYING_HOST: '{hosts} to answer',
        WaitKind.GUEST: '{hosts} to report the guest',
        WaitKind.ELSEWHERE: (
            '{hosts} to report whether the guest is there ({why}); start the compute service there or, once the host '
            'is fenced, declare it forced down'
        ),
        WaitKind.PLACEMENT_BUSY: 'Placement, where other writers were faster each time',
        WaitKind.PLACEMENT_ERROR: 'Placement: {reason}',
        WaitKind.PLACEMENT: 'Placement: {reason}',
        WaitKind.BROKER: 'the message broker: {reason}',
    }
)

#: Kind of a wait -> the whole sentence, where it is not ``for`` what is waited for.
SENTENCES: Mapping[str, str] = MappingProxyType(
    {
        WaitKind.HOST: '{hosts} has not answered since {since}',
        WaitKind.COPYING_HOST: (
            '{hosts} has not answered since {since}, and its hypervisor may go on copying: start its compute '
            'service; or, once the host is fenced, declare it forced down'
        ),
        WaitKind.GUEST: '{hosts} answers, but its hypervisor has not reported the guest since {since}',
        WaitKind.PLACEMENT_ERROR: '{reason}',
        WaitKind.PLACEMENT: (
            '{reason} Conductor {conductor} waits for it since {since}. '
            f'{remedies.template(remedies.Kind.CHECK_UPGRADE)} The migration goes on by itself once it answers.'
        ),
        WaitKind.BROKER: '{reason}',
    }
)

#: Kind of being stuck -> the sentence, with what an operator can do.
STUCK: Mapping[str, str] = MappingProxyType(
    {
        StuckKind.NO_PROGRESS: (
            'No progress: the migration has waited too long for {waited}: look at {look}. The migration goes on once '
            'that has happened.'
        ),
        StuckKind.UNKNOWN_GUEST: '{reason}',
        StuckKind.UNKNOWN_ALLOCATIONS: (
            'The allocations fit no known case ({state}): instance {instance} holds {held}, migration {migration} '
            'holds {held_by_migration}. Correct them in Placement to where the guest is; then the migration goes on.'
        ),
        StuckKind.NOT_REPORTED: (
            'Host {hosts} answers, but its hypervisor has not reported the guest for a long time: look at the '
            'hypervisor, and at the log of the compute service there. The migration goes on once the host reports '
            'the guest. Otherwise stop that service, fence the host, and declare it forced down.'
        ),
        StuckKind.GUEST_THERE: (
            'Host {hosts} refused {step}: the guest is there and could run. Look which host runs it.'
        ),
        StuckKind.GUEST_NOT_THERE: 'Host {hosts} refused {step}: the guest is not there. Look which host has it.',
        StuckKind.GUEST_GONE: (
            'Source {hosts} no longer has the guest, and destination {destination} only waits for it: look which '
            'host has it.'
        ),
        StuckKind.POST_COPY_BROKE: 'Post-copy broke off: neither {source} nor {destination} has all of the memory.',
        StuckKind.NOT_RESTORED: ('Host {hosts} is up and cannot restore the guest ({reason}): look at its hypervisor.'),
        StuckKind.NOT_ENDED: 'Host {hosts} is up and cannot end the guest ({reason}): look at its hypervisor.',
        StuckKind.NOT_ABORTED: ('Host {hosts} did not abort the job within {seconds} s: look at its hypervisor.'),
        StuckKind.NOT_CONFIRMED: (
            'Destination {hosts} {observed}, so the copy at source {source} is kept: {look} which host has the '
            f'guest, and {remedies.template(remedies.Kind.ABANDON_ONCE_SEEN)}.'
        ),
        StuckKind.NOT_REVERTED: 'Source {hosts} {observed}, so the guest stays at {destination}: {look}.',
        StuckKind.OTHER_COPY: (
            '{there}, so nothing is started at {hosts}: look which copy is right. If it is the one named first, '
            'abandon the migration with the guest on {destination}, although it is not there, then '
            f'{remedies.template(remedies.Kind.RECONCILE_IF_RIGHT)}, which corrects the host. If not, shut that copy '
            'off and undefine it, and keep its disks if they are shared: the migration goes on by itself.'
        ),
        StuckKind.RESIZE_NOT_CONFIRMED: (
            'Host {hosts} {observed}, so the resize is not confirmed: look at its hypervisor.'
        ),
        StuckKind.RESIZE_NOT_REVERTED: (
            'Host {hosts} {observed}, so the guest keeps its new flavor: look at that host, and at its compute service.'
        ),
        StuckKind.DESTINATION_MAY_RUN: (
            'Destination {hosts} is down and may run the guest: start its compute service. Or, if its host is '
            'fenced, declare it forced down.'
        ),
        StuckKind.DESTINATION_DOWN: (
            'Destination {hosts} is down and may have started the guest: start its compute service. Or, if its host '
            'is fenced, declare it forced down; then the guest is restored at its source.'
        ),
        StuckKind.EVACUATION_DOWN: (
            'Destination {hosts} is down and may have started the guest: start its compute service. If the host is '
            'fenced, abandon the migration with the guest on {hosts}, and evacuate it from there.'
        ),
        StuckKind.RESIZE_DOWN: (
            'Host {hosts} is down and may have resized the guest: start its compute service. Or, if the host is '
            'fenced, declare it forced down; then the resize is undone when it is back.'
        ),
        StuckKind.BLOCKED_CLEANUP: (
            'It waits for {hosts} to do {step}, the deferred cleanup of migration {migration}, which is blocked: '
            f'{remedies.template(remedies.Kind.SEE_CLEANUPS)}; retry it, or discard it if nothing is left to do. The '
            'migration goes on by itself then.'
        ),
        StuckKind.NO_ROOM: (
            'The migration is being abandoned, and Placement refuses the allocation of instance {instance} at '
            '{hosts}: {reason} Make room there.'
        ),
        StuckKind.SAME_ERROR: (
            'Conductor {hosts} meets the same unexpected error each time: {reason}. See its log. It is tried again.'
        ),
        StuckKind.OTHER_ERRORS: (
            'Conductor {hosts} meets an unexpected error each time, and not the same, such as: {reason}. See its '
            'log. It is tried again.'
        ),
    }
)


_ALL = {**WAITS, **STUCK}


class _Words(dict[str, Any]):
    """Words of a sentence. One that another commit has not written is left out, and breaks no answer."""

    def __missing__(self, name: str) -> str:
        return '?'


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why a migration waits, or is stuck.

    :ivar kind: a :class:`WaitKind` or a :class:`StuckKind`.
    :ivar hosts: the hosts that it concerns.
    :ivar words: the words of its sentence besides, by name. They decide nothing. ``since`` is when a wait began.
    :ivar waits: the wait that has lasted too long, if it is stuck for that.
    """

    kind: str
    hosts: tuple[str, ...] = ()
    words: Mapping[str, str] = dataclasses.field(default_factory=dict)
    waits: Reason | None = None

    @classmethod
    def of(cls, kind: str, *hosts: str | None, **words: Any) -> Reason:
        """Return a reason, with its words as texts."""
        return cls(kind, tuple(filter(None, hosts)), {name: str(word) for name, word in words.items()})

    @property
    def key(self) -> tuple[Any, ...]:
        """What it is, without the words: a change of it is news."""
        return self.kind, self.hosts, self.waits and self.waits.key

    def equals(self, other: Reason) -> bool:
        """Return whether both are the same, with the same words, whenever they began."""
        return self.plus(since='') == other.plus(since='')

    def __str__(self) -> str:
        """Return what is waited for, or the sentence that says why the migration is stuck."""
        return self._said(_ALL.get(self.kind, self.kind))

    @property
    def sentence(self) -> str:
        """The sentence that a user sees."""
        if self.kind in SENTENCES:
            return self._said(SENTENCES[self.kind])
        if self.kind not in WAITS:
            return str(self)
        since = self.words.get('since')
        return f'for {self}, since {since}' if since else f'for {self}'

    def __post_init__(self) -> None:
        """Bound the words, which are texts of hosts and drivers too."""
        bounded = {name: base.text(word, protocol.LONGEST_REASON) for name, word in self.words.items()}
        object.__setattr__(self, 'words', bounded)

    def plus(self, **words: Any) -> Reason:
        """Return the same reason with further words."""
        return dataclasses.replace(self, words={**self.words, **{name: str(word) for name, word in words.items()}})

    def _said(self, template: str) -> str:
        words = _Words(self.words, hosts=' and '.join(self.hosts))
        if self.waits is not None:
            there = f'the hypervisor of {words["hosts"]}, and at the log of the compute service there'
            look = there if self.hosts else f'the log of conductor {words["conductor"]}'
            words |= {'waited': str(self.waits), 'look': look}
        return base.text(template.format_map(words), protocol.LONGEST_REASON)

    # --- in a row ----------------------------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        words = {**self.words} if self.waits is None else {**self.words, 'waits': self.waits.document()}
        return {'kind': str(self.kind), 'hosts': [*self.hosts], 'words': words}

    @classmethod
    def read(cls, kind: str | None, hosts: Sequence[str] | None, words: Mapping[str, Any] | None) -> Reason | None:
        """Return the reason of :meth:`document`, or of the columns of a row; None if it has no kind."""
        if kind is None:
            return None
        rest = dict(words or {})
        waits = rest.pop('waits', None)
        return cls(kind, tuple(hosts or ()), rest, None if waits is None else cls.read(**waits))

    @classmethod
    def of_entry(cls, payload: Mapping[str, Any]) -> Reason:
        """Return the reason of an entry of the log, which has what :meth:`document` has given."""
        found = cls.read(str(payload.get('kind')), payload.get('hosts'), payload.get('words'))
        assert found is not None, 'it has a kind'
        return found


def columns(name: str, reason: Reason | None) -> dict[str, Any]:
    """Return the columns of a migration for a reason: its kind, its hosts and its words.

    :param name: ``wait`` or ``stuck``.
    :param reason: None: the migration does not wait, or is not stuck.
    """
    found = {'kind': None, 'hosts': None, 'words': None} if reason is None else reason.document()
    return {f'{name}_{part}': value for part, value in found.items()}
