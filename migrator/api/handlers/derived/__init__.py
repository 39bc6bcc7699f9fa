# SPDX-License-Identifier: Apache-2.0

"""Resources without rows of their own: derived from guests and services, or reported by a host."""
