# SPDX-License-Identifier: Apache-2.0

"""Rolling maintenance: hosts are emptied one after the other, worked on, and used again."""
