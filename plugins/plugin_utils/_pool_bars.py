# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""A node's pool as bars: as it was measured at a moment, and as a budget would fill it."""

from __future__ import annotations

import typing as t
from collections.abc import Collection, Mapping, Sequence

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._bars import POOL_KINDS, Bar, Kind, Segment

#: The terms of a budget, in the order in which they are stacked.
TERM_KINDS: t.Final[Mapping[str, Kind]] = {
    "weights": Kind("weights", "#77AADD"),
    "kv_cache": Kind("KV cache", "#44BB99"),
    "recurrent_state": Kind("recurrent state", "#99DDFF"),
    "activations": Kind("activations and loading", "#BBCC33"),
    "graphs": Kind("graphs", "#AAAA00"),
    "cuda_context": Kind("CUDA context", "#FFAABB"),
    "communication": Kind("communication", "#CCA9DD"),
    "host_process": Kind("engine's host processes", "#D9B38C"),
    "reserve": Kind("left for the system", "#C8D5B9"),
}
#: All kinds that pool_bar and plan_bar use.
KINDS: t.Final[Mapping[str, Kind]] = {
    "stopped": Kind("held now, would be stopped", "#FF7F6E"),
    **POOL_KINDS,
    **TERM_KINDS,
    "stays": Kind("in use and stays", "#EFCFC4"),
    "spare": Kind("spare", "#F4F9F4"),
}


def pool_bar(group: str, label: str, memory: Mapping[str, t.Any], holders: Sequence[Mapping[str, t.Any]], stopped: Collection[str] = ()) -> Bar:
    """The pool as it was measured.

    :param memory: ``memory`` of gpu_memory_facts.
    :param holders: who holds memory at the driver, as ``holders`` of _report returns them.
    :param stopped: names of the holders that would be stopped.
    """
    whole, free = _figure(memory, "total"), _figure(memory, "cuda_free", "free")
    evictable = max(0, _figure(memory, "allocatable", "available") - free)
    segments = []
    for kind, wanted in (("stopped", True), ("held", False)):
        segments += [
            Segment(kind, _figure(entry, "memory"), f"{entry.get('kind')} {entry.get('name')}") for entry in holders if (entry.get("name") in stopped) is wanted
        ]
    held = sum(segment.size for segment in segments)
    segments += [Segment("other", max(0, whole - free - evictable - held)), Segment("page_cache", evictable), Segment("free", free)]
    return Bar(group, label, tuple(segments), whole)


def plan_bar(group: str, label: str, memory: Mapping[str, t.Any], budget: Mapping[str, t.Any]) -> Bar:
    """The pool as the budget would fill it; what goes beyond the pool's end is too much."""
    whole = _figure(memory, "total")
    freed = sum(_figure(entry, "memory") for entry in budget.get("stop") or [] if isinstance(entry, Mapping))
    stays = max(0, whole - _figure(budget, "have") - freed)
    terms = budget.get("terms") or {}
    segments = [Segment("stays", stays), *(Segment(name, _figure(terms, name)) for name in TERM_KINDS)]
    spare = whole - sum(segment.size for segment in segments)
    return Bar(group, label, (*segments, Segment("spare", max(0, spare))), whole)


def _figure(source: Mapping[str, t.Any], *names: str) -> int:
    """The first of *names* that is a number of bytes; 0 where none is known."""
    for name in names:
        value = source.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1 << 60:
            return int(value)
    return 0
