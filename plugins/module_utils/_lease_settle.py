# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Undo what a lease was held for: its deployment's ranks gone, the memory back, what was evicted running again.

The node does it by itself when a lease runs out, and the next run does it when it takes over a lease that nobody settled:
the same code, and for what was evicted the code of gpu_process_reclaim with state=restored.
"""

from __future__ import annotations

import os
import typing as t
from dataclasses import dataclass, field

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import EngineError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._journal import Journal, JournalError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease import Lease
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease_node import LeaseNode
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lock import LockError, NodeLock
from ansible_collections.unimem.dgx_spark.plugins.module_utils._outcome import Options, Outcome
from ansible_collections.unimem.dgx_spark.plugins.module_utils._persist import PersistError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._rank_engines import Rank, find_ranks
from ansible_collections.unimem.dgx_spark.plugins.module_utils._ranks import is_rank_of
from ansible_collections.unimem.dgx_spark.plugins.module_utils._restore import Restorer
from ansible_collections.unimem.dgx_spark.plugins.module_utils._signals import SignalError

#: What came of it: all undone; nothing had been done yet; not (all) undone, to be tried again.
SETTLED, UNTOUCHED, NOT_SETTLED = "settled", "untouched", "not_settled"

_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.0, 1.5, 2.0)

#: Seconds in which a container that was sent SIGKILL has ended, if it can.
_KILL_SECONDS = 10.0


@dataclass
class Settlement:
    """What was done and what came of it."""

    verdict: str = SETTLED
    message: str = ""
    stopped: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    restored: dict[str, t.Any] | None = None

    def as_dict(self) -> dict[str, t.Any]:
        """For results and for the record of what fired."""
        return {"verdict": self.verdict, "detail": self.message, "stopped": self.stopped, "removed": self.removed, "restored": self.restored}


def settle(node: LeaseNode, lease: Lease) -> Settlement:
    """Undo what the lease was held for. The caller holds the lease lock. Never raises for what the world does."""
    done = Settlement()
    deadline = node.clock.boottime() + lease.timeout
    try:
        engines, problems = node.engines()
        if problems:
            return _failed(done, "; ".join(problems))
        ranks = find_ranks(engines, lease.deployment)
        if _untouched(node, lease, ranks):
            done.verdict = UNTOUCHED
            done.message = f"nothing had been done yet: the ranks of deployment {lease.deployment} run as they did when the lease began; they were left alone"
            return done
        # Before the ranks: it would start them again.
        node.let_go(lease.deployment)
        _stop(node, lease, ranks, done)
        _wait_for_memory(node, lease, deadline)
        for rank in ranks:
            rank.engine.remove(rank.id)
            done.removed.append(rank.name)
        if lease.launch_directory:
            node.remove_tree(lease.launch_directory)
    except EngineError as exc:
        return _failed(done, str(exc))
    except (PersistError, _StillThere) as exc:
        return _failed(done, str(exc))
    return _restore(node, lease, deadline, done)


def _failed(done: Settlement, message: str) -> Settlement:
    done.verdict = NOT_SETTLED
    done.message = message
    return done


class _StillThere(Exception):
    """A rank, or its memory, does not go."""


def _untouched(node: LeaseNode, lease: Lease, ranks: t.Sequence[Rank]) -> bool:
    """Whether a group that ran when the lease began still runs, whole, and the journal has not moved: then nothing was begun."""
    if not lease.standing or node.clock.boot_id() != lease.boot_id:
        return False
    running = sorted(rank.id for rank in ranks if rank.row["running"])
    return running == sorted(lease.standing) and node.journal_digest(lease.journal) == lease.journal_digest


def _stop(node: LeaseNode, lease: Lease, ranks: t.Sequence[Rank], done: Settlement) -> None:
    for rank in ranks:
        container = rank.engine.inspect(rank.id)
        if container is None or not container.running:
            continue
        done.stopped.append(rank.name)
        # Its supervisor gives each of its processes the grace, one after the other.
        _quietly(rank.engine.stop, rank.id, lease.grace * 2)
    kill_ranks(node, ranks)
    limit = node.clock.boottime() + _KILL_SECONDS
    for pause in _pauses():
        left = [rank.name for rank in ranks if _runs(rank)]
        if not left:
            return
        if node.clock.boottime() >= limit:
            raise _StillThere(f"{', '.join(left)} did not end, not even by SIGKILL")
        node.pause(pause)


def kill_ranks(node: LeaseNode, ranks: t.Iterable[Rank]) -> list[str]:
    """SIGKILL what still runs of these ranks, through the engine and, where that does not answer, by its first process. Returns the names."""
    killed = []
    for rank in ranks:
        try:
            container = rank.engine.inspect(rank.id)
        except EngineError:
            continue
        if container is None or not container.running:
            continue
        identity = node.identity(container.pid) if container.pid > 0 else None
        try:
            rank.engine.signal(rank.id, "SIGKILL")
        except EngineError:
            if identity is not None:
                try:
                    with node.open_process(identity) as process:
                        process.send(9)
                except SignalError:
                    continue
        killed.append(rank.name)
    return killed


def _runs(rank: Rank) -> bool:
    container = rank.engine.inspect(rank.id)
    return container is not None and container.running


def _quietly(call: t.Callable[..., None], *arguments: t.Any) -> None:
    """What an engine refuses here is seen by looking again."""
    try:
        call(*arguments)
    except EngineError:
        return


def _wait_for_memory(node: LeaseNode, lease: Lease, deadline: float) -> None:
    """A driver can hold a dead process's memory for minutes; what was evicted needs it back."""
    for pause in _pauses():
        facts = node.restoring().gather()
        held = [process for process in facts.get("processes") or [] if is_rank_of(process, lease.deployment)]
        silent = facts.get("class") == "unresponsive"
        if not held and not silent:
            return
        if node.clock.boottime() >= deadline and silent:
            raise _StillThere(f"the driver has not answered for {lease.timeout} s, so that nobody can say whether the memory is back; a reboot ends that")
        if node.clock.boottime() >= deadline:
            names = sorted({str((process.get("owner") or {}).get("name")) for process in held})
            raise _StillThere(f"the driver still lists {', '.join(names)} after {lease.timeout} s")
        node.pause(pause)


def _restore(node: LeaseNode, lease: Lease, deadline: float, done: Settlement) -> Settlement:
    left = max(30.0, deadline - node.clock.boottime())
    who = {"pid": os.getpid(), "user": "the node's lease", "state": "restored", "journal": lease.journal, "since": node.clock.date()}
    try:
        with NodeLock(node.locks, who, wait=left):
            journal = Journal(lease.journal).load()
            restorer = Restorer(node.restoring(), journal, Options(timeout=left), reason=lease.reason)
            outcome = restorer.restore()
    except (JournalError, LockError) as exc:
        return _failed(done, f"the ranks are gone, but nothing could be restored: {exc}")
    done.restored = _told(outcome)
    ranks = f"stopped {', '.join(done.stopped)}" if done.stopped else "no rank ran"
    if outcome.verdict != "restored":
        return _failed(done, f"{ranks}; not all was restored: {outcome.message}")
    done.message = f"{ranks}; {outcome.message}"
    return done


def _told(outcome: Outcome) -> dict[str, t.Any]:
    return {"verdict": outcome.verdict, "message": outcome.message, "changed": outcome.changed, "actions": outcome.actions, "notes": outcome.notes}


def _pauses() -> t.Iterator[float]:
    yield from _PAUSES
    while True:
        yield _PAUSES[-1]
