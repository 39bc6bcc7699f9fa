# SPDX-License-Identifier: Apache-2.0

"""The work at a host that was emptied for maintenance, as a command of the operator."""
