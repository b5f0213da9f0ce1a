# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts' disks: a root laid over the shared parts, and a directory for Docker. They outlive a shutdown, as disks do."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from . import mounts, plan
from .keys import write
from .paths import Paths


def attach(paths: Paths, host: plan.Host, lowers: Sequence[Path]) -> bool:
    """Mount a host's root. Returns whether its disk is new: what was written over other lower parts is thrown away.

    Docker's directory is kept then: images take minutes to load, and what Docker knows does not depend on the root.
    """
    disk = paths.disk(host.name)
    stamp = disk / "lowers"
    wanted = "".join(f"{path}\n" for path in lowers)
    fresh = not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted
    if fresh:
        for name in ("upper", "work"):
            if (disk / name).exists():
                shutil.rmtree(disk / name)
        stamp.unlink(missing_ok=True)
    mounts.overlay(lowers, disk / "upper", disk / "work", host.root)
    write(stamp, wanted)
    return fresh


def docker(paths: Paths, host: plan.Host) -> Path:
    return paths.disk(host.name) / "docker"


def wipe(paths: Paths) -> None:
    """Throw the disks of all hosts away (the lab must be down)."""
    if (paths.state / "hosts").exists():
        shutil.rmtree(paths.state / "hosts")
