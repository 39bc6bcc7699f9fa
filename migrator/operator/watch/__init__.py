# SPDX-License-Identifier: Apache-2.0

"""``migrator-manage watch``: a drain, a host or a migration while it happens."""
