# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._fragmentation import fragmentation_figures, page_size_of, parse_buddyinfo, read_fragmentation
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import FakeWorld

FRESH = """\
Node 0, zone      DMA      1      0      0      0      0      0      0      0      1      1      3
Node 0, zone   Normal     10      5      2      1      1      1      1      1      1      1   1417
"""
WEEK_OLD = "Node 0, zone   Normal 912345 803211 512000 220100  90210  20111   4100    512     27      5      0 \n"


def test_blocks_are_summed_over_zones() -> None:
    assert parse_buddyinfo(FRESH) == [11, 5, 2, 1, 1, 1, 1, 1, 2, 2, 1420]


def test_a_fresh_machine_has_its_memory_in_large_blocks() -> None:
    figures = fragmentation_figures(parse_buddyinfo(FRESH), 4096)
    assert figures["largest_block"] == 4 << 20
    assert figures["large_free"] == 1420 * (4 << 20)
    assert figures["huge_free"] == figures["large_free"] + 2 * (2 << 20)
    assert figures["free_blocks"]["4096"] == 11
    assert figures["index"] < 0.01


def test_memory_can_be_free_and_of_no_use() -> None:
    figures = fragmentation_figures(parse_buddyinfo(WEEK_OLD), 4096)
    free = sum(int(size) * count for size, count in figures["free_blocks"].items())
    assert free > 20 << 30
    assert figures["large_free"] == 0
    assert figures["largest_block"] == 2 << 20
    assert figures["index"] > 0.99


def test_nothing_free_has_no_index() -> None:
    assert fragmentation_figures([0] * 11, 4096)["index"] is None


@pytest.mark.parametrize(("huge_page", "page"), [(2 << 20, 4096), (32 << 20, 16384), (512 << 20, 65536), (1 << 30, 4096), (0, 4096)])
def test_page_size_follows_from_the_huge_page(huge_page: int, page: int) -> None:
    assert page_size_of({"Hugepagesize": huge_page}) == page


def test_counters_of_the_kernel() -> None:
    world = FakeWorld({"/proc/buddyinfo": FRESH, "/proc/vmstat": "compact_stall 4\ncompact_fail 3\n", "/proc/sys/vm/min_free_kbytes": "67584\n"})
    figures, reason = read_fragmentation(world, 4096)
    assert reason is None
    assert figures is not None
    assert figures["driver_no_memory"] is None
    assert (figures["compact_stall"], figures["compact_fail"], figures["compact_success"], figures["min_free"]) == (4, 3, None, 67584 * 1024)


def test_an_unreadable_buddyinfo_says_why() -> None:
    assert read_fragmentation(FakeWorld(), 4096) == (None, "/proc/buddyinfo: no such file")


def test_a_driver_that_found_no_memory_is_counted() -> None:
    figures, _reason = read_fragmentation(FakeWorld({"/proc/buddyinfo": FRESH}, kernel_messages={"NV_ERR_NO_MEMORY": 3}), 4096)
    assert figures is not None and figures["driver_no_memory"] == 3
