# SPDX-License-Identifier: Apache-2.0

"""Real libvirt hosts on this machine, real guests on them, and everything to break them with.

:mod:`hosts` has the hosts and the lab that joins them, :mod:`guests` what runs there, :mod:`machine` what the lab needs
of the machine and makes of it. The others are programs of their own: :mod:`init` is a host's first process,
:mod:`enter` runs a command on a host, :mod:`emulator` stands before QEMU, ``guest.c`` is what a guest runs, and
``shared.c`` makes libvirt take a directory for NFS.
"""
