# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.filter.unknown_settings import FilterModule

unknown_settings = FilterModule().filters()["unknown_settings"]

KNOWN = ["deploy_name", "deploy_reports", "deploy_memory_floor", "image_build_host", "tp_launch_context_length", "tp_launch_port", "tp_launch_head"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("tp_launch_contxt_length", "tp_launch_context_length"),
        ("tp_launch_prot", "tp_launch_port"),
        ("deploy_report", "deploy_reports"),
        # The right word with the wrong prefix.
        ("deploy_port", "tp_launch_port"),
        ("tp_launch_memory_floor", "deploy_memory_floor"),
        ("model_sync_host", "image_build_host"),
    ],
)
def test_the_setting_that_may_be_meant(name: str, meant: str) -> None:
    assert unknown_settings({"a": [name]}, KNOWN) == [f"{name} (a): did you mean {meant}?"]


def test_a_common_prefix_makes_no_two_names_alike() -> None:
    assert unknown_settings({"a": ["tp_launch_xyz"]}, KNOWN) == ["tp_launch_xyz (a)"]


def test_a_common_word_is_taken_for_somebody_elses_where_no_setting_is_like_it() -> None:
    assert unknown_settings({"a": ["deploy_user", "plan_b", "deploy_nam"]}, KNOWN) == ["deploy_nam (a): did you mean deploy_name?"]


def test_nothing_to_say_of_what_is_known_internal_or_of_somebody_else() -> None:
    names = [*KNOWN, "__tp_launch_x", "ansible_host", "deployment", "model", "tp_launch_xyz"]
    assert unknown_settings({"a": names, "": names}, KNOWN, ["tp_launch_xyz"]) == []
    assert unknown_settings({"a": names}, KNOWN, "x, tp_launch_xyz") == []
    assert unknown_settings({}, KNOWN) == []


@pytest.mark.parametrize(
    ("variables", "where"),
    [
        ({"a": ["tp_launch_xyz"], "b": ["tp_launch_xyz"], "": []}, "all hosts"),
        ({"a": ["tp_launch_xyz"], "b": [], "c": ["tp_launch_xyz"]}, "a, c"),
        ({"a": ["tp_launch_xyz"], "": ["tp_launch_xyz"]}, "a"),
        ({"a": [], "": ["tp_launch_xyz"]}, "the playbook"),
    ],
)
def test_on_whose_account(variables: dict[str, list[str]], where: str) -> None:
    assert unknown_settings(variables, KNOWN) == [f"tp_launch_xyz ({where})"]


@pytest.mark.parametrize("arguments", [(["a"], KNOWN), ({}, "deploy_name"), ({}, 7), ({}, KNOWN, 7)])
def test_nonsense_is_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(AnsibleFilterError, match=r"unimem\.dgx_spark\.unknown_settings needs a"):
        unknown_settings(*arguments)
