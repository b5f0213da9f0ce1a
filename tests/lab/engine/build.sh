#!/bin/bash
# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
#
# build.sh OUT: what spark-01's owner would have had already - the engine's base image, pulled, and the model, downloaded.
# The contract (environment, layout of OUT) is in ../README.md.
set -euo pipefail

IMAGE=unimem-lab/vllm-cpu-base:0.32.0
PACKAGES=usr/local/lib/python3.11/dist-packages

out=$1
rootfs=${LAB_ROOTFS:?}
downloads=${LAB_DOWNLOADS:?}
host="$out/hosts/spark-01/root"
scratch=$(mktemp -d "$downloads/build.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

say() { echo "engine: $*"; }
die() { echo "engine: $*" >&2; exit 1; }

# Run a command inside the tree, with its own /proc, in a mount namespace that ends with it: nothing stays mounted.
inside() {
    local tree=$1
    shift
    unshare --mount --propagation private /bin/sh -ec '
        tree=$1; hub=$2; shift 2
        mount -t proc proc "$tree/proc"
        mount -t tmpfs tmpfs "$tree/tmp"
        mkdir "$tree/tmp/hub"
        mount --bind "$hub" "$tree/tmp/hub"
        exec chroot "$tree" env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/tmp LC_ALL=C.UTF-8 HF_HUB_OFFLINE=1 "$@"
    ' sh "$tree" "$hub" "$@"
}

[ "$(uname -m)" = x86_64 ] || die "the lab's engine is pinned for x86-64, this machine is $(uname -m)"

# --- the operating system of the image: Debian's, with Debian's Python 3.11 ---------------------------------------------
tree="$scratch/tree"
mirror=$(awk '$1 == "deb" {for (i = 2; i <= NF; i++) if ($i !~ /^\[|\]$/) {print $i; exit}}' "$rootfs/etc/apt/sources.list")
[ -n "$mirror" ] || die "no Debian package source in $rootfs/etc/apt/sources.list"
mkdir -p "$downloads/debs"
say "installing Debian 12 (python3, libnuma1) for the image"
debootstrap --variant=minbase --cache-dir="$downloads/debs" --include=python3,libnuma1,ca-certificates,procps bookworm "$tree" "$mirror" > "$scratch/debootstrap.log" 2>&1 \
    || { tail -n 20 "$scratch/debootstrap.log" >&2; die "debootstrap failed"; }
rm -rf "$tree"/var/cache/apt/* "$tree"/var/lib/apt/lists/* "$tree"/usr/share/{doc,info,locale,man}/* "$tree"/var/log/*

# --- the engine ---------------------------------------------------------------------------------------------------------
# Wheels for the image's Python (3.11, glibc 2.36), whichever Python this machine has.
say "installing the engine's $(grep -c '==' requirements.txt) Python packages (about 2.3 GB)"
python3 -m venv "$scratch/pip"
platforms=()
for glibc in 36 35 34 31 28 27 26 24 17 12 5; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
for old in manylinux2014 manylinux2010 manylinux1 linux; do platforms+=(--platform "${old}_x86_64"); done
"$scratch/pip/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --only-binary=:all: \
    --python-version 3.11 --implementation cp --abi cp311 --abi abi3 --abi none "${platforms[@]}" \
    --target "$tree/$PACKAGES" --requirement requirements.txt \
    || die "pip could not install requirements.txt; if it found no torch==…+cpu: name an index that has PyTorch's CPU builds in PIP_EXTRA_INDEX_URL"

while read -r pattern; do
    case $pattern in '' | '#'*) continue ;; esac
    mapfile -t matches < <(cd "$tree/$PACKAGES" && compgen -G "$pattern")
    [ ${#matches[@]} -gt 0 ] || die "trim.txt: nothing in the engine matches $pattern"
    (cd "$tree/$PACKAGES" && rm -rf -- "${matches[@]}")
done < trim.txt
strip --strip-debug "$tree/$PACKAGES"/vllm/*.so
rm -rf "$tree/$PACKAGES/bin"
for program in vllm:vllm.entrypoints.cli.main:main ray:ray.scripts.scripts:main; do
    IFS=: read -r name module function <<< "$program"
    # The guard matters: a rank is spawned, and a spawned process imports the program again.
    printf '#!/usr/bin/python3.11\nimport sys\n\nfrom %s import %s\n\nif __name__ == "__main__":\n    sys.exit(%s())\n' \
        "$module" "$function" "$function" > "$tree/usr/local/bin/$name"
    chmod 0755 "$tree/usr/local/bin/$name"
done
install -m 0644 ../driver/gb10_cuda.py "$tree/$PACKAGES/gb10_cuda.py"

# --- the model, made by the engine's own libraries --------------------------------------------------------------------
hub="$host/root/.cache/huggingface/hub"
mkdir -p "$hub"
install -m 0644 make_model.py "$tree/usr/local/bin/make_model.py"
inside "$tree" python3.11 /usr/local/bin/make_model.py /tmp/hub
rm "$tree/usr/local/bin/make_model.py"

# Byte code for what a serving engine imports, and no more (for everything it would be 400 MB): without it each
# container would compile for ten seconds a process.
say "compiling what the engine imports"
inside "$tree" python3.11 -c '
import importlib
for name in """vllm.entrypoints.cli.main vllm.entrypoints.cli.serve vllm.entrypoints.openai.api_server vllm.v1.engine.core
               vllm.v1.executor.multiproc_executor vllm.v1.executor.ray_executor_v2 vllm.v1.worker.cpu_worker
               vllm.model_executor.models.qwen3_next ray.scripts.scripts ray._private.workers.default_worker""".split():
    importlib.import_module(name)
' > "$scratch/import.log" 2>&1 || { tail -n 20 "$scratch/import.log" >&2; die "the engine cannot be imported in its image"; }

# --- what the host gets -------------------------------------------------------------------------------------------------
images="$host/var/lib/unimem-lab/images"
mkdir -p "$images"
say "packing the image"
tar --create --file "$images/vllm-cpu-base.tar" --directory "$tree" --numeric-owner --exclude='./proc/*' --exclude='./sys/*' --exclude='./dev/*' .
printf '%s\n' "$IMAGE" 'ENV PATH=/usr/local/bin:/usr/bin:/bin' 'ENV LANG=C.UTF-8' 'WORKDIR /' > "$images/vllm-cpu-base.import"
say "base image $(du -m "$images/vllm-cpu-base.tar" | cut -f1) MB"
