# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Real libvirt hosts on this machine, real guests on them, and everything to break them with.

:mod:`hosts` has the hosts and the lab that joins them, :mod:`guests` what runs there, :mod:`machine` what the lab needs
of the machine and makes of it. The others are programs of their own: :mod:`init` is a host's first process,
:mod:`enter` runs a command on a host, :mod:`emulator` stands before QEMU, ``guest.c`` is what a guest runs, and
``shared.c`` makes libvirt take a directory for NFS.
"""
