# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mounts of the lab on the machine: the hosts' roots, and whatever a broken build left in the cache."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from .command import run
from .errors import LabError


def parse_mountinfo(text: str) -> list[Path]:
    """The mount points of a /proc/self/mountinfo, in the order of mounting."""
    return [Path(line.split()[4].encode().decode("unicode_escape")) for line in text.splitlines() if len(line.split()) > 4]


def below(directories: Sequence[Path]) -> list[Path]:
    """What is mounted at or below one of the directories, latest first."""
    points = parse_mountinfo(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
    return [point for point in reversed(points) if any(point == top or top in point.parents for top in directories)]


def unmount_below(directories: Sequence[Path], deadline: float = 10.0) -> list[Path]:
    """Unmount all below the directories; what stays busy until the deadline (seconds) is detached. Returns what is left."""
    end = time.monotonic() + deadline
    while points := below(directories):
        late = time.monotonic() > end
        for point in points:
            run(["umount", "--lazy", point] if late else ["umount", point], check=False)
        if late:
            break
        if below(directories):
            time.sleep(0.1)
    return below(directories)


def overlay(lowers: Sequence[Path], upper: Path, work: Path, target: Path) -> None:
    """Lay ``upper`` over ``lowers`` (the first is the topmost) at ``target``."""
    for path in (*lowers, upper, work):
        if set(str(path)) & set(":,\\"):
            problem = f"The path {path} contains one of the characters : , \\ which an overlay mount cannot take."
            raise LabError(problem, "Move the checkout or set LAB_DIR and LAB_CACHE.")
    for directory in (upper, work, target):
        directory.mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={':'.join(str(path) for path in lowers)},upperdir={upper},workdir={work}"
    done = run(["mount", "-t", "overlay", "overlay", "-o", options, target], check=False)
    if done.returncode != 0:
        raise LabError(
            f"An overlay file system cannot be made in {upper.parent}: {done.stderr.strip()}",
            "Its file system may itself be an overlay (inside a container): set LAB_DIR to a directory on a disk.",
        )
