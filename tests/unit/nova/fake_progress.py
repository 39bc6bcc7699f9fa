# SPDX-License-Identifier: Apache-2.0

"""What a Nova in memory shows of live migrations in progress."""


class Progress:
    """The part of :class:`tests.unit.nova.fake.FakeNova` with the amounts of memory."""

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
