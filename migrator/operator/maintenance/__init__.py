# SPDX-License-Identifier: Apache-2.0

"""What an operator types and sees of maintenances, and the work at their hosts."""
