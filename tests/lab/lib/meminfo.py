# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the /proc/meminfo of a simulated host from the figures of its memory cgroup.

On a real machine the lines are the whole machine's. A host of the lab is a cgroup with a limit, so its figures are
taken from there; nothing of the machine's own meminfo is passed through. Two things differ from a kernel's own file
and are documented in the README of the lab: kernel memory of a v1 cgroup is not split into kinds by the kernel, so all
of it is Slab, and the machine's own ratio is used for SReclaimable; and memory held by the simulated GPU driver is left
out of every bucket but MemFree, which is how memory of CUDA looks on a GB10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True)
class PoolUsage:
    """What a memory cgroup says about itself, in bytes, children included."""

    limit: int
    usage: int
    cache: int  # page cache, shmem included
    anon: int
    shmem: int
    mapped: int
    dirty: int
    writeback: int
    active_anon: int
    inactive_anon: int
    active_file: int
    inactive_file: int
    unevictable: int
    slab: int
    slab_reclaimable: int
    anon_huge: int
    driver_anon: int = 0  # of anon, held by the simulated driver for its clients
    kernel_stack: int = 0  # of v1 this and the next two are in slab
    page_tables: int = 0
    percpu: int = 0

    @property
    def free(self) -> int:
        return max(0, self.limit - self.usage)

    @property
    def available(self) -> int:
        """MemAvailable, as mm/show_mem.c:si_mem_available() has it for watermarks of 0 (a cgroup has none)."""
        return min(self.limit, self.free + self.active_file + self.inactive_file + self.slab_reclaimable)


def parse_stat(text: str) -> dict[str, int]:
    """Parse a memory.stat: one 'name number' a line; other lines are skipped."""
    values: dict[str, int] = {}
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if number.strip().isdigit():
            values[name] = int(number)
    return values


def parse_meminfo(text: str) -> dict[str, int]:
    """Parse a /proc/meminfo into bytes (the HugePages counts stay counts)."""
    values: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            values[name] = int(words[0]) * (KIB if words[1:] == ["kB"] else 1)
    return values


def reclaimable_share(machine: Mapping[str, int]) -> float:
    """The share of kernel memory that is reclaimable slab, on the machine as a whole."""
    kernel = sum(machine.get(name, 0) for name in ("Slab", "KernelStack", "PageTables", "Percpu"))
    return min(1.0, machine.get("SReclaimable", 0) / kernel) if kernel else 0.0


def usage_v1(
    limit: int, usage: int, stat: Mapping[str, int], kernel: int, share: float, driver: Mapping[str, int] | None = None
) -> PoolUsage:
    """Figures of a cgroup v1: memory.limit_in_bytes, memory.usage_in_bytes, memory.stat, memory.kmem.usage_in_bytes."""

    def total(name: str) -> int:
        return stat.get(f"total_{name}", 0)

    return PoolUsage(
        limit=limit,
        usage=usage,
        cache=total("cache"),
        anon=total("rss"),
        shmem=total("shmem"),
        mapped=total("mapped_file"),
        dirty=total("dirty"),
        writeback=total("writeback"),
        active_anon=total("active_anon"),
        inactive_anon=total("inactive_anon"),
        active_file=total("active_file"),
        inactive_file=total("inactive_file"),
        unevictable=total("unevictable"),
        slab=kernel,
        slab_reclaimable=int(kernel * share),
        anon_huge=total("rss_huge"),
        driver_anon=min((driver or {}).get("total_rss", 0), total("rss")),
    )


def usage_v2(limit: int, usage: int, stat: Mapping[str, int], driver: Mapping[str, int] | None = None) -> PoolUsage:
    """Figures of a cgroup v2: memory.max, memory.current, memory.stat."""
    return PoolUsage(
        limit=limit,
        usage=usage,
        cache=stat.get("file", 0),
        anon=stat.get("anon", 0),
        shmem=stat.get("shmem", 0),
        mapped=stat.get("file_mapped", 0),
        dirty=stat.get("file_dirty", 0),
        writeback=stat.get("file_writeback", 0),
        active_anon=stat.get("active_anon", 0),
        inactive_anon=stat.get("inactive_anon", 0),
        active_file=stat.get("active_file", 0),
        inactive_file=stat.get("inactive_file", 0),
        unevictable=stat.get("unevictable", 0),
        slab=stat.get("slab", 0),
        slab_reclaimable=stat.get("slab_reclaimable", 0),
        anon_huge=stat.get("anon_thp", 0),
        kernel_stack=stat.get("kernel_stack", 0),
        page_tables=stat.get("pagetables", 0),
        percpu=stat.get("percpu", 0),
        driver_anon=min((driver or {}).get("anon", 0), stat.get("anon", 0)),
    )


def render(pool: PoolUsage) -> str:
    """The text of /proc/meminfo, with the lines and the order of a kernel 6.x."""
    anon = pool.anon - pool.driver_anon
    # The driver's pages are on the anonymous lists, and on the unevictable one where it locks them.
    hidden = pool.driver_anon
    unevictable = max(0, pool.unevictable - hidden)
    hidden -= pool.unevictable - unevictable
    inactive_anon = max(0, pool.inactive_anon - hidden)
    hidden -= pool.inactive_anon - inactive_anon
    active_anon = max(0, pool.active_anon - hidden)
    lines: list[tuple[str, int]] = [
        ("MemTotal", pool.limit),
        ("MemFree", pool.free),
        ("MemAvailable", pool.available),
        ("Buffers", 0),
        ("Cached", pool.cache),
        ("SwapCached", 0),
        ("Active", active_anon + pool.active_file),
        ("Inactive", inactive_anon + pool.inactive_file),
        ("Active(anon)", active_anon),
        ("Inactive(anon)", inactive_anon),
        ("Active(file)", pool.active_file),
        ("Inactive(file)", pool.inactive_file),
        ("Unevictable", unevictable),
        ("Mlocked", unevictable),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Zswap", 0),
        ("Zswapped", 0),
        ("Dirty", pool.dirty),
        ("Writeback", pool.writeback),
        ("AnonPages", anon),
        ("Mapped", pool.mapped),
        ("Shmem", pool.shmem),
        ("KReclaimable", pool.slab_reclaimable),
        ("Slab", pool.slab),
        ("SReclaimable", pool.slab_reclaimable),
        ("SUnreclaim", pool.slab - pool.slab_reclaimable),
        ("KernelStack", pool.kernel_stack),
        ("PageTables", pool.page_tables),
        ("SecPageTables", 0),
        ("NFS_Unstable", 0),
        ("Bounce", 0),
        ("WritebackTmp", 0),
        ("CommitLimit", pool.limit // 2),
        ("Committed_AS", anon + pool.shmem),
        ("VmallocTotal", 0x7FFFFFFFFC00),
        ("VmallocUsed", 0),
        ("VmallocChunk", 0),
        ("Percpu", pool.percpu),
        ("HardwareCorrupted", 0),
        ("AnonHugePages", min(pool.anon_huge, anon)),
        ("ShmemHugePages", 0),
        ("ShmemPmdMapped", 0),
        ("FileHugePages", 0),
        ("FilePmdMapped", 0),
    ]
    text = [f"{name + ':':<16}{value // KIB:>8} kB" for name, value in lines]
    text += [f"{name + ':':<16}{0:>8}" for name in ("HugePages_Total", "HugePages_Free", "HugePages_Rsvd", "HugePages_Surp")]
    text += [f"{'Hugepagesize:':<16}{2048:>8} kB", f"{'Hugetlb:':<16}{0:>8} kB"]
    return "\n".join(text) + "\n"
