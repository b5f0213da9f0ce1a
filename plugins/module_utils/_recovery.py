# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much of what was stopped has come back to the pool. Arithmetic on facts; nothing is read here.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.

Its memory may come back minutes after a process, and others go on using the pool meanwhile. What is missing without a living
process that accounts for it tells the one from the other: ``unattributed`` of the facts, and what the driver still lists for
processes that have ended.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.unimem.dgx_spark.plugins.module_utils._signals import DEAD_STATES

#: Memory counts as back when this share of what the driver had listed is: others go on using the pool meanwhile.
BACK_SHARE = 0.9

#: What comes and goes on an idle machine anyway, as a share of the pool.
NOISE_SHARE = 0.005


def is_over(process: t.Mapping[str, t.Any]) -> bool:
    """Whether a process that the driver lists has ended: /proc has it no more, or as a zombie, which holds nothing itself."""
    return process.get("start_time") is None or process.get("state") in DEAD_STATES


def hidden(facts: t.Mapping[str, t.Any]) -> int | None:
    """Bytes of the pool that no living process accounts for; None where that is not known."""
    value = facts.get("unattributed")
    if not isinstance(value, int):
        return None
    return value + sum(process.get("memory") or 0 for process in facts.get("processes") or [] if is_over(process))


@dataclass
class Recovery:
    """The pool over one run. ``released``: bytes that the driver listed for what was stopped so far."""

    released: int = 0
    _facts: t.Mapping[str, t.Any] = field(default_factory=dict)
    _first: t.Mapping[str, t.Any] | None = None

    def see(self, facts: t.Mapping[str, t.Any]) -> None:
        """Take the facts of now; the first ones are those from before."""
        self._facts = facts
        self._first = facts if self._first is None else self._first

    @property
    def is_known(self) -> bool:
        """Whether the part of the pool that nobody accounts for is known, now and from before."""
        return hidden(self._facts) is not None and hidden(self._first or {}) is not None

    @property
    def pending(self) -> int:
        """Bytes of what was stopped that the driver lists no more and that nobody can have yet."""
        now, then = hidden(self._facts), hidden(self._first or {})
        if now is None or then is None:
            return 0
        return min(self.released, max(0, now - then))

    @property
    def is_coming(self) -> bool:
        """Whether what is missing is more than what is missing anyway."""
        return self.pending > self.slack(self.released)

    def slack(self, released: int) -> int:
        """By how much less than was released counts as all of it, in bytes."""
        total = (self._facts.get("memory") or {}).get("total") or 0
        return max(int((1 - BACK_SHARE) * released), int(NOISE_SHARE * total))

    def is_back(self, memory_before: t.Mapping[str, t.Any]) -> bool:
        """Whether the memory of what was stopped is back in the pool, wherever it went from there."""
        before, after = memory_before.get("allocatable"), (self._facts.get("memory") or {}).get("allocatable")
        if before is None or after is None or after - before >= self.released - self.slack(self.released):
            return True
        if self._facts.get("class") == "none":
            return True  # no driver that could keep it
        return self.is_known and not self.is_coming
