#!/bin/sh
# SPDX-License-Identifier: Apache-2.0

# Usage: tools/demo-libvirt.sh [--json]
#
# Installs what the demo with real guests needs and this machine lacks, and runs it. A missing requirement is reported in
# one line, and the exit status is 2. It prints on stderr only, so that `--json` leaves nothing but JSON on stdout.

set -eu

die() { echo "migrator-demo-libvirt: $*" >&2; exit 2; }

unset CDPATH  # an exported one would lead cd elsewhere, and have it print
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
