# SPDX-License-Identifier: Apache-2.0

"""Cold migrations of the libvirt driver."""
