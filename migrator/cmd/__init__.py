# SPDX-License-Identifier: Apache-2.0

"""Commands: each reads the configuration, wires the parts, and serves."""
