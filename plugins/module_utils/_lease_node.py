# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""The node of a lease: all that holding, guarding and settling one need of the world, in one place."""

from __future__ import annotations

import hashlib
import os
import shutil
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease import DIRECTORY
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease_look import LiveLookNode, LookNode
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease_units import LeaseUnits
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lock import lock_directory
from ansible_collections.unimem.dgx_spark.plugins.module_utils._meminfo import MEMINFO, parse_meminfo
from ansible_collections.unimem.dgx_spark.plugins.module_utils._node import LiveNode, Node
from ansible_collections.unimem.dgx_spark.plugins.module_utils._persist_units import let_go
from ansible_collections.unimem.dgx_spark.plugins.module_utils._signals import Identity, ProcessHandle, Signaller, read_identity
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import LiveWorld, World

_MAX_JOURNAL = 16 * 1024 * 1024


class Units(t.Protocol):
    """The units of a lease, see LeaseUnits."""

    def arm(self, command: t.Sequence[str], guard: bool, ttl: float) -> None: ...

    def missing(self, guard: bool) -> list[str]: ...

    def rest(self, from_service: bool = False) -> None: ...

    def disarm(self, from_service: bool = False) -> None: ...

    def left(self) -> list[str]: ...


class LeaseNode(LookNode, t.Protocol):
    """One machine with a lease. Tests put an invented one in its place."""

    units: Units
    locks: str  # the directory of the node's locks

    def restoring(self) -> Node:
        """The node as gpu_process_reclaim sees it."""

    def available(self) -> int | None:
        """MemAvailable in bytes; None when the kernel does not say."""

    def identity(self, pid: int) -> Identity | None:
        """What process that is now."""

    def open_process(self, identity: Identity) -> ProcessHandle:
        """Pin a process. Raises SignalError."""

    def journal_digest(self, path: str) -> str:
        """A hash of the journal as it is; empty when there is none."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all that is in it, as far as that can be done; no link is followed."""

    def let_go(self, deployment: str) -> bool:
        """Remove what would start a deployment's rank again. Whether there was anything. Raises PersistError."""

    def pause(self, seconds: float) -> None:
        """Let a moment pass."""


class LiveLeaseNode(LiveLookNode):
    """This machine. ``engine_timeout``: seconds that a container engine has for an answer."""

    def __init__(self, world: World | None = None, directory: str = DIRECTORY, engine_timeout: float = 15.0) -> None:
        super().__init__(world or LiveWorld(), directory, engine_timeout)
        self._node = LiveNode(self._world)
        self._signaller = Signaller(self._world)
        self.units: Units = LeaseUnits(self._world, directory)
        self.locks = lock_directory()

    def restoring(self) -> Node:
        """See LeaseNode."""
        return self._node

    def available(self) -> int | None:
        """See LeaseNode."""
        return parse_meminfo(self._world.read_text(MEMINFO) or "").get("MemAvailable")

    def identity(self, pid: int) -> Identity | None:
        """See LeaseNode."""
        return read_identity(self._world, pid)

    def open_process(self, identity: Identity) -> ProcessHandle:
        """See LeaseNode."""
        return self._signaller.open(identity)

    def journal_digest(self, path: str) -> str:
        """See LeaseNode."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                return hashlib.sha256(file.read(_MAX_JOURNAL)).hexdigest()
        except OSError:
            return ""

    def remove_tree(self, path: str) -> None:
        """See LeaseNode."""
        shutil.rmtree(path, ignore_errors=True)

    def let_go(self, deployment: str) -> bool:
        """See LeaseNode."""
        return let_go(self._world, deployment)

    def pause(self, seconds: float) -> None:
        """See LeaseNode."""
        self._node.pause(seconds)
