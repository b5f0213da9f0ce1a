# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Crumbs and watchdogs: what a launch that fits by its figures can still end with."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._fragmentation import fragmentation_figures
from ansible_collections.unimem.dgx_spark.plugins.module_utils._guards import earlyoom_thresholds
from ansible_collections.unimem.dgx_spark.plugins.module_utils._hazards import fragmentation, watchdogs
from ansible_collections.unimem.dgx_spark.plugins.module_utils._problems import MAX_MESSAGE
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import GIB, KIB, MIB

TOTAL = 120 * GIB


def facts(orders: list[int] | None = None, free: float | None = None, **more: t.Any) -> dict[str, t.Any]:
    figures = fragmentation_figures(orders or [], 4 * KIB)
    blocks = sum(int(size) * count for size, count in figures["free_blocks"].items())
    return {"memory": {"total": TOTAL, "free": blocks if free is None else int(free * GIB)}, "fragmentation": {**figures, "driver_no_memory": 0, **more}}


#: 100 GiB free: in blocks of 4 MiB; and, but for 10 GiB of them, in blocks of at most 256 KiB, as after days of uptime.
WHOLE = [0] * 10 + [25600]
CRUMBS = [0] * 6 + [90 * GIB // (256 * KIB)] + [0] * 3 + [2560]


def test_whole_memory_is_no_problem_and_crumbs_are() -> None:
    assert fragmentation(facts(WHOLE), 70 * GIB, 100 * GIB) is None
    text = fragmentation(facts(CRUMBS), 70 * GIB, 100 * GIB)
    assert text is not None
    assert "100.0 GiB that are free, 90.0 GiB are in pieces below 2 MiB: at most 10.0 GiB" in text
    for words in ("70.0 GiB", "compact_memory", "reboot", "Before any service"):
        assert words in text


def test_what_eviction_and_stopping_give_back_is_taken_for_whole() -> None:
    assert fragmentation(facts(CRUMBS), 70 * GIB, 160 * GIB) is None
    assert fragmentation(facts(CRUMBS), 70 * GIB + 1, 160 * GIB) is not None, "70 GiB are what the rest can give"


def test_a_driver_that_found_no_memory_is_believed() -> None:
    text = fragmentation(facts(WHOLE, driver_no_memory=7), 70 * GIB, 100 * GIB)
    assert text is not None and "7 times since boot" in text and "below 2 MiB" not in text


def test_the_whole_sentence_fits_into_a_problem() -> None:
    text = fragmentation(facts(CRUMBS, driver_no_memory=123456), 70 * GIB, 100 * GIB)
    assert text is not None and len(text) <= MAX_MESSAGE


def test_blocks_of_another_machine_say_nothing() -> None:
    assert fragmentation(facts(CRUMBS, free=5.0), 70 * GIB, 100 * GIB) is None


@pytest.mark.parametrize(
    "broken",
    [
        None,
        7,
        {},
        {"fragmentation": None},
        {"fragmentation": {"free_blocks": {"x": 1}, "huge_free": 1}, "memory": {"free": 1}},
        {"fragmentation": {"free_blocks": {"4096": -1}, "huge_free": 0}, "memory": {"free": 1}},
        {"fragmentation": {"free_blocks": {"4096": 1 << 60}, "huge_free": 0}, "memory": {"free": 1}},
        {"fragmentation": {"free_blocks": [], "huge_free": True, "driver_no_memory": "3"}, "memory": []},
        {"guards": "earlyoom", "memory": {"total": TOTAL}},
        {"guards": [None, {}, {"name": "earlyoom"}, {"name": "earlyoom", "thresholds": {"mem_percent": "much"}}], "memory": {"total": TOTAL}},
    ],
)
def test_facts_that_are_none_say_nothing(broken: t.Any) -> None:
    assert fragmentation(broken, 1 << 40, 1) is None
    assert watchdogs(broken, 0) == []


def node(name: str, thresholds: dict[str, str], swap_total: float = 16, swap_free: float = 16) -> dict[str, t.Any]:
    memory = {"total": TOTAL, "swap_total": int(swap_total * GIB), "swap_free": int(swap_free * GIB)}
    return {"memory": memory, "guards": [{"name": name, "pid": 7, "thresholds": thresholds}]}


@pytest.mark.parametrize(
    ("argv", "acts_at", "swap"),
    [
        (["earlyoom"], 12 * GIB, "once no more than 1.6 GiB of swap are free (16.0 GiB now)"),
        (["earlyoom", "-m", "2", "-s", "80"], int(2.4 * GIB), "once no more than 12.8 GiB of swap are free"),
        (["earlyoom", "-m", "5,3", "-s", "100"], 6 * GIB, "and does not wait for swap"),
        (["earlyoom", "-M", "3145728"], 3 * GIB, "once no more than"),
        (["earlyoom", "-M", "3145728", "-m", "1"], int(1.2 * GIB), "once no more than"),
    ],
)
def test_earlyooms_own_options_decide(argv: list[str], acts_at: int, swap: str) -> None:
    guarded = node("earlyoom", earlyoom_thresholds(argv))
    (text,) = watchdogs(guarded, acts_at - MIB)
    assert swap in text and "remain" in text
    assert watchdogs(guarded, acts_at + MIB) == []


def test_without_swap_it_waits_for_none() -> None:
    for guarded in (node("earlyoom", {"mem_percent": "10", "swap_percent": "10"}, 0, 0), node("nohang", {"soft_threshold_min_mem": "10 %"}, 0, 0)):
        (text,) = watchdogs(guarded, 8 * GIB)
        assert "12.0 GiB or less are available" in text and "and does not wait for swap to be used up" in text and "8.0 GiB remain" in text


def test_swap_that_is_used_up_already_is_said() -> None:
    (text,) = watchdogs(node("earlyoom", {"mem_percent": "10", "swap_percent": "10"}, 16, 1), 8 * GIB)
    assert "and of swap only 1.0 GiB are free" in text


def test_oomd_needs_swap_and_both_limits() -> None:
    limits = {"SwapUsedLimit": "90%", "DefaultMemoryPressureLimit": "60%"}
    (text,) = watchdogs(node("systemd-oomd", limits), 8 * GIB)
    assert "systemd-oomd kills processes when 12.0 GiB or less" in text and "SwapUsedLimit 90%" in text and "once no more than 1.6 GiB of swap" in text
    assert watchdogs(node("systemd-oomd", limits, 0, 0), 0) == []
    assert watchdogs(node("systemd-oomd", {"SwapUsedLimit": "95%"}), 8 * GIB) == []


def test_nohangs_soft_threshold_comes_first() -> None:
    guarded = node("nohang", {"soft_threshold_min_mem": "9 %", "hard_threshold_min_mem": "2 %", "soft_threshold_min_swap": "300 M"})
    (text,) = watchdogs(guarded, 8 * GIB)
    assert "10.8 GiB or less" in text and "once no more than 300.0 MiB of swap" in text
    assert watchdogs(node("nohang", {}), 0) == [], "where its file cannot be read nothing is made up"
