# SPDX-License-Identifier: Apache-2.0

"""``migrator-demo``: a cloud in one process, its options, its screen and its report."""
