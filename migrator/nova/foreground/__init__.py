# SPDX-License-Identifier: Apache-2.0

"""``migrator-drain``: drains of a stock Nova, with their state in a file of SQLite."""
