# SPDX-License-Identifier: Apache-2.0

"""The cold migrations of the Nova in memory: what it does as Nova, and what a user does meanwhile."""

USER = '43d260aeb13c5c3bb7af9cdee81d8eef'


class ColdMigrations:
    """A part of :class:`tests.unit.nova.fake.FakeNova`.

    A cold migration fails where ``fails`` has its guest: check, pre, live, post or confirm.

    :ivar user: who sends the requests.
    :ivar answering: the id of the request that is answered now.
    :ivar confirms_after: the seconds after which Nova confirms by itself; None: it does not.
    """

    #: Task -> the status that Nova shows; vm_state -> the power state.
    STATUSES = dict.fromkeys(('resize_prep', 'resize_migrating', 'resize_migrated', 'resize_finish'), 'RESIZE')
    POWER = {'active': 1, 'paused': 3, 'stopped': 4}  # noqa: RUF012 -- nothing changes it

    def __init__(self):
        super().__init__()
        self.user = USER
        self.answering: str | None = None
        self.confirms_after: int | None = None

    def get_user_id(self):
        """Return the id of the user, as keystoneauth1 does."""
        return self.user

    def as_other(self, call, *arguments):
        """Let another user send a request."""
        self.user, mine = 'another', self.user
        call(*arguments)
        self.user = mine

    def resized(self, guest):
        """Return whether a guest waits in VERIFY_RESIZE."""
        return self.servers[guest]['vm_state'] == 'resized' and self.servers[guest]['task_state'] is None

    def migrate(self, server, options):
        """Accept a cold migration, or raise the refusal of Nova."""
        guest, host = server['id'], (options or {}).get('host')
        if self.services[server['host']]['state'] != 'up':
            raise self.conflict('Service is unavailable at this time.')
        if server['task_state'] is not None:
            raise self.conflict(f"Cannot 'migrate' instance {guest} while it is in task_state {server['task_state']}")
        if server['vm_state'] not in ('active', 'stopped'):
            raise self.conflict(f"Cannot 'migrate' instance {guest} while it is in vm_state {server['vm_state']}")
        if host is not None and host not in self.services:
            raise self.bad(f'Compute host {host} could not be found.')
        if host == server['host']:
            raise self.bad('Cannot migrate to the host where the server exists.')
        if guest in self.refuses:
            raise self.conflict(self.refuses[guest])
        server['task_state'] = 'resize_prep'
        self._accepted.append((guest, host, self._add_action(guest, 'migrate'), 'migration'))
        return 202, None

    def confirm(self, server, _options):
        """Accept a confirmation, or raise the refusal of Nova."""
        row = self._undecided(server, 'confirmResize')
        if self.services[row['source_compute']]['state'] != 'up':
            raise self.conflict('Service is unavailable at this time.')
        self._set(row, 'confirming')
        row['request_id'] = self._add_action(server['id'], 'confirmResize')  # its events have why it fails
        return 204, None

    def revert(self, server, _options):
        """Accept a revert, or raise the refusal of Nova."""
        self._set(self._undecided(server, 'revertResize'), 'reverting')
        server['task_state'] = 'resize_reverting'
        self._add_action(server['id'], 'revertResize')
        return 202, None

    COLD = {'migrate': migrate, 'confirmResize': confirm, 'revertResize': revert}  # noqa: RUF012 -- nothing changes it

    def _undecided(self, server, action):
        if server['vm_state'] != 'resized' or server['task_state'] is not None:
            state = f'vm_state {server["vm_state"]}'
            if server['task_state'] is not None:
                state = f'task_state {server["task_state"]}'
            raise self.conflict(f"Cannot '{action}' instance {server['id']} while it is in {state}")
        row = self.row(server['id'])
        if row['status'] != 'finished':
            raise self.bad('Instance has not been resized.')
        return row

    def advance_cold(self, row):
        """Let a cold migration get on by one status."""
        guest, fails = row['instance_uuid'], self.fails.get(row['instance_uuid'])
        server, source = self.servers[guest], row['source_compute']
        if row['status'] == 'accepted':  # it has just been made
            self._set(row, 'pre-migrating')
            self._book(guest, row['uuid'], source)
            return
        needed = row['dest_compute'] if row['status'] == 'post-migrating' else source
        if needed is not None and self.services[needed]['state'] != 'up':
            return
        if row['status'] == 'pre-migrating' and row['dest_compute'] is None:
            row['dest_compute'] = None if fails == 'check' else self._choose(row)
            if row['dest_compute'] is None:
                row['dest_compute'] = source  # so that the end gives the allocation back
                self._end(row, 'error', 'conductor_migrate_server', 'No valid host was found. ')
                row['dest_compute'] = None
                return
            self._book(guest, guest, row['dest_compute'])
        elif row['status'] == 'pre-migrating':
            if fails == 'pre':
                self._end(row, 'error', 'compute_prep_resize', 'the lab says so')
                return
            self._set(row, 'migrating')
            server['task_state'] = 'resize_migrating'
            row['was'] = server['vm_state']
        elif row['status'] == 'migrating' and row['ticks'] > 0:
            row['ticks'] -= 1
        elif row['status'] == 'migrating':
            if fails == 'live':
                server |= {'vm_state': 'error', 'power_state': self.POWER[row['was']]}
                self._end(row, 'error', 'compute_resize_instance', 'the lab says so')
                return
            self._set(row, 'post-migrating')
            self.truth[guest] = server['host'] = row['dest_compute']
            server['task_state'] = 'resize_migrated'
        elif row['status'] == 'post-migrating':
            self._finish(row, server, fails)
        else:
            self._decided(row, server, fails)

    def _finish(self, row, server, fails):
        server['task_state'] = None
        if fails == 'post':
            self._set(row, 'error')
            server |= {'vm_state': 'error', 'power_state': self.POWER[row['was']]}
            self._put_if(row['uuid'], {})
            self._note(row, 'compute_finish_resize', 'the lab says so')
            return
        self._set(row, 'finished')
        row['ended'] = self.now
        server |= {'vm_state': 'resized', 'power_state': self.POWER[row['was']]}

    def _decided(self, row, server, fails):
        guest, power = server['id'], server.pop('power_state')
        if row['status'] == 'reverting':
            self._set(row, 'reverted')
            self.truth[guest] = server['host'] = row['source_compute']
            server |= {'vm_state': row['was'], 'task_state': None}
            self._put_if(row['uuid'], {})
            self._book(guest, guest, row['source_compute'])
            return
        self._set(row, 'error' if fails == 'confirm' else 'confirmed')
        server['vm_state'] = 'error' if fails == 'confirm' else {1: 'active', 4: 'stopped'}[power]
        self._put_if(row['uuid'], {})
        if fails == 'confirm':
            server['power_state'] = power
            self._note(row, 'compute_confirm_resize', 'the lab says so')

    def confirm_late(self):
        """Confirm what has waited until Nova does it by itself."""
        for row in self.rows if self.confirms_after is not None else ():
            guest = row['instance_uuid']
            waits = row['status'] == 'finished' and guest in self.servers and self.resized(guest)
            if waits and (self.now - row['ended']).total_seconds() >= self.confirms_after:
                self._set(row, 'confirming')
