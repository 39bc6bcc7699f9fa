# SPDX-License-Identifier: Apache-2.0

"""``migrator-manage watch``: a drain while it happens."""
