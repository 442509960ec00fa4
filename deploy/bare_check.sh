#!/usr/bin/env bash
# The promise of the README, tried: a Debian with nothing but git, make and Python, an ordinary user, a fresh clone.
#
#   deploy/bare_check.sh [--java] [make targets; default: setup demo test]
#
# Needs root and debootstrap. The chroot lives in $BARE_ROOT (default /var/tmp/snapline-bare) and is kept for the next
# time; the user's home in it, with the clone and its .venv, is made anew each time unless KEEP_HOME=1 (then the same
# clone is brought up to date: that is how a second run is tried, and with OFFLINE=1 without any network).
# --java also installs Debian's Java 17, in a chroot of its own. Mounts and processes live in namespaces and end with this script.
set -euo pipefail

repository=$(cd "$(dirname "$0")/.." && pwd)
base=${BARE_ROOT:-/var/tmp/snapline-bare}
packages=git,make,python3,python3-venv,ca-certificates
if [ "${1:-}" = --java ]; then
    shift
    base=$base-java
    with_java=yes
fi
[ $# -gt 0 ] || set -- setup demo test

[ "$(id -u)" = 0 ] || { echo "bare_check: making a chroot needs root" >&2; exit 2; }
command -v debootstrap >/dev/null || { echo "bare_check: apt-get install debootstrap" >&2; exit 2; }
case $base/ in "$repository"/*) echo "bare_check: BARE_ROOT must lie outside of the project" >&2; exit 2 ;; esac

if [ ! -e "$base/.complete" ]; then
    [ -e "$base/usr/bin/make" ] || debootstrap --variant=minbase --include="$packages" bookworm "$base" >&2
    chroot "$base" useradd --create-home --shell /bin/bash builder 2>/dev/null || true
    touch "$base/.complete"
fi

# Network as the host has it: names, certificates, settings of pip. Copied now, never part of the project.
cp -L /etc/resolv.conf /etc/hosts "$base/etc/"
mkdir -p "$base/etc/ssl/certs"
cp -L /etc/ssl/certs/ca-certificates.crt "$base/etc/ssl/certs/"
rm -f "$base/etc/pip.conf"
[ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$base/etc/pip.conf"
if [ "${with_java:-}" = yes ] && [ ! -e "$base/usr/bin/java" ]; then
    cp /etc/apt/sources.list.d/debian.sources "$base/etc/apt/sources.list.d/" 2>/dev/null || cp /etc/apt/sources.list "$base/etc/apt/"
    mkdir -p "$base/usr/share/man/man1"
    unshare --mount --pid --fork --kill-child bash -euc '
        mount --make-rprivate /
        mount -t proc proc "$1/proc"
        exec chroot "$1" sh -c "apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends openjdk-17-jre-headless"
    ' apt "$base" >/dev/null
    chroot "$base" apt-get -qq clean
fi

home=$base/home/builder
[ -n "${KEEP_HOME:-}" ] || { rm -rf "$home"; mkdir -p "$home"; }
git -C "$repository" bundle create --quiet "$home/snapline.bundle" main
cat > "$home/try.sh" <<'INNER'
set -euo pipefail
cd
if [ -d snapline ]; then git -C snapline pull --quiet ../snapline.bundle main; else git clone --quiet --branch main snapline.bundle snapline 2>/dev/null; fi
cd snapline
echo "bare: $(id -un) on $(. /etc/os-release && echo "$PRETTY_NAME"), $(python3 --version), java: $(command -v java || echo none), commit $(git rev-parse --short HEAD)"
for target in "$@"; do  # unquoted below: a target may come with variables, "test T=path"
    began=$(date +%s)
    make $target || { echo "bare: make $target FAILED with $?"; exit 1; }
    echo "bare: make $target took $(($(date +%s) - began)) s"
    [ -z "$(git status --porcelain)" ] || { echo "bare: make $target left this in the tree:"; git status --short; exit 1; }
done
INNER
chroot "$base" chown -R builder: /home/builder

environment=(HOME=/home/builder USER=builder LOGNAME=builder PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 "TERM=${TERM:-dumb}")
for name in $(compgen -e | grep -E '^(PIP_(CERT|INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST|DEFAULT_TIMEOUT)|SSL_CERT_FILE|REQUESTS_CA_BUNDLE|(https?|no|all)_proxy|(HTTPS?|NO|ALL)_PROXY)$'); do
    environment+=("$name=${!name}")
done
namespaces=(--mount --pid --fork --kill-child)
[ -z "${OFFLINE:-}" ] || namespaces+=(--net)

exec unshare "${namespaces[@]}" bash -euc '
    base=$1; shift
    mount --make-rprivate /
    mount -t proc proc "$base/proc"
    mount -t tmpfs -o mode=755 tmpfs "$base/dev"
    for node in null zero full random urandom tty; do touch "$base/dev/$node"; mount --bind "/dev/$node" "$base/dev/$node"; done
    mkdir "$base/dev/shm" "$base/dev/pts"
    mount -t tmpfs -o mode=1777 tmpfs "$base/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$base/dev/pts"
    ln -s pts/ptmx "$base/dev/ptmx"
    ln -s /proc/self/fd "$base/dev/fd"
    if command -v ip >/dev/null; then ip link set lo up; fi
    exec chroot --userspec=builder:builder "$base" env -i "$@"
' bare_check "$base" "${environment[@]}" bash /home/builder/try.sh "$@"
