# SPDX-License-Identifier: Apache-2.0

"""Libvirt's hosts and guests; it needs the extra ``libvirt``, and nothing outside of this package does."""
