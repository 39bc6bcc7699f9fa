# SPDX-License-Identifier: Apache-2.0

"""A compute host's part of a cold migration."""
