# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Guard a node's memory while a model loads: below the floor for some seconds, the launch's ranks are killed.

On unified memory a loading model can take all that the kernel needs to go on; the node then answers ping and nothing else, and
only the power switch helps. So it is the node itself that ends the launch, whether or not anybody reaches it, and before that.
It stays in its own memory (a guard that has to be paged in first is none), and knows the ranks' first processes beforehand, so
that it needs no container engine's answer to end them.
"""

from __future__ import annotations

import contextlib
import ctypes
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import EngineError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease import MEMORY_FLOOR, Lease, LeaseError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease_node import LeaseNode
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease_settle import kill_ranks
from ansible_collections.unimem.dgx_spark.plugins.module_utils._rank_engines import Rank, find_ranks
from ansible_collections.unimem.dgx_spark.plugins.module_utils._signals import Identity, SignalError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import format_size

#: Seconds between two looks at the memory, at the ranks, and at the lease.
LOOK_SECONDS = 1.0
RANKS_SECONDS = 5.0

_MCL_CURRENT_AND_FUTURE = 3
_SIGKILL = 9


class FloorWatch:
    """Tells a memory that stays below a floor from one that only dips."""

    def __init__(self, floor: int, seconds: float) -> None:
        self.floor = floor
        self.seconds = seconds
        self.lowest: int | None = None
        self._since: float | None = None

    def look(self, available: int | None, now: float) -> bool:
        """Whether it has been below the floor for long enough. What is unknown is no breach, and ends none."""
        if available is None:
            return False
        if available >= self.floor:
            self._since = None
            self.lowest = None
            return False
        self.lowest = available if self.lowest is None else min(available, self.lowest)
        if self._since is None:
            self._since = now
        return now - self._since >= self.seconds


class Guard:
    """The guard of one node: ``watch`` until there is no lease any more."""

    def __init__(self, node: LeaseNode) -> None:
        self._node = node
        self._watch: FloorWatch | None = None
        self._first: dict[str, Identity] = {}  # rank's name -> its container's first process
        self._ranks_at = float("-inf")

    def watch(self) -> None:
        """Look until the lease is gone. Raises LeaseError for a lease that cannot be read."""
        while self.look():
            self._node.pause(LOOK_SECONDS)

    def look(self) -> bool:
        """One look. False when there is nothing to guard any more."""
        lease = self._node.store.load()
        if lease is None or lease.floor <= 0 or self._node.clock.boot_id() != lease.boot_id:
            return False
        if self._watch is None or (self._watch.floor, self._watch.seconds) != (lease.floor, lease.floor_seconds):
            self._watch = FloorWatch(lease.floor, lease.floor_seconds)
        now = self._node.clock.boottime()
        breached = self._watch.look(self._node.available(), now)
        if breached:
            self._end_launch(lease, self._watch)
        elif now - self._ranks_at >= RANKS_SECONDS:
            self._ranks_at = now
            self._remember(self._ranks(lease))
        return True

    def _ranks(self, lease: Lease) -> list[Rank]:
        try:
            return [rank for rank in find_ranks(self._node.engines()[0], lease.deployment) if rank.row["running"]]
        except EngineError:
            return []

    def _remember(self, ranks: t.Sequence[Rank]) -> None:
        found: dict[str, Identity] = {}
        for rank in ranks:
            try:
                container = rank.engine.inspect(rank.id)
            except EngineError:
                continue
            identity = self._node.identity(container.pid) if container is not None and container.pid > 0 else None
            if identity is not None:
                found[rank.name] = identity
        if found or not self._first:
            self._first = found

    def _end_launch(self, lease: Lease, watch: FloorWatch) -> None:
        """The processes known already first: the first process of a container takes all others with it. Then whatever the engine knows."""
        killed = []
        for name, identity in self._first.items():
            with contextlib.suppress(SignalError), self._node.open_process(identity) as process:
                process.send(_SIGKILL)
                killed.append(name)
        self._first = {}
        killed += [name for name in kill_ranks(self._node, self._ranks(lease)) if name not in killed]
        if not killed:
            return  # nobody of ours is to blame
        lowest = watch.lowest or 0
        detail = (
            f"MemAvailable stayed below {format_size(lease.floor)} for {lease.floor_seconds:g} s (down to {format_size(lowest)}); "
            f"the node killed {', '.join(killed)} to stay alive"
        )
        event = {"reason": MEMORY_FLOOR, "detail": detail, "stopped": killed, "removed": [], "restored": None, "floor": lease.floor, "lowest": lowest}
        with contextlib.suppress(LeaseError):
            self._node.store.save_fired(lease, self._node.clock, event)


def stay_in_memory() -> bool:
    """Keep all of this process in memory, now and later. Whether the machine let us."""
    try:
        return bool(ctypes.CDLL(None, use_errno=True).mlockall(_MCL_CURRENT_AND_FUTURE) == 0)
    except (OSError, AttributeError):
        return False
