# SPDX-License-Identifier: Apache-2.0

"""What every table uses: the engine with its options, and the types of columns."""
