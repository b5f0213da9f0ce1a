# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What reclaiming and restoring are told, and what they tell: options in, an Outcome out.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

SUCCESS = ("reported", "nothing_to_do", "freed", "restored")

#: Points kept of how the memory went; a longer series loses every second one.
_MAX_TRAJECTORY = 128


@dataclass
class Options:
    """How to go about it. Times in seconds."""

    kill_leftovers: bool = False
    cache_paths: list[str] = field(default_factory=list)
    grace: float = 30.0
    timeout: float = 300.0
    rounds: int = 3
    check: bool = False


@dataclass
class Outcome:
    """The result of the module."""

    verdict: str = ""
    would: str | None = None
    message: str = ""
    changed: bool = False
    before: dict[str, t.Any] = field(default_factory=dict)
    after: dict[str, t.Any] = field(default_factory=dict)
    actions: list[dict[str, t.Any]] = field(default_factory=list)
    refused: list[dict[str, t.Any]] = field(default_factory=list)
    spared: list[dict[str, t.Any]] = field(default_factory=list)
    held_by: list[dict[str, t.Any]] = field(default_factory=list)
    trajectory: list[list[float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    #: selectors of ``protect``: those that something on the node matches, and the others
    protection: dict[str, list[str]] = field(default_factory=lambda: {"matched": [], "unmatched": []})
    evicted: list[dict[str, t.Any]] = field(default_factory=list)
    diff_before: dict[str, str] = field(default_factory=dict)
    diff_after: dict[str, str] = field(default_factory=dict)

    def trace(self, seconds: float, memory: t.Mapping[str, t.Any]) -> None:
        """Add a point to the trajectory: what a new CUDA process could get, that many seconds after the start."""
        have = memory.get("allocatable")
        if have is None:
            have = memory.get("available")
        if have is None:
            return
        self.trajectory.append([round(seconds, 2), have])
        if len(self.trajectory) > _MAX_TRAJECTORY:
            # The first and the last stay.
            self.trajectory = [*self.trajectory[:-1:2], self.trajectory[-1]]

    @property
    def freed(self) -> int:
        """Bytes that a new CUDA process can get more than before."""
        now, then = self.after.get("allocatable"), self.before.get("allocatable")
        return max(0, now - then) if isinstance(now, int) and isinstance(then, int) else 0

    def as_result(self, journal: str) -> dict[str, t.Any]:
        """The return values of the module."""
        return {
            "changed": self.changed,
            "verdict": self.verdict,
            "would": self.would,
            "message": self.message,
            "actions": self.actions,
            "refused": self.refused,
            "spared": self.spared,
            "before": self.before,
            "after": self.after,
            "freed": self.freed,
            "held_by": self.held_by,
            "trajectory": self.trajectory,
            "notes": self.notes,
            "protection": self.protection,
            "evicted": self.evicted,
            "journal": journal,
            "diff": {"before": _text(self.diff_before), "after": _text(self.diff_after)},
        }


def _text(states: t.Mapping[str, str]) -> str:
    return "".join(f"{name}: {states[name]}\n" for name in sorted(states))
