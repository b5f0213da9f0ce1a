# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import math

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.filter.copy_rounds import FilterModule
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._fan_out import FanOutError, rounds


@pytest.mark.parametrize("count", range(1, 40))
def test_rounds_grow_with_the_logarithm_and_reach_everybody_once(count: int) -> None:
    names = [f"spark-{number:02d}" for number in range(count)]
    plan = rounds(names[1:], names[:1])
    assert len(plan) == math.ceil(math.log2(count))
    have = {names[0]}
    for pairs in plan:
        sources, targets = [pair["source"] for pair in pairs], [pair["target"] for pair in pairs]
        assert set(sources) <= have, "nobody sends what it has not"
        assert len(set(sources + targets)) == 2 * len(pairs), "one link, one copy"
        assert not have & set(targets)
        have |= set(targets)
    assert have == set(names)


def test_hosts_that_have_it_already_help() -> None:
    assert rounds(["c", "d"], ["a", "b"]) == [[{"source": "a", "target": "c"}, {"source": "b", "target": "d"}]]


def test_nothing_to_do() -> None:
    assert rounds([], []) == [] and rounds(["a"], ["a"]) == []


def test_nobody_has_it() -> None:
    with pytest.raises(FanOutError, match="no host has it"):
        rounds(["a"], [])


def test_the_filter_says_what_it_needs() -> None:
    copy_rounds = FilterModule().filters()["copy_rounds"]
    assert copy_rounds(["b"], ["a"]) == [[{"source": "a", "target": "b"}]]
    with pytest.raises(AnsibleFilterError, match="lists of hosts, not str"):
        copy_rounds("b", ["a"])
    with pytest.raises(AnsibleFilterError, match="no host has it"):
        copy_rounds(["b"], [])
