# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that make a host itself: name, identity, ssh keys. Written into its root before each boot."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from . import keys, plan, rootfs
from .keys import write
from .paths import Paths

SPARK_UID = 1000


def write_all(paths: Paths, host: plan.Host) -> None:
    """Write them into the mounted root of ``host``."""
    root = host.root
    etc = root / "etc"
    write(etc / "hostname", f"{host.name}\n", 0o644)
    # As Ubuntu's installer writes it, and so a Spark has it: the own name is a loopback address, of no use to a peer.
    write(etc / "hosts", f"127.0.0.1 localhost\n127.0.1.1 {host.name}\n::1 ip6-localhost ip6-loopback\n", 0o644)
    if not (etc / "machine-id").exists():
        write(etc / "machine-id", f"{uuid.uuid4().hex}\n", 0o444)
    _copy_key(paths, keys.host_key(host.name), etc / "ssh" / "ssh_host_ed25519_key")
    _copy(paths.known_hosts, etc / "ssh" / "ssh_known_hosts", 0o644)

    # Each node's root reaches the others over the fabric, as NVIDIA's discover-sparks leaves two Sparks.
    accepted = [keys.public(paths, keys.CLIENT)]
    accepted += [keys.public(paths, keys.node_key(other.name)) for other in plan.HOSTS if other is not host]
    home = root / "root"
    home.chmod(0o700)
    _authorize(home / ".ssh", accepted, 0)
    _copy_key(paths, keys.node_key(host.name), home / ".ssh" / "id_ed25519")
    _authorize(root / "home" / rootfs.USER / ".ssh", accepted[:1], SPARK_UID)


def _copy(source: Path, target: Path, mode: int) -> None:
    write(target, source.read_text(encoding="utf-8"), mode)


def _copy_key(paths: Paths, name: str, target: Path) -> None:
    _copy(paths.keys / name, target, 0o600)
    _copy(paths.keys / f"{name}.pub", target.with_name(f"{target.name}.pub"), 0o644)


def _authorize(directory: Path, accepted: list[str], owner: int) -> None:
    """Make sure that these keys are accepted; what a test added stays."""
    directory.mkdir(mode=0o700, exist_ok=True)
    file = directory / "authorized_keys"
    present = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    write(file, "".join(f"{line}\n" for line in [*present, *(key for key in accepted if key not in present)]))
    for path in (directory, file):
        os.chown(path, owner, owner)
