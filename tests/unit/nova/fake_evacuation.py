# SPDX-License-Identifier: Apache-2.0

"""The evacuations of the Nova in memory: what it does as Nova, and what that does to the guests."""


class Evacuations:
    """A part of :class:`tests.unit.nova.fake.FakeNova`.

    :ivar unpowered: the hosts without power. Any other one runs its guests, whatever Nova shows.
    :ivar shares_disks: whether all hosts have the disks of guests without volumes.
    :ivar harmed: the guests that were started elsewhere while their host still ran them.
    :ivar emptied: the guests whose disks were made anew.
    :ivar asked: the guests whose evacuation was accepted, in that order.
    """

    def __init__(self):
        self.unpowered: set[str] = set()
        self.shares_disks = False
        self.harmed: list[str] = []
        self.emptied: list[str] = []
        self.asked: list[str] = []

    def lose(self, host):
        """Cut the power of a host, so that its nova-compute does not report either."""
        self.unpowered.add(host)
        self.kill(host)

    def come_back(self, host):
        """Give a host its power again, and start its nova-compute, which removes what was evacuated."""
        self.unpowered.discard(host)
        self.services[host]['state'] = 'up'
        for row in self.rows:
            if (row['migration_type'], row['source_compute'], row['status']) == ('evacuation', host, 'done'):
                self._set(row, 'completed')
                self._book(row['instance_uuid'], row['instance_uuid'], row['dest_compute'])

    def shown_state(self, service):
        """Return the state of a service as Nova shows it."""
        return 'down' if service['forced_down'] else service['state']

    def evacuate(self, server, options, version):
        """Accept an evacuation, or raise the refusal of Nova."""
        guest, host = server['id'], server['host']
        if self.shown_state(self.services[host]) == 'up':
            raise self.bad(f'Compute service of {host} is still in use.')
        if server['vm_state'] not in ('active', 'stopped', 'error'):
            raise self.conflict(f"Cannot 'evacuate' instance {guest} while it is in vm_state {server['vm_state']}")
        if guest in self.refuses:
            raise self.conflict(self.refuses[guest])
        # Since 2023.1 Nova looks at no task, and so accepts a second one while the first is in progress.
        self.asked.append(guest)
        server['task_state'] = 'rebuilding'
        self._add_row(guest, options.get('host'), self._add_action(guest, 'evacuate'), 'evacuation')
        off = version >= (2, 95) or server['vm_state'] == 'stopped'
        self.rows[-1]['is_left_off'] = off and server['vm_state'] != 'error'

    def advance_evacuation(self, row):
        """Let an evacuation get on by one status."""
        guest, fails = row['instance_uuid'], self.fails.get(row['instance_uuid'])
        server = self.servers[guest]
        if row['status'] == 'accepted':
            destination = None if fails == 'check' else self._choose(row)
            if destination is None:
                self._fail_evacuation(row, 'error', 'No valid host was found.')
            else:
                row['dest_compute'] = destination
                self._set(row, 'pre-migrating')
        elif self.services[row['dest_compute']]['state'] != 'up':
            return
        elif row['ticks'] > 0:
            row['ticks'] -= 1
        elif fails == 'claim':  # nothing was started, and the guest keeps its state
            self._set(row, 'failed')
            server['task_state'] = None
            self._note(row, 'compute_rebuild_instance', 'the lab says so')
        elif fails in ('pre', 'late'):  # Nova undoes no start that fails late
            self.truth[guest] = row['dest_compute'] if fails == 'late' else self.truth[guest]
            self._fail_evacuation(row, 'failed', 'the lab says so')
        else:
            source = row['source_compute']
            if source not in self.unpowered:
                self.harmed.append(guest)
            if server.get('image') != '' and not self.shares_disks:
                self.emptied.append(guest)
            self.truth[guest] = server['host'] = row['dest_compute']
            server['vm_state'] = 'stopped' if row['is_left_off'] else 'active'
            server['task_state'] = None
            self._set(row, 'done')
            self._book_both(guest, source, row['dest_compute'])

    def _fail_evacuation(self, row, status, why):
        self._set(row, status)
        self.servers[row['instance_uuid']] |= {'vm_state': 'error', 'task_state': None}
        self._note(row, 'compute_rebuild_instance', why)

    def _book_both(self, guest, *hosts):
        flavor = self.servers[guest]['flavor']
        resources = {'VCPU': flavor['vcpus'], 'MEMORY_MB': flavor['ram'], 'DISK_GB': flavor['disk']}
        self._put_if(guest, {self.nodes[host]: {'resources': resources} for host in hosts})
