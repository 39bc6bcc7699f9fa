#!/bin/sh
# SPDX-License-Identifier: Apache-2.0

# Usage: tools/venv.sh EXTRA...
#
# Makes a virtual environment in the tree and installs migrator there with the extras named; does nothing where that
# is done already. One that the user made is used as it is, and never cleared. It writes to stderr only, so that
# `make demo ARGS=--json` leaves nothing but JSON on stdout.
#
#   PYTHON  the interpreter to make it from (python3)
#   VENV    where (.venv)

set -eu

python=${PYTHON:-python3}
venv=${VENV:-.venv}
state=$venv/.migrator  # `base`: what it was made from; `extra-NAME`: what that extra was installed from; `busy`

say() { echo "migrator: $*" >&2; }
die() { say "$@"; exit 2; }

cd "$(dirname "$0")/.."

command -v "$python" >/dev/null 2>&1 ||
    die "there is no '$python': install it (Debian: apt-get install python3 python3-venv), or name one with PYTHON=..."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "$("$python" -V 2>&1) is too old: install Python 3.11 or newer, or name one with PYTHON=..."
# On Debian `venv` comes with python3 and fails half way, for `ensurepip` does not.
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    die "'$python' cannot make virtual environments: install python3-venv (Debian: apt-get install python3-venv)"

# Scripts in a virtual environment hold its absolute path, and its packages are of one Python: either one new, all new.
base="$(pwd -P) $("$python" -c 'import sys; print(sys.executable, sys.version)' | tr '\n' ' ')"
sources=$(cat pyproject.toml setup.py | cksum)

mine=yes  # no: the user made it
if [ -e "$venv/pyvenv.cfg" ] && [ ! -e "$state/busy" ] && [ ! -e "$state/base" ]; then
    mine=no fresh=no
elif [ -e "$state/busy" ]; then
    say "the last set-up was interrupted: starting it afresh"
    fresh=yes
elif [ "$(cat "$state/base" 2>/dev/null)" != "$base" ]; then
    fresh=yes
else
    fresh=no
fi

missing=
for extra in "$@"; do
    if [ $fresh = yes ] || [ "$(cat "$state/extra-$extra" 2>/dev/null)" != "$sources" ]; then
        missing="${missing:+$missing,}$extra"
    fi
done
[ -n "$missing" ] || exit 0

if [ $fresh = yes ]; then
    # --clear empties the directory, so let it be one that was a virtual environment (or an unfinished one) before
    if [ -e "$venv" ] && [ ! -e "$venv/pyvenv.cfg" ] && [ -n "$(ls -A "$venv" | grep -v '^\.migrator$')" ]; then
        die "'$venv' exists and is no virtual environment: move it away, or name another with VENV=..."
    fi
    say "making a virtual environment in $venv"
    mkdir -p "$state" && : >"$state/busy"
    "$python" -m venv --clear "$venv" >&2 || die "making $venv failed: the lines above say why"
    mkdir -p "$state"
fi

# Whatever kills pip half way leaves packages that look installed: `busy` stays, and the next run starts afresh.
mkdir -p "$state"
[ $mine = no ] || : >"$state/busy"
say "installing migrator[$missing] into $venv (some minutes the first time)"
# PIP_USER: a virtual environment has no user site, and pip would refuse. Everything else of pip's configuration holds.
PIP_USER=0 "$venv/bin/python" -m pip install --disable-pip-version-check --editable ".[$missing]" >&2 || {
    # pip itself gave up, before it changed anything: a working environment stays one (no network, say)
    [ $fresh = yes ] || rm -f "$state/busy"
    die "installing failed: the lines above say why"
}
for extra in $(echo "$missing" | tr ',' ' '); do
    echo "$sources" >"$state/extra-$extra"
done
[ $mine = no ] || echo "$base" >"$state/base"
rm -f "$state/busy"
say "$venv is ready"
