# SPDX-License-Identifier: Apache-2.0

"""The entry points of the commands. Each reads the configuration, creates the parts, and runs them."""
