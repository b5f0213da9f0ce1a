# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory of one node as the budget sees it: how much there is, how much is free now, how much eviction can give.

Taken from the facts of gpu_memory_facts, of which any part may be missing.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.unimem.dgx_spark.plugins.module_utils._problems import Problems, shown
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import SizeError, parse_size

#: More than any node has (64 TiB): facts may come from a file.
_MAX_BYTES: t.Final = 1 << 46


@dataclass(frozen=True)
class Pool:
    """Bytes of the memory that a rank draws on; None: not known."""

    klass: str
    total: int | None
    #: What an allocation by CUDA gets without any eviction (unified: MemFree).
    free_now: int | None
    #: What it gets after the page cache was evicted.
    allocatable: int | None
    #: MemAvailable, which engines read on integrated GPUs.
    available: int | None
    unified: bool

    @property
    def known(self) -> bool:
        return self.allocatable is not None


def read_pool(facts: t.Any, problems: Problems, assumptions: list[str]) -> Pool:
    """Return the pool of a gpu_memory dict; missing parts are replaced by their nearest kin, and said."""
    if not isinstance(facts, dict):
        problems.error("pool_unknown", f"gpu_memory is {shown(facts)}; the dictionary of gpu_memory_facts is needed.")
        return Pool("", None, None, None, None, True)
    named = facts.get("class")
    klass = named if isinstance(named, str) else ""
    raw = facts.get("memory")
    memory = raw if isinstance(raw, dict) else {}
    total, free, available = _figure(memory, "total", problems), _figure(memory, "free", problems), _figure(memory, "available", problems)
    if klass in ("discrete", "coherent"):
        return _device_pool(klass, facts, available, problems)
    if klass == "unresponsive":
        text = "The GPU driver of this node does not answer. Nothing can be launched on it before that is cleared; a driver that hangs takes a reboot."
        problems.error("driver_unresponsive", text)
    elif klass == "none":
        problems.add("no_gpu", "This node has no GPU that the facts know of; its whole memory is taken as the pool.")
    elif klass == "unified" and _gpu_source(facts) == "none":
        text = f"The GPU driver of this node cannot be asked ({shown(_gpu_reason(facts), 200)}), so that an engine would not find its GPU either."
        problems.error("driver_unread", f"{text} Mend that first; a mismatch of versions takes a reboot, a lack of rights become.")
    elif not klass:
        assumptions.append("gpu_memory names no class; unified memory is assumed.")
    cuda_free = _figure(memory, "cuda_free", problems)
    allocatable = _figure(memory, "allocatable", problems)
    if allocatable is None:
        allocatable = available if available is not None else free
        if allocatable is not None:
            assumptions.append(f"allocatable is not known; {'MemAvailable' if available is not None else 'MemFree'} is taken for it.")
    if allocatable is None:
        problems.error("pool_unknown", "The facts of this node have no allocatable, available or free memory, so nothing can be compared with the need.")
    free_now = cuda_free if cuda_free is not None else free
    if free_now is None and allocatable is not None:
        assumptions.append("MemFree is not known; whether the page cache must be evicted first cannot be said.")
        free_now = allocatable
    if free_now is not None and allocatable is not None:
        free_now = min(free_now, allocatable) if klass != "none" else free_now
    return Pool(klass, total, free_now, allocatable, available if available is not None else allocatable, True)


def _gpu_source(facts: t.Mapping[str, t.Any]) -> t.Any:
    """What the GPU was read with; None where the facts do not say."""
    sources = facts.get("sources")
    return sources.get("gpu") if isinstance(sources, dict) else None


def _gpu_reason(facts: t.Mapping[str, t.Any]) -> object:
    reasons = facts["sources"].get("reasons")
    return reasons.get("gpus", "no reason is given") if isinstance(reasons, dict) else "no reason is given"


def _device_pool(klass: str, facts: dict[str, t.Any], available: int | None, problems: Problems) -> Pool:
    """Discrete and coherent GPUs have memory of their own: the fullest one decides."""
    raw = facts.get("gpus")
    gpus = [gpu for gpu in raw if isinstance(gpu, dict)] if isinstance(raw, list) else []
    frees = [value for value in (_figure(gpu, "memory_free", problems) for gpu in gpus) if value is not None]
    totals = [value for value in (_figure(gpu, "memory_total", problems) for gpu in gpus) if value is not None]
    if not frees:
        problems.error("pool_unknown", f"The facts of this node (class {klass}) have no gpus with memory_free.")
        return Pool(klass, None, None, None, available, False)
    free = min(frees)
    return Pool(klass, min(totals) if totals else None, free, free, free, False)


def memory_of(facts: t.Any, name: str) -> int | None:
    """One figure of a node's memory; None where the facts do not have it. For other nodes, of which nothing is complained."""
    memory = facts.get("memory") if isinstance(facts, dict) else None
    return _figure(memory, name, Problems()) if isinstance(memory, dict) else None


def _figure(source: t.Mapping[str, t.Any], name: str, problems: Problems) -> int | None:
    """Bytes, as a number or as text with a unit, as somebody writes it who has no facts."""
    value = source.get(name)
    if value is None:
        return None
    size = value
    if isinstance(value, str):
        try:
            size = parse_size(value, name)
        except SizeError:
            size = None
    if isinstance(size, bool) or not isinstance(size, (int, float)) or not 0 <= size <= _MAX_BYTES:
        problems.add("facts_bad_figure", f"gpu_memory has {name} {shown(value)}; it is ignored.")
        return None
    return int(size)
