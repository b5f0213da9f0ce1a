# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._recovery import Recovery, is_over

GIB = 1024**3


def facts(available: int, hidden: int | None, *processes: dict[str, t.Any], klass: str = "unified") -> dict[str, t.Any]:
    return {"class": klass, "memory": {"total": 120 * GIB, "allocatable": available}, "unattributed": hidden, "processes": list(processes)}


def test_what_nobody_accounts_for_is_still_on_its_way() -> None:
    recovery = Recovery(released=20 * GIB)
    recovery.see(facts(50 * GIB, GIB))
    recovery.see(facts(55 * GIB, 16 * GIB))
    assert recovery.pending == 15 * GIB and recovery.is_coming and not recovery.is_back({"allocatable": 50 * GIB})
    recovery.see(facts(69 * GIB, 2 * GIB))
    assert not recovery.is_coming and recovery.is_back({"allocatable": 50 * GIB})


def test_what_others_have_taken_meanwhile_is_back() -> None:
    recovery = Recovery(released=20 * GIB)
    recovery.see(facts(50 * GIB, GIB))
    recovery.see(facts(52 * GIB, GIB))
    assert recovery.is_back({"allocatable": 50 * GIB})


@pytest.mark.parametrize("entry", [{"start_time": None, "memory": 18 * GIB}, {"start_time": 5, "state": "Z", "memory": 18 * GIB}])
def test_what_the_driver_still_lists_for_the_dead_is_not_back(entry: dict[str, t.Any]) -> None:
    recovery = Recovery(released=20 * GIB)
    recovery.see(facts(50 * GIB, GIB, {"start_time": 5, "state": "S", "memory": 20 * GIB}))
    recovery.see(facts(52 * GIB, GIB, entry))
    assert is_over(entry) and recovery.pending == 18 * GIB and not recovery.is_back({"allocatable": 50 * GIB})


def test_never_more_is_on_its_way_than_was_stopped() -> None:
    recovery = Recovery(released=GIB)
    recovery.see(facts(50 * GIB, GIB))
    recovery.see(facts(50 * GIB, 40 * GIB))
    assert recovery.pending == GIB


def test_where_nobody_knows_only_the_pool_itself_tells() -> None:
    recovery = Recovery(released=20 * GIB)
    recovery.see(facts(50 * GIB, None))
    recovery.see(facts(60 * GIB, None))
    assert not recovery.is_known and recovery.pending == 0 and not recovery.is_back({"allocatable": 50 * GIB})
    recovery.see(facts(69 * GIB, None))
    assert recovery.is_back({"allocatable": 50 * GIB})
    assert Recovery(released=GIB).is_back({"allocatable": None}), "a pool that nobody knows cannot be missing anything"


def test_without_a_driver_nothing_can_be_kept() -> None:
    recovery = Recovery(released=20 * GIB)
    recovery.see(facts(50 * GIB, None, klass="none"))
    assert recovery.is_back({"allocatable": 50 * GIB})


def test_small_amounts_are_noise() -> None:
    recovery = Recovery()
    recovery.see(facts(50 * GIB, 0))
    assert recovery.slack(0) == int(0.6 * GIB) and 9 * GIB < recovery.slack(100 * GIB) <= 10 * GIB
