# SPDX-License-Identifier: Apache-2.0

"""Resources without rows of their own: they follow from guests and services, or are always empty."""
