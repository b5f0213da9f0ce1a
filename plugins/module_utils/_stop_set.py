# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cheapest set of stoppable owners whose memory is enough.

An owner (unit, container, bare process) is stopped whole, so it counts with the sum of its GPU processes, and only where
every one of them is named by a selector and none is protected.
"""

from __future__ import annotations

import itertools
import typing as t
from dataclasses import dataclass, field

from ansible_collections.unimem.dgx_spark.plugins.module_utils._selectors import Selector

#: 2**12 subsets are tried one by one; beyond that the largest owners are taken first.
_EXHAUSTIVE: t.Final = 12
_STOPPABLE: t.Final = ("unit", "user_unit", "container", "process")


@dataclass
class Owner:
    """One owner of GPU processes that the caller allows to stop."""

    kind: str
    name: str
    unit: str | None
    memory: int = 0
    #: Whether the driver told the memory of all its processes.
    known: bool = True
    pids: list[int] = field(default_factory=list)
    selector: str = ""
    order: int = 0

    def as_dict(self) -> dict[str, t.Any]:
        return {
            "kind": self.kind,
            "name": self.name,
            "unit": self.unit,
            "memory": self.memory,
            "memory_known": self.known,
            "pids": sorted(self.pids),
            "selector": self.selector,
        }


def permitted(processes: t.Any) -> list[Owner]:
    """Owners that could be stopped if somebody permitted it; their selector is the one that would."""
    found = stoppable_owners(processes, [Selector(f"{kind}:*", kind, "*") for kind in ("container", "unit", "process")])
    for owner in found:
        kind = "unit" if owner.unit or owner.kind == "user_unit" else owner.kind
        owner.selector = f"{kind}:{owner.unit or owner.name}"
    return found


def stoppable_owners(processes: t.Any, selectors: t.Sequence[Selector]) -> list[Owner]:
    """Owners all of whose processes match *selectors* and none of which is protected, in the selectors' order."""
    if not isinstance(processes, list):
        return []
    found: dict[tuple[str, str], Owner | None] = {}
    for process in processes:
        if not isinstance(process, dict):
            continue
        raw = process.get("owner")
        owner = raw if isinstance(raw, dict) else {}
        kind, name, unit, identity = (_text(owner.get(part)) for part in ("kind", "name", "unit", "id"))
        pid = process.get("pid")
        # a bare process is its own owner; a unit and the container it runs are one
        key = ("process", str(pid)) if kind == "process" else ("unit", unit) if unit else (kind, identity or name)
        order = next((index for index, selector in enumerate(selectors) if selector.matches(process)), None)
        if order is None or process.get("protected") or kind not in _STOPPABLE:
            found[key] = None
            continue
        if key in found and found[key] is None:
            continue
        entry = found.get(key)
        if entry is None:
            entry = Owner(kind, name or str(process.get("name") or pid), unit or None, selector=selectors[order].text, order=order)
            found[key] = entry
        memory = process.get("memory")
        if isinstance(memory, int) and not isinstance(memory, bool) and memory >= 0:
            entry.memory += memory
        else:
            entry.known = False
        if isinstance(pid, int):
            entry.pids.append(pid)
        if order < entry.order:
            entry.order, entry.selector = order, selectors[order].text
    return sorted((entry for entry in found.values() if entry is not None), key=lambda entry: entry.order)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def cheapest(owners: t.Sequence[Owner], enough: t.Callable[[int], bool]) -> list[Owner] | None:
    """The set to stop: fewest owners, then least memory, then the selectors' order; None: not even all suffice.

    :param enough: tells whether freeing that many bytes is enough; must not turn false for more.
    """
    useful = [owner for owner in owners if owner.memory > 0]
    if not enough(sum(owner.memory for owner in useful)):
        return None
    if len(useful) <= _EXHAUSTIVE:
        for count in range(len(useful) + 1):
            fitting = [subset for subset in itertools.combinations(useful, count) if enough(sum(owner.memory for owner in subset))]
            if fitting:
                return list(min(fitting, key=lambda subset: (sum(owner.memory for owner in subset), [owner.order for owner in subset])))
    taken: list[Owner] = []
    for owner in sorted(useful, key=lambda entry: -entry.memory):
        if enough(sum(entry.memory for entry in taken)):
            break
        taken.append(owner)
    for owner in sorted(taken, key=lambda entry: entry.memory):
        rest = [entry for entry in taken if entry is not owner]
        if enough(sum(entry.memory for entry in rest)):
            taken = rest
    return sorted(taken, key=lambda entry: entry.order)
