#!/bin/sh
# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
#
# build.sh OUT: what runs on the second Spark before anybody deploys a model (../README.md says what a layer is).
# build.sh --flat DIR: only the two programs, for the unit tests.
set -eu

if ! command -v gcc > /dev/null; then
    echo "build.sh: gcc is missing; install it (Debian: apt-get install gcc libc6-dev)" >&2
    exit 1
fi
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
driver=$here/../driver/src
# Static: the image is FROM scratch, and the same program starts on any distribution.
flags="-std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -static -I$here/src -I$driver"

# compile DIRECTORY. Word splitting of $flags is meant.
compile() {
    common="$here/src/http.c $here/src/gpu.c $driver/sim.c"
    # shellcheck disable=SC2086
    gcc $flags -o "$1/vllm" "$here/src/vllm.c" "$here/src/json.c" "$here/src/embedding.c" $common -lm -lpthread
    # shellcheck disable=SC2086
    gcc $flags -o "$1/llama-server" "$here/src/llama-server.c" $common -lpthread
}

if [ "${1-}" = --flat ]; then
    mkdir -p "$2"
    compile "$2"
    exit 0
fi

root=$1/root
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
compile "$scratch"

# The image: one static program.
install -D -m 0755 -s "$scratch/vllm" "$scratch/image/usr/local/bin/vllm"
install -d -m 1777 "$scratch/image/tmp"
images=$root/var/lib/unimem-lab/images
mkdir -p "$images"
tar --create --file "$images/vllm-embeddings.tar" --directory "$scratch/image" --sort=name --owner=0 --group=0 --numeric-owner \
    --mtime="@${SOURCE_DATE_EPOCH:-0}" .
install -m 0644 "$here/files/vllm-embeddings.import" "$images/vllm-embeddings.import"

units=$root/etc/systemd/system
mkdir -p "$units/multi-user.target.wants"
for unit in vllm-embeddings unimem-lab-stray; do
    install -m 0644 "$here/files/$unit.service" "$units/$unit.service"
    ln -s "../$unit.service" "$units/multi-user.target.wants/$unit.service"
done
for program in vllm-embeddings-container alice-leaves-llama; do
    install -D -m 0755 "$here/files/$program" "$root/usr/local/sbin/$program"
done
install -D -m 0644 "$here/files/alice.conf" "$root/usr/lib/sysusers.d/alice.conf"

# What alice has: 336 MiB of model (a hole in a file) and a context of 64 make 400 MiB, a Spark's 7.8 GiB.
home=$root/home/alice
install -D -m 0755 -s "$scratch/llama-server" "$home/llama.cpp/build/bin/llama-server"
mkdir -p "$home/models"
truncate --size 336M "$home/models/qwen2.5-coder-3b-q4_k_m.gguf"
chown -R 1001:1001 "$home"
chmod 0755 "$home"
