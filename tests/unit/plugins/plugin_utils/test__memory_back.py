# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.filter.memory_back import memory_back
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._memory_back import why_not_back

GIB = 1024**3


def row(name: str, memory: int | None, start_time: int | None = 5) -> dict[str, t.Any]:
    return {"pid": 7, "start_time": start_time, "memory": memory, "owner": {"kind": "container", "name": name}}


def facts(*processes: dict[str, t.Any], unattributed: int | None = GIB, klass: str = "unified", gpu: str = "pynvml") -> dict[str, t.Any]:
    return {"class": klass, "sources": {"gpu": gpu}, "memory": {"total": 100 * GIB}, "processes": list(processes), "unattributed": unattributed}


BEFORE = facts(row("unimem-default-rank0", 60 * GIB))


def test_it_is_back_when_nobody_has_it() -> None:
    others = row("vllm_embeddings", 11 * GIB)
    assert why_not_back(facts(others), BEFORE, "default") == ""
    # The kernel's own comes and goes.
    assert why_not_back(facts(unattributed=2 * GIB), BEFORE, "default") == ""
    assert why_not_back(facts(), {}, "default") == "", "nothing is known of before"


def test_a_rank_is_still_listed() -> None:
    found = why_not_back(facts(row("unimem-default-rank0", 60 * GIB), row("unimem-other-rank0", GIB)), BEFORE, "default")
    assert found == "the driver still lists unimem-default-rank0 with 60.0 GiB"


def test_a_driver_keeps_what_no_living_process_has() -> None:
    for after in (facts(unattributed=58 * GIB), facts(row("", 57 * GIB, start_time=None))):
        assert "57.0 GiB that belong to no process" in why_not_back(after, BEFORE, "default")


@pytest.mark.parametrize("before", [BEFORE, {}])
def test_a_driver_that_does_not_answer_is_not_one_that_holds_nothing(before: dict[str, t.Any]) -> None:
    assert "does not answer" in why_not_back(facts(klass="unresponsive", gpu="none", unattributed=None), before, "default")


def test_a_driver_that_went_away() -> None:
    after = facts(klass="none", gpu="none", unattributed=None)
    assert "no longer be asked" in why_not_back(after, BEFORE, "default")
    assert why_not_back(after, after, "default") == "", "there was none before either"
    assert why_not_back(after, {}, "default") == ""


def test_what_is_not_known_is_not_held_against_it() -> None:
    assert why_not_back(facts(unattributed=None), BEFORE, "default") == ""


def test_the_filter_wants_dictionaries() -> None:
    assert memory_back(facts(), BEFORE) == ""
    for arguments in ((None,), (facts(), "before")):
        with pytest.raises(AnsibleFilterError, match="dictionaries"):
            memory_back(*arguments)
