# SPDX-License-Identifier: Apache-2.0

"""The driver for libvirt and QEMU.

Only this package needs the extra ``libvirt``.
"""
