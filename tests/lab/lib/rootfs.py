# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The root file system that both hosts share: Debian 12 by debootstrap, kept in the cache under the hash of its recipe."""

from __future__ import annotations

import inspect
import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path

from . import aptsources, recipe
from .command import run, run_logged

SUITE = "bookworm"
PACKAGES = (
    "busybox-static",
    "ca-certificates",
    "curl",
    "dbus",
    "dbus-user-session",
    "docker.io",
    "ethtool",
    "iproute2",
    "iptables",
    "iputils-ping",
    "kmod",
    "less",
    "libnuma1",
    "libpam-systemd",
    "openssh-server",
    "procps",
    "psmisc",
    "python3",
    "python3-requests",
    "rsync",
    "sudo",
    "systemd",
    "systemd-sysv",
)
#: What a Spark's own user is here; in no group but those that DGX OS puts its first user in.
USER = "spark"
#: Units that a host of the lab has no use for, or that would act on the machine (sysctls, clock).
MASKED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "console-getty.service",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty.target",
    "systemd-networkd.service",
    "systemd-pstore.service",
    "systemd-sysctl.service",
    "systemd-timesyncd.service",
)
#: Removed from the shared root: each host gets its own.
OWN_OF_A_HOST = ("etc/machine-id", "var/lib/dbus/machine-id", "etc/hostname")


def key() -> str:
    """The hash of this recipe: what is installed, and what is done to it after."""
    parts = [platform.machine(), SUITE, *PACKAGES, USER, *MASKED, *OWN_OF_A_HOST, inspect.getsource(customise)]
    return recipe.hash_paths(Path(__file__).parent, [], parts)


def directory(cache: Path) -> Path:
    return cache / f"rootfs-{key()}"


def mirror() -> str | None:
    """LAB_MIRROR, else the machine's own Debian mirror, else None (debootstrap then takes its own default)."""
    return os.environ.get("LAB_MIRROR") or aptsources.debian_mirror(aptsources.read_sources())


def build(cache: Path, log: Path, before_exec: Callable[[], None]) -> Path:
    """Make the root file system unless it is there; returns its directory."""
    target = directory(cache)
    if target.is_dir():
        return target
    partial = cache / f"{target.name}.partial"
    if partial.exists():
        shutil.rmtree(partial)
    partial.parent.mkdir(parents=True, exist_ok=True)
    argv: list[str | Path] = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, partial]
    if source := mirror():
        argv.append(source)
    run_logged(argv, log, what="debootstrap", timeout=1800, before_exec=before_exec)
    customise(partial)
    partial.rename(target)
    return target


def customise(root: Path) -> None:
    """What both hosts have in common and no layer can say: users, and what must not be shared."""
    run(["chroot", root, "useradd", "--create-home", "--uid", "1000", "--shell", "/bin/bash", "--groups", "sudo,docker", USER])
    sudoers = root / "etc/sudoers.d" / USER
    sudoers.write_text(f"{USER} ALL=(ALL) NOPASSWD: ALL\n", encoding="ascii")
    sudoers.chmod(0o440)
    for unit in MASKED:
        (root / "etc/systemd/system" / unit).unlink(missing_ok=True)
        (root / "etc/systemd/system" / unit).symlink_to("/dev/null")
    for name in OWN_OF_A_HOST:
        (root / name).unlink(missing_ok=True)
    for file in (root / "etc/ssh").glob("ssh_host_*"):
        file.unlink()
    for archive in (root / "var/cache/apt/archives").glob("*.deb"):
        archive.unlink()
