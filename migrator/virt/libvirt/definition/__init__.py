# SPDX-License-Identifier: Apache-2.0

"""What the definition of a guest says about a move: what forbids it, bounds it, changes in it."""
