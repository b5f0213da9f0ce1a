# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import typing as t

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._pool import Pool, memory_of, read_pool
from ansible_collections.unimem.dgx_spark.plugins.module_utils._problems import Problems


def read(facts: t.Any) -> tuple[Pool, set[str], list[str]]:
    problems, assumptions = Problems(), t.cast("list[str]", [])
    pool = read_pool(facts, problems, assumptions)
    return pool, {entry["code"] for entry in problems.as_list()}, assumptions


WHOLE = {"class": "unified", "memory": {"total": 1000, "free": 30, "available": 900, "cuda_free": 30, "allocatable": 890}}


def test_whole_facts() -> None:
    pool, codes, assumptions = read(WHOLE)
    assert (pool.total, pool.free_now, pool.allocatable, pool.available, pool.unified) == (1000, 30, 890, 900, True)
    assert not codes
    assert not assumptions


def test_parts_are_enough() -> None:
    pool, codes, assumptions = read({"memory": {"available": 900}})
    assert (pool.allocatable, pool.free_now, pool.total) == (900, 900, None)
    assert not codes
    assert len(assumptions) == 3


def test_discrete_gpus_have_their_own_pool() -> None:
    facts = {"class": "discrete", "memory": {"total": 9, "free": 9}, "gpus": [{"memory_total": 80, "memory_free": 70}, {"memory_total": 80, "memory_free": 60}]}
    pool, codes, _assumptions = read(facts)
    assert (pool.total, pool.free_now, pool.allocatable, pool.unified) == (80, 60, 60, False)
    assert not codes


@pytest.mark.parametrize(
    "facts", [None, "text", [], {}, {"memory": None}, {"memory": {"allocatable": "much"}}, {"class": "discrete"}, {"class": 7, "memory": []}]
)
def test_unknown_pools(facts: t.Any) -> None:
    pool, codes, _assumptions = read(facts)
    assert not pool.known
    assert "pool_unknown" in codes


@pytest.mark.parametrize("value", [-1, "5 G", "much", True, float("nan"), float("inf"), 10**30, []])
def test_bad_figures_are_ignored(value: t.Any) -> None:
    pool, codes, _assumptions = read({"class": "unified", "memory": {"available": 900, "allocatable": value}})
    assert "facts_bad_figure" in codes
    assert pool.allocatable == 900


def test_sizes_may_be_text() -> None:
    pool, codes, _assumptions = read({"class": "unified", "memory": {"total": "119.7 GiB", "free": "3.3 GB", "available": "1000 B"}})
    assert (pool.total, pool.free_now, pool.available) == (int(119.7 * 2**30), 1000, 1000)
    assert not codes
    assert memory_of({"memory": {"total": "1 KiB"}}, "total") == 1024


@pytest.mark.parametrize("facts", [None, [], {}, {"memory": 7}, {"memory": {"total": "x"}}, {"memory": {"total": -1}}])
def test_other_nodes_of_which_nothing_is_known(facts: t.Any) -> None:
    assert memory_of(facts, "total") is None


def test_classes_that_need_a_word() -> None:
    assert read({**WHOLE, "class": "unresponsive"})[1] == {"driver_unresponsive"}
    assert read({**WHOLE, "class": "none"})[1] == {"no_gpu"}
