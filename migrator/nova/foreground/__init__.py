# SPDX-License-Identifier: Apache-2.0

"""``migrator-drain``: drains of a stock Nova in the foreground, with their state in a file of SQLite."""
