# SPDX-License-Identifier: Apache-2.0

"""The tables of maintenances, and their store."""
