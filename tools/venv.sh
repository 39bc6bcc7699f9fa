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
state=$venv/.migrator  # `path`: where it was made; `extra-NAME`: what that extra was installed from; `pip.log`
                       # `users`: the user made it; `busy`: a set-up that has not ended

say() { echo "migrator: $*" >&2; }
die() { say "$@"; exit 2; }
# An absolute path, because the user may stand elsewhere.
place() { (cd "$venv" && pwd -P); }
refuse() { die "$1. Remove it (rm -r '$(place)'), or name another place with VENV=..."; }

unset CDPATH  # an exported one would lead cd elsewhere, and have it print
cd "$(dirname "$0")/.."
case $venv in *[[:space:]]*) die "VENV='$venv' has a space, and scripts in an environment cannot: name another place" ;; esac

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

if [ -e "$state/path" ]; then
    # Scripts in an environment hold its absolute path, and its packages are of one Python.
    [ "$(cat "$state/path")" = "$(place)" ] || refuse "'$venv' was made as $(cat "$state/path"), and works only there"
    there=$("$venv/bin/python" -c "$identity" 2>/dev/null) || refuse "the Python that '$venv' was made with is gone"
    [ -e "$state/users" ] || [ "$there" = "$("$python" -c "$identity")" ] ||
        refuse "'$venv' was made with $("$venv/bin/python" -V), and '$python' is $("$python" -V): name that one with PYTHON="
elif [ -e "$state/busy" ]; then
    :
elif [ -e "$venv/pyvenv.cfg" ]; then
    mkdir -p "$state" && : >"$state/users" && place >"$state/path"
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

mkdir -p "$state" 2>/dev/null || die "cannot write to '$venv': name another place with VENV=..."
repairing=no
[ ! -e "$state/busy" ] || repairing=yes
: >"$state/busy"
if [ ! -e "$state/path" ]; then
    say "making a virtual environment in $venv"
fi
if [ ! -e "$state/users" ] && { [ ! -e "$state/path" ] || [ $repairing = yes ]; }; then
    # Makes what is missing, pip too, and clears nothing.
    "$python" -m venv "$venv" >&2 || die "making $venv failed: the lines above say why"
    place >"$state/path"
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
status=$(sed -n '$s/^pip exits with //p' "$log")
if [ -n "$status" ]; then
    cat "$log" >&2
    # pip itself gave up, and has restored what it had begun to replace: no network, say. One that was killed has not.
    [ $repairing = yes ] || [ "$status" -gt 128 ] || rm -f "$state/busy"
    die 'installing failed: the lines above say why'
fi
for extra in $wanted; do
    echo "$sources" >"$state/extra-$extra"
done
rm -f "$state/busy"
say "$venv is ready"
