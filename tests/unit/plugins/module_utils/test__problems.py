# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._problems import MAX_MESSAGE, MAX_PROBLEMS, Problems, shown


def test_errors_come_first_and_duplicates_once() -> None:
    problems = Problems()
    problems.add("b", "warned")
    problems.error("a", "wrong")
    problems.add("b", "warned")
    assert [(entry["code"], entry["severity"]) for entry in problems.as_list()] == [("a", "error"), ("b", "warning")]
    assert problems.has("x", "a")
    assert not problems.has("x")


def test_bounded_but_errors_are_kept() -> None:
    problems = Problems()
    for index in range(1000):
        problems.add("w", f"warning {index}")
    problems.error("e", "wrong")
    listed = problems.as_list()
    assert len(listed) == MAX_PROBLEMS + 2
    assert listed[0]["code"] == "e"
    assert listed[-1]["message"].startswith("950 more")


def test_long_messages_are_cut() -> None:
    problems = Problems()
    problems.add("w", "x" * 10000)
    assert len(problems.as_list()[0]["message"]) == MAX_MESSAGE


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\nb", "'a\\nb'"),
        ([1, 2], "a list of 2 entries"),
        ({"a": 1}, "a dictionary of 1 entries"),
        (7, "7"),
        (None, "None"),
        (True, "True"),
        (1 << 1000, "a number of 1001 bits"),
    ],
)
def test_shown(value: object, text: str) -> None:
    assert shown(value) == text


def test_shown_is_short() -> None:
    assert len(shown("x" * 10**6)) == 60
