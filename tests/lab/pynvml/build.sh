#!/bin/sh
# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
#
# build.sh OUT: a virtual environment with pynvml on each host, as an owner of a Spark makes one (`python3 -m venv
# --system-site-packages /opt/nvidia-ml; /opt/nvidia-ml/bin/pip install nvidia-ml-py`). The hosts' own Python stays without it, as a
# Spark's is: who wants pynvml says ansible_python_interpreter=/opt/nvidia-ml/bin/python3.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
python=$(chroot "$LAB_ROOTFS" /usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
venv=$1/root/opt/nvidia-ml
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

python3 -m venv "$scratch/pip"
"$scratch/pip/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --only-binary=:all: \
    --cache-dir "$LAB_DOWNLOADS" --python-version "$python" --target "$venv/lib/python$python/site-packages" --requirement "$here/requirements.txt"

mkdir -p "$venv/bin"
ln -s /usr/bin/python3 "$venv/bin/python3"
ln -s python3 "$venv/bin/python"
printf 'home = /usr/bin\ninclude-system-site-packages = true\n' > "$venv/pyvenv.cfg"
test -f "$venv/lib/python$python/site-packages/pynvml.py"
