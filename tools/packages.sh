#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Usage: tools/packages.sh [PROFILE...]
#
# Installs the Debian packages of bindep.txt that have no profile, or one of those named, as far as they are missing.
# It needs root for that. Other users get a list of what to install. Servers are installed, not started.

set -euo pipefail
unset CDPATH  # an exported one would lead cd elsewhere, and have it print
cd "$(dirname "$0")/.."

# (bindep itself would need the virtual environment for which python3-venv is only now being installed.)
wanted() {
    awk -v profiles=" $* " '
        /^[[:space:]]*(#|$)/ { next }
        {
            name = $1; $1 = ""; gsub(/[][]/, " "); wants = 0; ok = 0
            for (i = 1; i <= NF; i++) {
                if ($i ~ /^platform:/) { if ($i != "platform:dpkg") next; continue }
                wants = 1
                if (index(profiles, " " $i " ")) ok = 1
            }
            if (!wants || ok) print name
        }' bindep.txt
}

retry() {
    local try
    for try in 1 2 3; do
        "$@" && return 0
        echo "'$*' failed (attempt $try of 3)"
        sleep $((try * 5))
    done
    return 1
}

if ! command -v dpkg-query >/dev/null; then
    echo 'no dpkg here: taking it that what bindep.txt names is installed'
    exit
fi
missing=()
for package in $(wanted "$@"); do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
    echo 'nothing is missing'
    exit
fi
echo "missing: ${missing[*]}"
if [ "$(id -u)" != 0 ]; then
    echo "not root, so they stay away; to have them: apt-get install ${missing[*]}"
    exit 1
fi
# A broker or a database of the system's own is not what the tests want: theirs are private, and on ports of their own.
# policy-rc.d is Debian's way to say so; one that is there already is the machine's own.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    trap 'rm -f $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod 755 $policy
fi
export DEBIAN_FRONTEND=noninteractive
retry apt-get update -q && retry apt-get install -q -y --no-install-recommends "${missing[@]}"
