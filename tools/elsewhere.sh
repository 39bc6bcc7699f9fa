#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# Usage: tools/elsewhere.sh SUITE [COMMAND...]
#
# Installs a bare Debian into a temporary folder, and runs commands there as an unprivileged user who has cloned HEAD: by
# default `make demo` and `make test`, as README.rst has them. The mirror, the proxy, the certificates and pip's
# configuration are those of this machine. Without root or debootstrap it says so and does nothing; with CI=true it fails.

set -euo pipefail
unset CDPATH  # an exported one would lead cd elsewhere, and have it print
cd "$(dirname "$0")/.."

# What README.rst asks for.
packages=python3-venv,make,git
# The variables that this machine's network needs.
network='^(PIP_[A-Z_]*|(http|https|no)_proxy|(HTTP|HTTPS|NO)_PROXY|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE)='

say() { echo "migrator: $*" >&2; }
give_up() { say "left out: $*"; [ "${CI:-}" != true ]; exit; }

if [ "${1:-}" != --inside ]; then
    suite=${1:?usage: tools/elsewhere.sh SUITE [COMMAND...]}
    shift
    [ "$(id -u)" = 0 ] || give_up 'it needs root, for debootstrap and chroot'
    command -v debootstrap >/dev/null || give_up 'there is no debootstrap (Debian: apt-get install debootstrap)'
    [ $# -gt 0 ] || set -- 'make demo' 'make test'
    folder=$(mktemp -d "${TMPDIR:-/tmp}/migrator-$suite-XXXXXX")
    inside=
    remove() {
        [ -z "$inside" ] || kill -KILL "$inside" 2>/dev/null || true
        # Its last processes may still write.
        for _ in 1 2 3 4 5; do rm -rf "$folder" 2>/dev/null && break || sleep 1; done
    }
    trap remove EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    # All mounts and processes are in namespaces that end with this process, even if it is killed with -9. Only the
    # folder stays then. A shell has a job in the background ignore SIGINT, and the tests would inherit that.
    env --default-signal=INT,QUIT setpriv --pdeathsig KILL \
        unshare --mount --propagation private --pid --fork --kill-child --mount-proc \
        "$BASH" tools/elsewhere.sh --inside "$folder" "$suite" "$@" &
    inside=$!
    wait "$inside"
    exit
fi
folder=$2 suite=$3
shift 3
root=$folder/root

# --- Debian ------------------------------------------------------------------------------------------------------------

# The address of the first package source whose label is Debian. That of the security updates is Debian-Security.
mirror=$(apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' | sed -n 's/^Debian //p' | head -n 1)
eval "$(apt-config shell proxy Acquire::http::Proxy)"
[ -z "${proxy:-}" ] || export http_proxy="$proxy"
# A debootstrap that is older than the suite has no script of that name. Every newer suite uses that of sid.
scripts=/usr/share/debootstrap/scripts
script=$scripts/$suite
[ -e "$script" ] || script=$scripts/sid

say "installing Debian $suite with ${packages//,/, } into $root"
debootstrap --variant=minbase --include="$packages" "$suite" "$root" "${mirror:-http://deb.debian.org/debian}" "$script" \
    >"$folder/log" 2>&1 || { tail -n 20 "$folder/log" >&2; say "debootstrap failed for $suite"; exit 1; }

# --- what this machine's network needs, and what every machine has -----------------------------------------------------

chmod 755 "$folder"
chroot "$root" useradd --create-home --shell /bin/bash user
home=$root/home/user

# same PATH [PATH_THERE]: copies a file, if this machine has it.
same() {
    [ -f "$1" ] || return 0
    mkdir -p "$root$(dirname "${2:-$1}")"
    cat "$1" >"$root${2:-$1}"
}
# mount_at PATH OPTION...
mount_at() {
    mkdir -p "$root$1"
    mount "${@:2}" "$root$1"
}

for each in /etc/hosts /etc/resolv.conf /etc/ssl/certs/ca-certificates.crt /etc/pip.conf /etc/xdg/pip/pip.conf; do
    same $each
done
same "$HOME/.config/pip/pip.conf" /home/user/.config/pip/pip.conf
# The files and folders that pip's configuration names. The packages of an index are beside its folder, not in it.
{
    cat "$root/etc/pip.conf" "$root/etc/xdg/pip/pip.conf" "$home/.config/pip/pip.conf" 2>/dev/null || true
    env | grep '^PIP_' || true
} | { grep -oE '(file:/|[ =])/[^ ]+' || true; } | sed -E 's,^[ =],,; s,^file://(.*)/[^/]+/?$,\1,' | sort -u >"$folder/paths"
while read -r each; do
    if [ -d "$each" ]; then mount_at "$each" --bind -o ro "$each"; else same "$each"; fi
done <"$folder/paths"

mount_at /proc -t proc proc
mount_at /dev -t tmpfs -o mode=755 tmpfs
mount_at /dev/shm -t tmpfs -o mode=1777 tmpfs
for each in null zero full random urandom tty; do
    : >"$root/dev/$each"
    mount --bind /dev/$each "$root/dev/$each"
done
ln -s /proc/self/fd "$root/dev/fd"

# --- its user ----------------------------------------------------------------------------------------------------------

git clone --quiet --no-hardlinks . "$home/migrator"
chroot "$root" chown -R user: /home/user

mapfile -t variables < <(env | grep -E "$network")
for command in "$@"; do
    say "Debian $suite, $(chroot "$root" python3 -V): $command"
    chroot --userspec=user: "$root" /usr/bin/env -i "${variables[@]}" HOME=/home/user USER=user LOGNAME=user \
        PATH=/usr/local/bin:/usr/bin:/bin bash -c "cd ~/migrator && $command" </dev/null
done
