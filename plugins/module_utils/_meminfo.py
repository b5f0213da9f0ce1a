# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""The pool of a machine, from /proc/meminfo: every figure under its own name, in bytes.

On a GB10 three different numbers are called free. ``cudaMemGetInfo`` answers the kernel's MemFree, in which the page cache
counts as used; engines that know integrated GPUs look at MemAvailable; and of the page cache only a part comes back.
"""

from __future__ import annotations

import re
import typing as t
from collections.abc import Mapping

from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import World

MEMINFO = "/proc/meminfo"

#: The figures of the ``memory`` dictionary, in the order in which they are returned.
FIGURES = (
    "total",
    "free",
    "available",
    "page_cache",
    "shared",
    "locked",
    "huge_free",
    "swap_total",
    "swap_free",
    "reclaimable",
    "cuda_free",
    "allocatable",
)

_LINE = re.compile(r"^([A-Za-z][A-Za-z0-9_()]*):\s+(\d{1,18})(?:\s+(kB))?\s*$")

#: Buckets of the kernel that are no page cache and no free memory; what is left beside them is memory of drivers.
#: The residual formula for driver memory (live CUDA allocations and the pools of drivers from 590 on).
_BUCKETS = ("MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "Slab", "KernelStack", "PageTables", "Percpu")


def parse_meminfo(text: str) -> dict[str, int]:
    """The lines of /proc/meminfo, in bytes; lines without a unit (HugePages_Total) are counts. Lines that make no sense are left out."""
    figures: dict[str, int] = {}
    for line in text.split("\n"):
        match = _LINE.match(line)
        if match and match[1] not in figures:
            figures[match[1]] = int(match[2]) * (1024 if match[3] else 1)
    return figures


def _pool(meminfo: Mapping[str, int], name: str) -> int:
    return max(0, meminfo.get(name, 0))


def reclaimable_cache(meminfo: Mapping[str, int]) -> int | None:
    """Bytes of page cache that eviction can really return; None when meminfo does not say.

    Active(file) + Inactive(file) - Dirty - Writeback: locked pages and shared memory are not on these lists, dirty ones must be
    written first. Where the kernel (or a container's meminfo) has no such lines: Cached + Buffers - max(Shmem, Mlocked) - Dirty.
    """
    if "Active(file)" in meminfo and "Inactive(file)" in meminfo:
        cache = meminfo["Active(file)"] + meminfo["Inactive(file)"] - _pool(meminfo, "Dirty") - _pool(meminfo, "Writeback")
    elif "Cached" in meminfo:
        cache = meminfo["Cached"] + _pool(meminfo, "Buffers") - max(_pool(meminfo, "Shmem"), _pool(meminfo, "Mlocked")) - _pool(meminfo, "Dirty")
    else:
        return None
    return max(0, cache)


def _allocatable(meminfo: Mapping[str, int], reclaimable: int | None, reasons: dict[str, str]) -> int | None:
    # NVIDIA's rule for integrated GPUs, as engines implement it: huge pages when some are reserved, else MemAvailable; never swap.
    if meminfo.get("HugePages_Total", 0) and "Hugepagesize" in meminfo:
        reasons["memory.allocatable"] = "huge pages are reserved on this machine: a CUDA process gets the free ones among them"
        return meminfo.get("HugePages_Free", 0) * meminfo["Hugepagesize"]
    if "MemAvailable" in meminfo:
        return meminfo["MemAvailable"]
    if "MemFree" in meminfo and reclaimable is not None:
        reasons["memory.allocatable"] = f"{MEMINFO} has no MemAvailable; MemFree and the reclaimable page cache were added instead"
        return meminfo["MemFree"] + reclaimable
    return None


def memory_figures(meminfo: Mapping[str, int], klass: str) -> tuple[dict[str, int | None], dict[str, str]]:
    """The ``memory`` dictionary of a parsed meminfo, and the reasons of what is null in it, keyed ``memory.<figure>``.

    ``klass`` is the class of the machine: cuda_free exists on a unified one only, and on a machine whose GPU has memory of its
    own (coherent, discrete) the system's pool does not say what a CUDA process can get.
    """
    reasons: dict[str, str] = {}
    reclaimable = reclaimable_cache(meminfo)
    cached = meminfo.get("Cached")
    huge = None
    if "HugePages_Free" in meminfo and "Hugepagesize" in meminfo:
        huge = meminfo["HugePages_Free"] * meminfo["Hugepagesize"]
    memory: dict[str, int | None] = {
        "total": meminfo.get("MemTotal"),
        "free": meminfo.get("MemFree"),
        "available": meminfo.get("MemAvailable"),
        "page_cache": None if cached is None else cached + _pool(meminfo, "Buffers"),
        "shared": meminfo.get("Shmem"),
        "locked": meminfo.get("Mlocked"),
        "huge_free": huge,
        "swap_total": meminfo.get("SwapTotal"),
        "swap_free": meminfo.get("SwapFree"),
        "reclaimable": reclaimable,
        "cuda_free": None,
        "allocatable": None,
    }
    for name, value in memory.items():
        if value is None:
            reasons[f"memory.{name}"] = f"{MEMINFO} does not say"
    if klass == "unified":
        memory["cuda_free"] = meminfo.get("MemFree")
        if memory["cuda_free"] is not None:
            del reasons["memory.cuda_free"]
    else:
        reasons["memory.cuda_free"] = f"only on a unified-memory machine is this the system's MemFree; the class here is {klass}"
    if klass in ("coherent", "discrete"):
        reasons["memory.allocatable"] = "the GPU has memory of its own; the system's pool does not say what a CUDA process can get"
    else:
        reasons.pop("memory.allocatable", None)
        memory["allocatable"] = _allocatable(meminfo, reclaimable, reasons)
        if memory["allocatable"] is None:
            reasons["memory.allocatable"] = f"{MEMINFO} does not say"
    return memory, reasons


def read_memory_with_reasons(world: World, klass: str) -> tuple[dict[str, int | None], dict[str, str], dict[str, int]]:
    """The ``memory`` dictionary, the reasons of its nulls, and meminfo itself (for ``driver_residual``)."""
    text = world.read_text(MEMINFO)
    meminfo = parse_meminfo(text or "")
    memory, reasons = memory_figures(meminfo, klass)
    if text is None:
        reasons = dict.fromkeys(reasons, f"{MEMINFO}: {world.reasons.get(MEMINFO, 'unreadable')}")
    return memory, reasons, meminfo


def read_memory(world: World, klass: str) -> dict[str, int | None]:
    """The ``memory`` dictionary of the facts now, in bytes: one read of /proc/meminfo, cheap enough for a waiting loop."""
    return read_memory_with_reasons(world, klass)[0]


def driver_residual(meminfo: Mapping[str, int]) -> int | None:
    """Bytes of the pool in none of the kernel's buckets: live CUDA memory and the pools of the driver. None when meminfo does not say.

    MemTotal - MemFree - Buffers - Cached - SwapCached - AnonPages - Slab - KernelStack - PageTables - Percpu - Hugetlb. The
    kernel's counters are not read at one instant, so that small values mean nothing; it is never negative.
    """
    if "MemTotal" not in meminfo or "MemFree" not in meminfo or "AnonPages" not in meminfo or "Cached" not in meminfo:
        return None
    huge = meminfo.get("Hugetlb")
    if huge is None:
        huge = meminfo.get("HugePages_Total", 0) * meminfo.get("Hugepagesize", 0)
    return max(0, meminfo["MemTotal"] - sum(_pool(meminfo, bucket) for bucket in _BUCKETS) - huge)


def memory_sum(values: t.Iterable[int | None]) -> int:
    """Sum of the known sizes."""
    return sum(value for value in values if value is not None)
