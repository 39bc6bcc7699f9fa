# SPDX-License-Identifier: Apache-2.0

"""What a Nova in memory shows of live migrations in progress, and how it aborts them."""

_ABORTABLE = ('queued', 'preparing', 'running')


class Progress:
    """The part of :class:`tests.unit.nova.fake.FakeNova` with the amounts of memory, and aborts."""

    def _list_moves(self, version, body, query, guest):
        shown = []
        for row in self.rows:
            if row['instance_uuid'] != guest or row['status'] not in ('queued', 'preparing', 'running'):
                continue
            whole, left = self.ticks.get(guest, 1), row['ticks']
            total = self.servers[guest]['flavor']['ram'] * 2**20 if row['status'] == 'running' else None
            remaining = None if total is None else total * left // max(whole, 1)
            processed = None if total is None else total - remaining
            shown.append(
                {name: row[name] for name in ('id', 'uuid', 'status', 'source_compute', 'dest_compute')}
                | {'memory_total_bytes': total, 'memory_processed_bytes': processed}
                | {'memory_remaining_bytes': remaining}
            )
        return 200, {'migrations': shown}

    def _abort(self, version, body, query, guest, number):
        server = self._server(guest)
        row = next((row for row in self.rows if (row['instance_uuid'], row['id']) == (guest, int(number))), None)
        if server['task_state'] != 'migrating':
            raise self.conflict(f"Instance {guest} is in an invalid state for 'abort live migration'")
        if row is None:
            raise self.missing(f'Migration {number} not found for instance {guest}')
        if row['status'] not in _ABORTABLE:
            state = f'Migration {number} state of instance {guest} is {row["status"]}. '
            raise self.bad(f'{state}Cannot abort live migration while the migration is in this state.')
        self._add_action(guest, 'live_migration_cancel')
        row['abort'] = self.services[row['source_compute']]['state'] == 'up'
        return 202, None
