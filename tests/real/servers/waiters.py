# SPDX-License-Identifier: Apache-2.0

"""The queries for the sessions of a database server that wait for a lock."""

#: Dialect -> the query for the number of such sessions.
WAITERS = {
    'postgresql': (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    ),
    'mysql': (
        'SELECT CAST(variable_value AS INT) FROM information_schema.global_status'
        " WHERE variable_name = 'Innodb_row_lock_current_waits'"
    ),
}
