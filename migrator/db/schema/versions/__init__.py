# SPDX-License-Identifier: Apache-2.0

"""The versions of the schema, one file each, the oldest first."""
