# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _engine_check as checks
from ansible_collections.unimem.dgx_spark.plugins.module_utils._engine_check import parse_version

GIB = 1024**3
TOTAL = int(119.7 * GIB)


@pytest.mark.parametrize(
    ("text", "number", "cpu"),
    [
        ("0.32.0", (0, 32, 0), False),
        ("v0.20.1.dev0", (0, 20, 1), False),
        ("0.32.0+cpu", (0, 32, 0), True),
        ("0.5.23", (0, 5, 23), False),
        ("0.11", (0, 11, 0), False),
        ("26.04", None, False),
        ("0.1.dev1+gda1daf40b", None, False),
        ("nightly", None, False),
        ("", None, False),
        (None, None, False),
        ("9" * 10000, None, False),
    ],
)
def test_versions(text: str | None, number: tuple[int, int, int] | None, cpu: bool) -> None:
    found = parse_version(text)
    assert (found.number, found.cpu) == (number, cpu)
    assert len(found.text) <= 80


@pytest.mark.parametrize(("version", "share"), [("0.18.1", 0.9), ("0.20.2", 0.92), ("0.32.0", 0.92), (None, 0.92)])
def test_default_utilization(version: str | None, share: float) -> None:
    assert checks.default_utilization(parse_version(version)) == share


@pytest.mark.parametrize(("version", "new"), [("0.19.2rc1", False), ("0.20.0", False), ("0.20.1", True), (None, True)])
def test_what_the_log_calls_tokens(version: str | None, new: bool) -> None:
    assert checks.tokens_are_concurrency(parse_version(version)) is new


@pytest.mark.parametrize(("share", "gib"), [(0.9, 107.7), (0.8, 95.8)])
def test_asked(share: float, gib: float) -> None:
    assert checks.asked_by_utilization(TOTAL, share) / GIB == pytest.approx(gib, abs=0.05)


def test_both_readings_of_free_memory_are_judged() -> None:
    """vllm-project/vllm#48140: some builds read MemFree; only the page cache is in the way then."""
    available, literal = checks.utilization_check(TOTAL, 0.8, 101 * GIB, 3 * GIB, 0, parse_version("0.32.0"))
    assert (available.name, available.passes_now, available.seen) == ("free_memory", True, 101 * GIB)
    assert (literal.name, literal.passes_now, literal.passes_after_cache_eviction) == ("free_memory_by_mem_free", False, True)
    assert available.as_dict()["remedy"] == ""
    assert literal.as_dict()["remedy"]


def test_old_versions_read_mem_free() -> None:
    first = checks.utilization_check(TOTAL, 0.8, 101 * GIB, 3 * GIB, 0, parse_version("0.11.0"))[0]
    assert first.name == "free_memory_by_mem_free"


def test_remedy_names_a_utilization_that_passes() -> None:
    first = checks.utilization_check(TOTAL, 0.9, 101 * GIB, 3 * GIB, 3 * GIB, parse_version("0.32.0"))[0]
    assert not first.passes_now
    assert "at most 0.81" in first.remedy
    assert checks.asked_by_utilization(TOTAL, 0.81) <= 98 * GIB < checks.asked_by_utilization(TOTAL, 0.82)


def test_the_seeds_failure() -> None:
    """set_device with 3.3 GB of MemFree: the context fails before any weight is loaded."""
    found = checks.context_check(4 * GIB, int(3.3e9), 101 * GIB)
    assert (found.passes_now, found.passes_after_cache_eviction) == (False, True)


def test_sglang() -> None:
    """mem_fraction_static 0.60 of 112.26 GiB holds 58.07 GiB of weights and 9 of cache, not 10."""
    assert checks.sglang_static_check(0.6, int(112.26 * GIB), int(58.07 * GIB), 9 * GIB).passes_now
    assert not checks.sglang_static_check(0.6, int(112.26 * GIB), int(58.07 * GIB), 10 * GIB).passes_now


@pytest.mark.parametrize(("local", "other", "passes"), [(100, 91, True), (100, 90, True), (100, 89, False), (89, 100, False)])
def test_sglang_balance(local: int, other: int, passes: bool) -> None:
    assert checks.sglang_balance_check(local * GIB, [other * GIB]).passes_now is passes
