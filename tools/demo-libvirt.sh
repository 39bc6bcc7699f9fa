#!/bin/sh
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

# Usage: tools/demo-libvirt.sh [--json]
#
# Installs what the demo with real guests needs and this machine lacks, and runs it. What cannot be helped is told in
# one line, and the exit status is 2. It speaks on stderr only, so that `--json` leaves nothing but JSON on stdout.

set -eu

die() { echo "migrator-demo-libvirt: $*" >&2; exit 2; }

cd "$(dirname "$0")/.."

[ "$(id -u)" = 0 ] || die 'not root: its hosts are namespaces, which only root may make'
unshare --mount --uts --pid --fork true 2>/dev/null ||
    die 'not permitted to make mount, UTS and PID namespaces: in a container, give it CAP_SYS_ADMIN'

if command -v apt-get >/dev/null; then
    tools/packages.sh libvirt >&2 || die 'its packages could not be installed: the lines above say why'
else
    missing=
    for program in qemu-system-x86_64 qemu-img libvirtd virsh gcc pkg-config; do
        command -v $program >/dev/null || missing="${missing:+$missing, }$program"
    done
    [ -z "$missing" ] || die "no apt-get here, with which it would install what is missing: $missing"
fi
tools/venv.sh demo test libvirt
exec "${VENV:-.venv}/bin/python" -m tests.real.libvirt.demo "$@"
