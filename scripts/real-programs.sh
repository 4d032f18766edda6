#!/usr/bin/env bash
# The third-party programs that some checks run: servers, clients, a browser. Prints which are installed, and
# which checks are skipped.
#
#   scripts/real-programs.sh              names them
#   scripts/real-programs.sh --install    installs those that are missing with apt-get first, as root
#
# Exit code 0 also if programs are missing: each check that needs one reports that it is skipped.
set -uo pipefail

# Program or library, Debian's package, the checks that need it.
programs="libjemalloc.so.2 libjemalloc2 record-harm
libtcmalloc_minimal.so.4 libtcmalloc-minimal4 record-harm
libmimalloc.so.2 libmimalloc2.0 record-harm
redis-server redis-server record-harm redis-clients.sh redis-differential.sh redis-tcl-tests.sh far-programs
redis-benchmark redis-tools redis-clients.sh
mariadbd mariadb-server azekura-lab mariadb
python3 python3 redis-py-tests.sh redis-differential.sh far-programs.py
tclsh tcl redis-tcl-tests.sh
sqlite3 sqlite3 far-programs.py
ip iproute2 cluster-namespaces.sh
valgrind valgrind bindings.sh
qemu-aarch64 qemu-user arm64
aarch64-linux-gnu-gcc crossbuild-essential-arm64 arm64
chromium chromium pages.sh"

where_is() {
    command -v "$1" || compgen -G "/usr/lib*/$1*" || compgen -G "/usr/lib/*-linux-gnu/$1*"
}

install_missing() {
    local program package policy=/usr/sbin/policy-rc.d updated=
    # Services are not started at installation, because each check starts its own servers.
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy
        trap "rm -f $policy" EXIT
    fi
    while read -r program package _; do
        where_is "$program" >/dev/null && continue
        [ -n "$updated" ] || timeout 300 apt-get update -q
        updated=yes
        # One by one, so that a package that cannot be installed does not prevent the others.
        DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -q -y --no-install-recommends "$package" ||
            echo "cannot install $package"
    done <<<"$programs"
}

case "${1:-}" in
"") ;;
--install) install_missing </dev/null ;;
*) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
while read -r program package users; do
    if where=$(where_is "$program"); then
        echo "$program: ${where%%$'\n'*}"
    else
        echo "$program: not here, and so not run: $users (package $package)"
    fi
done <<<"$programs"
