#!/bin/sh
# SPDX-License-Identifier: Apache-2.0

# Usage: tools/venv.sh EXTRA...
#
# Makes a virtual environment in the tree and installs migrator there with the extras named; does nothing where that
# is done already. It never clears an environment: one that the user made is used as it is, an interrupted set-up is
# repaired in place, and one that cannot be used is named, with the command that removes it. It writes to stderr only, so
# that `make demo ARGS=--json` leaves nothing but JSON on stdout.
#
#   PYTHON  the interpreter to make it from (python3)
#   VENV    where (.venv)

set -eu

python=${PYTHON:-python3}
venv=${VENV:-.venv}
state=$venv/.migrator  # `path`: where it was made; `extra-NAME`: what that extra was installed from; `busy`; `pip.log`

say() { echo "migrator: $*" >&2; }
die() { say "$@"; exit 2; }
refuse() { die "$1. Remove '$venv' (rm -r '$venv'), or name another place with VENV=..."; }

cd "$(dirname "$0")/.."

command -v "$python" >/dev/null 2>&1 ||
    die "there is no '$python': install it (Debian: apt-get install python3 python3-venv), or name one with PYTHON=..."
"$python" -c '' >/dev/null 2>&1 || die "'$python' does not run here: name another Python with PYTHON=..."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "$("$python" -V 2>&1) is too old: install Python 3.11 or newer, or name one with PYTHON=..."
# On Debian `venv` comes with python3 and fails half way, for `ensurepip` does not.
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    die "'$python' cannot make virtual environments: install python3-venv (Debian: apt-get install python3-venv)"

# One Python has many paths: another link, pyenv's shim, or the environment's own, if its bin is first on PATH.
identity='import os, sys, sysconfig
assert os.path.isdir(sysconfig.get_path("purelib"))
print(sys.implementation.cache_tag, *sys.version_info, os.path.realpath(sys.base_prefix))'

mine=yes  # no: the user made it
if [ -e "$state/path" ]; then
    # Scripts in an environment hold its absolute path, and its packages are of one Python.
    [ "$(cat "$state/path")" = "$(pwd -P)" ] || refuse "'$venv' was made in $(cat "$state/path"), and works only there"
    there=$("$venv/bin/python" -c "$identity" 2>/dev/null) || refuse "the Python that '$venv' was made with is gone"
    [ "$there" = "$("$python" -c "$identity")" ] ||
        refuse "'$venv' was made with $("$venv/bin/python" -V), and '$python' is $("$python" -V). Name that one with PYTHON=..."
elif [ -e "$state/busy" ]; then
    :
elif [ -e "$venv/pyvenv.cfg" ]; then
    mine=no
elif [ -e "$venv" ] && [ -n "$(ls -A "$venv")" ]; then
    die "'$venv' exists and is no virtual environment: move it away, or name another with VENV=..."
fi

sources=$(cat pyproject.toml setup.py | cksum)
wanted=
for extra in "$@"; do
    [ "$(cat "$state/extra-$extra" 2>/dev/null)" = "$sources" ] || wanted="$wanted $extra"
done
if [ -e "$state/busy" ]; then
    say "the last set-up of $venv was interrupted: repairing it"
    wanted="$* $(ls "$state" | sed -n 's/^extra-//p')"
    # A package that pip was installing or removing looks installed. Without its metadata pip installs it again.
    [ ! -x "$venv/bin/python" ] || "$venv/bin/python" - <<'END' || true
import importlib.metadata, shutil
for one in list(importlib.metadata.distributions()):
    files = [file for file in one.files or () if file.suffix != '.pyc']
    if not files or not all(file.locate().exists() for file in files):
        shutil.rmtree(one._path, ignore_errors=True)
END
fi
[ -n "$wanted" ] || exit 0

mkdir -p "$state"
if [ $mine = yes ]; then
    [ -e "$state/path" ] || say "making a virtual environment in $venv"
    # Makes what is missing, pip too, and clears nothing.
    if [ ! -e "$state/path" ] || [ -e "$state/busy" ]; then
        : >"$state/busy"
        "$python" -m venv "$venv" >&2 || die "making $venv failed: the lines above say why"
        pwd -P >"$state/path"
    fi
    : >"$state/busy"
fi

extras=$(echo $wanted | tr ' ' '\n' | sort -u | paste -s -d , -)
say "installing migrator[$extras] into $venv (some minutes the first time)"
# pip writes hundreds of lines, which are of use only if it fails.
log=$state/pip.log
packages=0
{
    # PIP_USER: a virtual environment has no user site, and pip would refuse. Everything else of pip's configuration holds.
    PIP_USER=0 PYTHONUNBUFFERED=1 "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off \
        --editable ".[$extras]" 2>&1 || echo "pip exits with $?"
} | tee "$log" | while read -r line; do
    case $line in
    Collecting*) packages=$((packages + 1)) doing='collected' ;;
    Installing\ collected*) doing='collected, and installing them now' ;;
    *) continue ;;
    esac
    if [ -t 2 ]; then
        printf '\rmigrator: %d packages %s ' "$packages" "$doing" >&2
    elif [ "$doing" != collected ] || [ $((packages % 40)) = 0 ]; then
        say "$packages packages $doing"
    fi
done
[ ! -t 2 ] || printf '\r\033[K' >&2
case $(tail -n 1 "$log") in
'pip exits with '*)
    cat "$log" >&2
    # pip itself gave up, and has restored what it had begun to replace: no network, say.
    rm -f "$state/busy"
    die 'installing failed: the lines above say why'
    ;;
esac
for extra in $wanted; do
    echo "$sources" >"$state/extra-$extra"
done
rm -f "$state/busy"
say "$venv is ready"
