# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.unimem.dgx_spark.plugins.module_utils._meminfo import (
    FIGURES,
    driver_residual,
    memory_figures,
    parse_meminfo,
    read_memory,
    reclaimable_cache,
)
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import FakeWorld

KIB = 1024

#: A Spark whose page cache is full, from a field report: the engine sees 41.5 GiB free where 115.7 GiB are to be had.
CACHE_HEAVY = """\
MemTotal:       127600748 kB
MemFree:        43500000 kB
MemAvailable:   121300000 kB
Buffers:          200000 kB
Cached:         76000000 kB
SwapCached:            0 kB
Active(file):   30000000 kB
Inactive(file): 45000000 kB
Mlocked:           20000 kB
SwapTotal:      16777212 kB
SwapFree:       16700000 kB
Dirty:            100000 kB
Writeback:         50000 kB
AnonPages:       3000000 kB
Shmem:            300000 kB
Slab:            1200000 kB
KernelStack:       20000 kB
PageTables:        50000 kB
Percpu:            30000 kB
HugePages_Total:       0
HugePages_Free:        0
Hugepagesize:       2048 kB
Hugetlb:               0 kB
"""


def without(text: str, *names: str) -> str:
    return "".join(line for line in text.splitlines(True) if line.split(":")[0] not in names)


def test_every_figure_under_its_own_name() -> None:
    memory, reasons = memory_figures(parse_meminfo(CACHE_HEAVY), "unified")
    assert memory == {
        "total": 127600748 * KIB,
        "free": 43500000 * KIB,
        "available": 121300000 * KIB,
        "page_cache": 76200000 * KIB,
        "shared": 300000 * KIB,
        "locked": 20000 * KIB,
        "huge_free": 0,
        "swap_total": 16777212 * KIB,
        "swap_free": 16700000 * KIB,
        "reclaimable": 74850000 * KIB,
        "cuda_free": 43500000 * KIB,
        "allocatable": 121300000 * KIB,
    }
    assert tuple(memory) == FIGURES
    assert reasons == {}


def test_reserved_huge_pages_decide_what_can_be_allocated() -> None:
    text = CACHE_HEAVY.replace("HugePages_Total:       0", "HugePages_Total:    8192").replace("HugePages_Free:        0", "HugePages_Free:     4096")
    memory, reasons = memory_figures(parse_meminfo(text), "unified")
    assert memory["allocatable"] == memory["huge_free"] == 4096 * 2048 * KIB
    assert "huge pages" in reasons["memory.allocatable"]


def test_reclaimable_where_the_kernel_has_no_file_lists() -> None:
    text = without(CACHE_HEAVY, "Active(file)", "Inactive(file)")
    assert reclaimable_cache(parse_meminfo(text)) == (76000000 + 200000 - 300000 - 100000) * KIB
    locked = text.replace("Mlocked:           20000 kB", "Mlocked:        62000000 kB")
    assert reclaimable_cache(parse_meminfo(locked)) == (76000000 + 200000 - 62000000 - 100000) * KIB


def test_locked_shared_memory_does_not_count_as_reclaimable() -> None:
    text = CACHE_HEAVY.replace("Active(file):   30000000", "Active(file):     100000").replace("Inactive(file): 45000000", "Inactive(file):   120000")
    assert reclaimable_cache(parse_meminfo(text)) == (100000 + 120000 - 100000 - 50000) * KIB


def test_more_dirty_than_cached_is_nothing_and_not_negative() -> None:
    text = CACHE_HEAVY.replace("Dirty:            100000", "Dirty:          99000000")
    assert reclaimable_cache(parse_meminfo(text)) == 0


def test_a_kernel_without_memavailable() -> None:
    memory, reasons = memory_figures(parse_meminfo(without(CACHE_HEAVY, "MemAvailable")), "unified")
    assert memory["available"] is None
    assert "memory.available" in reasons
    assert memory["allocatable"] == (43500000 + 74850000) * KIB
    assert "MemAvailable" in reasons["memory.allocatable"]


@pytest.mark.parametrize("klass", ["coherent", "discrete"])
def test_a_gpu_with_memory_of_its_own_does_not_draw_on_the_pool(klass: str) -> None:
    memory, reasons = memory_figures(parse_meminfo(CACHE_HEAVY), klass)
    assert memory["cuda_free"] is None
    assert memory["allocatable"] is None
    assert klass in reasons["memory.cuda_free"]


@pytest.mark.parametrize("klass", ["none", "unresponsive"])
def test_without_a_gpu_that_answers_only_the_pool_is_known(klass: str) -> None:
    memory, reasons = memory_figures(parse_meminfo(CACHE_HEAVY), klass)
    assert memory["cuda_free"] is None
    assert memory["allocatable"] == 121300000 * KIB
    assert set(reasons) == {"memory.cuda_free"}


def test_driver_residual_is_what_no_bucket_has() -> None:
    buckets = 43500000 + 200000 + 76000000 + 3000000 + 1200000 + 20000 + 50000 + 30000
    assert driver_residual(parse_meminfo(CACHE_HEAVY)) == (127600748 - buckets) * KIB


def test_driver_residual_counts_huge_pages_without_a_hugetlb_line() -> None:
    text = without(CACHE_HEAVY, "Hugetlb").replace("HugePages_Total:       0", "HugePages_Total:     100")
    assert driver_residual(parse_meminfo(CACHE_HEAVY)) - driver_residual(parse_meminfo(text)) == 100 * 2048 * KIB  # type: ignore[operator]


def test_driver_residual_needs_its_lines() -> None:
    assert driver_residual(parse_meminfo(without(CACHE_HEAVY, "AnonPages"))) is None


def test_an_unreadable_meminfo_is_all_null() -> None:
    assert set(read_memory(FakeWorld(), "unified").values()) == {None}


NUMBERS = st.integers(min_value=0, max_value=2**40)
NAMES = [
    "MemTotal",
    "MemFree",
    "MemAvailable",
    "Buffers",
    "Cached",
    "SwapCached",
    "Active(file)",
    "Inactive(file)",
    "Mlocked",
    "SwapTotal",
    "SwapFree",
    "Dirty",
    "Writeback",
    "AnonPages",
    "Shmem",
    "Slab",
    "KernelStack",
    "PageTables",
    "Percpu",
    "Hugepagesize",
    "Hugetlb",
]
COUNTS = ["HugePages_Total", "HugePages_Free"]
MEMINFOS = st.builds(
    lambda sizes, counts, noise: (
        "".join(f"{name}: {size} kB\n" for name, size in sizes.items()) + "".join(f"{name}: {count}\n" for name, count in counts.items()) + noise
    ),
    st.dictionaries(st.sampled_from(NAMES), NUMBERS),
    st.dictionaries(st.sampled_from(COUNTS), st.integers(min_value=0, max_value=10**6)),
    st.text(max_size=60),
)


@settings(max_examples=200, deadline=None)
@given(MEMINFOS, st.sampled_from(["unified", "coherent", "discrete", "none", "unresponsive"]))
def test_whatever_meminfo_says_nothing_is_negative_and_every_null_has_a_reason(text: str, klass: str) -> None:
    meminfo = parse_meminfo(text)
    memory, reasons = memory_figures(meminfo, klass)
    assert tuple(memory) == FIGURES
    for name, value in memory.items():
        if value is None:
            assert reasons[f"memory.{name}"]
        else:
            assert value >= 0
    residual = driver_residual(meminfo)
    assert residual is None or 0 <= residual <= meminfo["MemTotal"]


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=400))
def test_any_text_is_parsed(text: str) -> None:
    assert all(value >= 0 for value in parse_meminfo(text).values())
