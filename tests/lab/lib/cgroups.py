# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's control groups: what bounds a host's memory, and by which everything of the lab is found again.

Below a group ``unimem-lab`` of our own there is one group for each host, with its memory limit, one for the helpers on
the machine and one for builds. A process of the lab is in one of them from before its start, so after a crash nothing
needs to be remembered: what is in the groups is ours, and nothing else is.
"""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import LabError
from .plan import NAME

ROOT = Path("/sys/fs/cgroup")
V1_CONTROLLERS = ("memory", "cpu", "cpuacct", "cpuset", "devices", "freezer", "blkio", "pids")
V2_CONTROLLERS = ("memory", "cpu", "cpuset", "io", "pids")
#: Groups that are not hosts: the helpers that serve the hosts, and what builds their parts.
HELPERS = "helpers"
BUILDS = "builds"


@dataclass(frozen=True)
class Mount:
    """One mounted cgroup file system: ``controllers`` of a v1 hierarchy (``name=systemd`` included), empty for v2."""

    directory: Path
    version: int
    controllers: frozenset[str]


def parse_mounts(text: str) -> list[Mount]:
    """The cgroup mounts of a /proc/mounts."""
    mounts = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 4:
            continue
        directory = Path(words[1].encode().decode("unicode_escape"))
        if words[2] == "cgroup":
            mounts.append(Mount(directory, 1, frozenset(words[3].split(","))))
        elif words[2] == "cgroup2":
            mounts.append(Mount(directory, 2, frozenset()))
    return mounts


class Groups(ABC):
    """The lab's groups in all hierarchies that matter."""

    version: int

    @abstractmethod
    def directories(self, group: str) -> list[Path]:
        """The directory of a group in each hierarchy (also when it does not exist)."""

    @abstractmethod
    def create(self, group: str, memory: int | None = None) -> None:
        """Make a group, with a memory limit in bytes where given."""

    @abstractmethod
    def memory_directory(self, group: str) -> Path:
        """Where the group's memory figures are."""

    def lacking(self) -> list[str]:
        """What the lab needs and this kernel's groups do not have, in words; asked after a group was made."""
        return []

    def join(self, group: str) -> None:
        """Put the calling process into a group; for use between fork and exec."""
        for directory in self.directories(group):
            (directory / "cgroup.procs").write_text("0", encoding="ascii")

    def tops(self) -> list[Path]:
        """The lab's top directory in each hierarchy."""
        return self.directories("")

    def groups(self) -> list[str]:
        """The names of the groups that exist in any hierarchy."""
        names = {entry.name for top in self.tops() if top.is_dir() for entry in top.iterdir() if entry.is_dir()}
        return sorted(names)

    def processes(self, group: str) -> set[int]:
        """The processes in a group and below it."""
        found: set[int] = set()
        for top in self.directories(group):
            for directory in _walk(top):
                try:
                    text = (directory / "cgroup.procs").read_text(encoding="ascii")
                except OSError:  # gone meanwhile
                    continue
                found.update(int(word) for word in text.split())
        return found - {0, os.getpid()}

    def kill(self, group: str, deadline: float = 20.0) -> set[int]:
        """SIGKILL all in a group until none is left; returns those that are still there at the deadline (seconds)."""
        end = time.monotonic() + deadline
        self._thaw(group)
        while left := self.processes(group):
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if time.monotonic() > end:
                return left
            time.sleep(0.05)
        return set()

    def _thaw(self, group: str) -> None:
        """Under v1 a frozen process (a paused container, one frozen by the driver's knobs) takes no signal, not even KILL. Under v2 it does."""
        for directory in self.directories(group):
            for state in directory.rglob("freezer.state"):
                try:
                    state.write_text("THAWED", encoding="ascii")
                except FileNotFoundError:
                    continue

    @abstractmethod
    def forget_cache(self, group: str) -> None:
        """Drop the page cache charged to a group: as a machine does that is switched off.

        It would outlive the group, charged to nobody, and the next start of the host would find its files cached for free.
        """

    def remove(self, deadline: float = 10.0) -> list[Path]:
        """Remove every group; returns the directories that would not go."""
        end = time.monotonic() + deadline
        while True:
            left = []
            for top in self.tops():
                for directory in _walk(top):
                    try:
                        directory.rmdir()
                    except FileNotFoundError:
                        continue
                    except OSError:
                        left.append(directory)
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.05)  # a group of processes that just ended is busy for some milliseconds


class GroupsV1(Groups):
    """One hierarchy a controller (also the hybrid layout, whose v2 side has no controllers)."""

    version = 1

    def __init__(self, mounts: list[Mount]) -> None:
        wanted = (*V1_CONTROLLERS, "name=systemd")
        self.by_controller = {name: mount.directory for mount in mounts for name in wanted if name in mount.controllers}
        self.unified = next((mount.directory for mount in mounts if mount.version == 2), None)

    def hierarchies(self) -> list[Path]:
        tops = list(dict.fromkeys(self.by_controller.values()))
        return [*tops, self.unified] if self.unified else tops

    def directories(self, group: str) -> list[Path]:
        return [directory / NAME / group for directory in self.hierarchies()]

    def memory_directory(self, group: str) -> Path:
        return self.by_controller["memory"] / NAME / group

    def create(self, group: str, memory: int | None = None) -> None:
        for directory in self.directories(group):
            for step in (directory.parent, directory):
                step.mkdir(exist_ok=True)
                if (step / "cpuset.cpus").exists():  # a new cpuset is empty, and nothing can join it
                    for name in ("cpuset.cpus", "cpuset.mems"):
                        if not (step / name).read_text(encoding="ascii").strip():
                            (step / name).write_text((step.parent / name).read_text(encoding="ascii"), encoding="ascii")
        if memory is not None:
            top = self.memory_directory(group)
            (top / "memory.swappiness").write_text("0", encoding="ascii")  # the pool has no swap
            (top / "memory.limit_in_bytes").write_text(str(memory), encoding="ascii")

    def forget_cache(self, group: str) -> None:
        (self.memory_directory(group) / "memory.force_empty").write_text("0", encoding="ascii")


class GroupsV2(Groups):
    """The unified hierarchy.

    A group that has groups with controllers may have no processes itself, so systemd-nspawn makes two in its own: ``supervisor``
    for itself and ``payload`` for the host's systemd. The limit is above both.
    """

    version = 2

    def __init__(self, top: Path) -> None:
        self.top = top

    def directories(self, group: str) -> list[Path]:
        return [self.top / NAME / group]

    def memory_directory(self, group: str) -> Path:
        return self.top / NAME / group

    def create(self, group: str, memory: int | None = None) -> None:
        directory = self.top / NAME / group
        directory.parent.mkdir(exist_ok=True)
        for parent in (self.top, directory.parent):
            offered = set((parent / "cgroup.controllers").read_text(encoding="ascii").split())
            wanted = [f"+{name}" for name in V2_CONTROLLERS if name in offered]
            (parent / "cgroup.subtree_control").write_text(" ".join(wanted), encoding="ascii")
        directory.mkdir(exist_ok=True)
        if memory is not None:
            (directory / "memory.swap.max").write_text("0", encoding="ascii")
            (directory / "memory.max").write_text(str(memory), encoding="ascii")

    def lacking(self) -> list[str]:
        offered = set((self.top / "cgroup.controllers").read_text(encoding="ascii").split())
        lacking = [f"the controller {name}" for name in V2_CONTROLLERS if name not in offered]
        if "memory" in offered and not (self.memory_directory(BUILDS) / "memory.reclaim").exists():
            lacking.append("memory.reclaim (Linux 5.19)")
        return lacking

    def forget_cache(self, group: str) -> None:
        directory = self.memory_directory(group)
        reclaim(directory, int((directory / "memory.current").read_text(encoding="ascii")))


def reclaim(directory: Path, size: int) -> None:
    """Free ``size`` bytes of a v2 group's memory, or what can go of it. Only file pages and slab can: the lab has no swap."""
    # Not through a buffered file: that would write a second time when it is closed.
    descriptor = os.open(directory / "memory.reclaim", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, str(size).encode("ascii"))
    except BlockingIOError:  # less than asked could go: the rest is dirty or in use
        return
    finally:
        os.close(descriptor)


def _walk(top: Path) -> Iterator[Path]:
    """All directories below ``top`` and itself, deepest first."""
    for directory, _names, _files in os.walk(top, topdown=False):
        yield Path(directory)


def find(text: str | None = None) -> Groups:
    """The groups of this machine; raises LabError for a layout in which the lab cannot run."""
    mounts = parse_mounts(Path("/proc/mounts").read_text(encoding="utf-8") if text is None else text)
    if any("memory" in mount.controllers for mount in mounts):
        groups = GroupsV1(mounts)
        missing = [name for name in V1_CONTROLLERS if name not in groups.by_controller]
        if missing:
            raise LabError(
                f"The cgroup v1 controllers {', '.join(missing)} are not mounted on this machine.",
                "Mount them below /sys/fs/cgroup (Debian's package cgroupfs-mount does), then try again.",
            )
        return groups
    for mount in mounts:
        if mount.version == 2:
            return GroupsV2(mount.directory)
    raise LabError("No cgroup file system is mounted on this machine.", "The lab needs one, with the memory controller, at /sys/fs/cgroup.")
