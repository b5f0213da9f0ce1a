# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can end a launch that fits by its figures: free memory in crumbs, and watchdogs that kill before the pool is as full as planned.

Pure, from the C(fragmentation) and C(guards) of the facts. There is no threshold of ours in it: pieces of memory are compared with what the
rank asks for, and what remains with the watchdogs' own settings.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import GIB, KIB, MIB, format_size

#: More than any node has, in bytes: facts may come from a file.
_MOST: t.Final = 1 << 46
_CRUMBS: t.Final = (
    "Before any service is stopped: evict the page cache and compact the rest (echo 1 > /proc/sys/vm/compact_memory); where that gives nothing back, reboot."
)


def _bytes(value: t.Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST else None


def _part(facts: t.Any, name: str) -> dict[str, t.Any]:
    value = facts.get(name) if isinstance(facts, dict) else None
    return value if isinstance(value, dict) else {}


def fragmentation(facts: t.Any, asked: int, room: int) -> str | None:
    """Why the memory may not serve the GPU driver, in a sentence; None where nothing speaks against it.

    :param asked: bytes that the rank takes through the driver.
    :param room: bytes that it can have after all eviction and stopping. What that gives back is taken for whole.
    """
    found = _part(facts, "fragmentation")
    told = _bytes(found.get("driver_no_memory")) or 0
    free, huge = _free_in_blocks(found), _bytes(found.get("huge_free"))
    seen = _bytes(_part(facts, "memory").get("free"))
    texts = []
    # Blocks that do not add up to MemFree are another machine's, as in a container that has a pool of its own.
    if free is not None and huge is not None and seen is not None and abs(free - seen) <= seen // 10:
        usable = room - max(0, free - huge)
        if asked > usable:
            texts.append(
                f"Of the {format_size(free)} that are free, {format_size(free - huge)} are in pieces below 2 MiB: at most {format_size(max(0, usable))} can be "
                f"had in larger ones, and the rank asks the GPU driver for {format_size(asked)}."
            )
    if told:
        texts.append(f"The GPU driver has found no memory (NV_ERR_NO_MEMORY) {told} times since boot: large pieces have run out, whatever is free now.")
    if not texts:
        return None
    return f"{' '.join(texts)} Such a launch can fail or lock the node up with memory free. {_CRUMBS}"


def _free_in_blocks(found: t.Mapping[str, t.Any]) -> int | None:
    blocks = found.get("free_blocks")
    if not isinstance(blocks, dict):
        return None
    total = 0
    for size, count in blocks.items():
        each, number = str(size), _bytes(count)
        if number is None or not re.fullmatch(r"[0-9]{1,14}", each):
            return None
        total += int(each) * number
    return total if total <= _MOST else None


class _Rule(t.NamedTuple):
    """A watchdog acts when both are no more than these bytes; swap None: whatever swap is free."""

    available: int
    swap: int | None
    text: str


def watchdogs(facts: t.Any, left: int) -> list[str]:
    """For each watchdog that would act on a node of which *left* bytes remain available, a sentence with its threshold."""
    guards = facts.get("guards") if isinstance(facts, dict) else None
    memory = _part(facts, "memory")
    total = _bytes(memory.get("total"))
    if not isinstance(guards, list) or not total:
        return []
    swap_total, swap_free = _bytes(memory.get("swap_total")) or 0, _bytes(memory.get("swap_free")) or 0
    found = []
    for guard in guards[:10]:
        name = str(guard.get("name")) if isinstance(guard, dict) else ""
        reader = _RULES.get(name)
        rule = reader(_part(guard, "thresholds"), total, swap_total) if reader is not None else None
        if rule is None or left > rule.available:
            continue
        if rule.swap is None or swap_free <= rule.swap:
            when = "and does not wait for swap to be used up" if rule.swap is None or not swap_total else f"and of swap only {format_size(swap_free)} are free"
        else:
            when = f"once no more than {format_size(rule.swap)} of swap are free ({format_size(swap_free)} now)"
        found.append(
            f"{name} kills processes when {format_size(rule.available)} or less are available ({rule.text}), {when}; with the rank as planned "
            f"{format_size(max(0, left))} remain. Plan for a smaller share or KV cache, or give {name} a lower threshold."
        )
    return found


def _amount(text: t.Any, whole: int, unit: int) -> int | None:
    """Bytes of a threshold such as C(10), C(10,5) or C(10 %) (percent of *whole*), C(300 M), or a number of *unit* bytes; the first of two is TERM's."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?(%|M|)", str(text).partition(",")[0].strip())
    if match is None:
        return None
    scale = whole / 100 if match[2] == "%" else MIB if match[2] == "M" else unit
    return min(_MOST, int(float(match[1]) * scale))


def _earlyoom(thresholds: t.Mapping[str, t.Any], total: int, swap_total: int) -> _Rule | None:
    """Both have to be below (earlyoom(1)); of a percentage and a size the lower one holds, and 100 % of swap ignores swap."""

    def lower(percent: str, kib: str, whole: int) -> tuple[int, str] | None:
        found = []
        if percent in thresholds:
            found.append((_amount(f"{str(thresholds[percent]).partition(',')[0]}%", whole, 1), f"{percent} {thresholds[percent]}"))
        if kib in thresholds:
            found.append((_amount(thresholds[kib], whole, KIB), f"{kib} {thresholds[kib]}"))
        known = [(size, text) for size, text in found if size is not None]
        return min(known) if known else None

    available, swap = lower("mem_percent", "mem_kib", total), lower("swap_percent", "swap_kib", swap_total)
    if available is None:
        return None
    return _Rule(available[0], None if swap is None or swap[0] >= swap_total else swap[0], available[1])


def _oomd(thresholds: t.Mapping[str, t.Any], total: int, swap_total: int) -> _Rule | None:
    """Memory and swap used both above SwapUsedLimit (oomd.conf(5)); without swap that never holds. Its pressure limit cannot be foretold."""
    limit = _amount(thresholds.get("SwapUsedLimit"), 100 * GIB, 0)
    if limit is None or not swap_total:
        return None
    share = max(0.0, 1 - limit / (100 * GIB))
    return _Rule(int(total * share), int(swap_total * share), f"SwapUsedLimit {thresholds['SwapUsedLimit']}, of control groups that it manages")


def _nohang(thresholds: t.Mapping[str, t.Any], total: int, swap_total: int) -> _Rule | None:
    """MemAvailable and SwapFree both no more than the soft thresholds of its configuration."""
    name = "soft_threshold_min_mem"
    available = _amount(thresholds.get(name), total, 0)
    swap = _amount(thresholds.get("soft_threshold_min_swap"), swap_total, 0)
    if available is None:
        return None
    return _Rule(available, None if swap is None or swap >= swap_total else swap, f"{name} {thresholds[name]}")


_RULES: t.Final[dict[str, t.Callable[[t.Mapping[str, t.Any], int, int], _Rule | None]]] = {
    "earlyoom": _earlyoom,
    "systemd-oomd": _oomd,
    "nohang": _nohang,
}
