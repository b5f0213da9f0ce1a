#!/bin/sh
# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
#
# build.sh OUT: build the simulated GB10 driver and lay it out below OUT/root, as the lab wants a layer (../README.md).
# build.sh --flat DIR: only the programs and the library, side by side, for the unit tests.
set -eu

if ! command -v gcc > /dev/null; then
    echo "build.sh: gcc is missing; install it (Debian: apt-get install gcc libc6-dev)" >&2
    exit 1
fi
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
flags='-std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror'

# compile DIRECTORY: the two programs and the library. Word splitting of $flags is meant.
compile() {
    # shellcheck disable=SC2086
    gcc $flags -o "$1/gb10-simd" "$here/src/gb10-simd.c" "$here/src/sim.c"
    # shellcheck disable=SC2086
    gcc $flags -o "$1/nvidia-smi" "$here/src/nvidia-smi.c" "$here/src/sim.c" -ldl
    # shellcheck disable=SC2086
    gcc $flags -fPIC -fvisibility=hidden -shared -Wl,-soname,libnvidia-ml.so.1 -Wl,-z,defs \
        -o "$1/libnvidia-ml.so.1" "$here/src/nvml.c" "$here/src/sim.c"
}

if [ "${1-}" = --flat ]; then
    mkdir -p "$2"
    compile "$2"
    exit 0
fi

root=$1/root
library=/usr/lib/$(gcc -print-multiarch)/libnvidia-ml.so.1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
compile "$scratch"
install -D -m 0755 "$scratch/gb10-simd" "$root/usr/sbin/gb10-simd"
install -D -m 0755 "$scratch/nvidia-smi" "$root/usr/bin/nvidia-smi"
install -D -m 0644 "$scratch/libnvidia-ml.so.1" "$root$(dirname "$library")/libnvidia-ml.so.580.142"
ln -s libnvidia-ml.so.580.142 "$root$library"
install -D -m 0755 "$here/gb10-sim-ctl" "$root/usr/sbin/gb10-sim-ctl"
install -D -m 0755 "$here/nvidia-container-runtime-hook" "$root/usr/bin/nvidia-container-runtime-hook"
install -D -m 0644 "$here/gb10_cuda.py" "$root/usr/lib/gb10-sim/gb10_cuda.py"
install -D -m 0644 "$here/files/gb10-sim.conf" "$root/etc/gb10-sim.conf"
install -D -m 0644 "$here/files/dgx-release" "$root/etc/dgx-release"
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
sed "s|@LIBRARY@|$library|" "$here/files/gb10-simd.service" > "$root/etc/systemd/system/gb10-simd.service"
ln -s ../gb10-simd.service "$root/etc/systemd/system/multi-user.target.wants/gb10-simd.service"
