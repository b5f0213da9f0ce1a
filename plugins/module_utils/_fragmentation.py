# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Fragmentation of the free memory, from /proc/buddyinfo.

Memory can be free and of no use: a GPU driver that asks for large contiguous blocks and finds none fails with NV_ERR_NO_MEMORY,
or spins in compaction until the machine no longer answers, with gigabytes free.
"""

from __future__ import annotations

import re
import typing as t
from collections.abc import Mapping

from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import World

#: A huge page of 2 MiB, and the largest block of the kernel's default with pages of 4 KiB (order 10).
HUGE_PAGE = 2 * 1024 * 1024
LARGE_BLOCK = 4 * 1024 * 1024

#: What the driver writes to the kernel's log when it finds no memory, or none in one piece.
NO_MEMORY = "NV_ERR_NO_MEMORY"

_ZONE = re.compile(r"^Node\s+\d+,\s+zone\s+\S+\s+(\d[\d\s]*)$")


def parse_buddyinfo(text: str) -> list[int]:
    """Free blocks of each order, over all nodes and zones."""
    orders: list[int] = []
    for line in text.split("\n"):
        zone = _ZONE.match(line.strip())
        if zone:
            counts = [int(count) for count in zone[1].split() if len(count) < 19]
            orders += [0] * (len(counts) - len(orders))
            for order, count in enumerate(counts):
                orders[order] += count
    return orders


def fragmentation_figures(orders: list[int], page_size: int) -> dict[str, t.Any]:
    """``free_blocks``: block size in bytes -> how many are free; ``largest_block``; ``huge_free`` and ``large_free``: bytes in blocks of at
    least 2 and 4 MiB; ``index``: the share of the free memory in smaller blocks than 2 MiB, from 0 (whole) to 1 (crumbs), or null when
    nothing is free.
    """
    sizes = {page_size << order: count for order, count in enumerate(orders)}
    free = sum(size * count for size, count in sizes.items())
    huge = sum(size * count for size, count in sizes.items() if size >= HUGE_PAGE)
    return {
        "page_size": page_size,
        "free_blocks": {str(size): count for size, count in sizes.items()},
        "largest_block": max((size for size, count in sizes.items() if count), default=0),
        "huge_free": huge,
        "large_free": sum(size * count for size, count in sizes.items() if size >= LARGE_BLOCK),
        "index": round(1 - huge / free, 4) if free else None,
    }


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\s*\d{1,20}\s*", text) else None


def read_fragmentation(world: World, page_size: int) -> tuple[dict[str, t.Any] | None, str | None]:
    """The ``fragmentation`` dictionary of the facts, or None and why. Sizes are bytes; compact_* count since boot."""
    text = world.read_text("/proc/buddyinfo")
    orders = parse_buddyinfo(text or "")
    if not orders:
        # Some kernels let only root read it.
        return None, f"/proc/buddyinfo: {world.reasons.get('/proc/buddyinfo') or 'it lists no zone'}"
    figures = fragmentation_figures(orders, page_size)
    counters = dict(re.findall(r"^(compact_\w+) (\d{1,20})$", world.read_text("/proc/vmstat") or "", re.MULTILINE))
    for name in ("compact_stall", "compact_fail", "compact_success"):
        figures[name] = _number(counters.get(name))
    minimum = _number(world.read_text("/proc/sys/vm/min_free_kbytes"))
    figures["min_free"] = None if minimum is None else minimum * 1024
    figures["driver_no_memory"] = world.count_kernel_messages(NO_MEMORY)
    return figures, None


def page_size_of(meminfo: Mapping[str, int]) -> int:
    """Bytes of a page: a huge page is mapped by one page full of 8-byte entries, which makes 2 MiB of 4 KiB pages and 512 MiB of 64 KiB ones."""
    return {32 * 1024 * 1024: 16384, 512 * 1024 * 1024: 65536}.get(meminfo.get("Hugepagesize", 0), 4096)
