# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import time
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._selectors import parse_selectors
from ansible_collections.unimem.dgx_spark.plugins.module_utils._stop_set import Owner, cheapest, stoppable_owners


def process(pid: int, memory: int | None, kind: str, name: str, unit: str | None = None, **more: t.Any) -> dict[str, t.Any]:
    return {
        "pid": pid,
        "name": more.pop("process", name),
        "command": None,
        "memory": memory,
        "user": "root",
        "protected": None,
        "owner": {"kind": kind, "name": name, "id": f"id-{name}" if kind == "container" else None, "unit": unit, "restarted_by": None},
        **more,
    }


def owners(processes: list[dict[str, t.Any]], *selectors: str) -> list[Owner]:
    return stoppable_owners(processes, parse_selectors(selectors))


EMBEDDINGS = process(10, 1170, "container", "vllm_embeddings", "vllm-embeddings.service")


def test_unit_and_its_container_are_one_owner() -> None:
    second = process(11, 30, "container", "vllm_embeddings", "vllm-embeddings.service")
    for selector in ("unit:vllm-embeddings.service", "container:vllm_embeddings"):
        found = owners([EMBEDDINGS, second], selector)
        assert [(owner.name, owner.memory, sorted(owner.pids), owner.selector) for owner in found] == [("vllm_embeddings", 1200, [10, 11], selector)]


def test_nothing_is_stoppable_without_a_selector() -> None:
    assert not owners([EMBEDDINGS])
    assert not owners([EMBEDDINGS], "unit:ollama.service")


def test_an_owner_is_stopped_whole_or_not_at_all() -> None:
    """One process of the unit does not match: the unit stays."""
    mixed = [
        process(1, 5, "unit", "tools.service", "tools.service", process="llama-server"),
        process(2, 7, "unit", "tools.service", "tools.service", process="other"),
    ]
    assert not owners(mixed, "process:llama-server")
    assert not owners(list(reversed(mixed)), "process:llama-server")
    assert owners(mixed, "process:llama-server", "process:other")[0].memory == 12


def test_protected_processes_protect_their_owner() -> None:
    protected = process(1, 5, "unit", "gdm.service", "gdm.service", protected="display server")
    plain = process(2, 5, "unit", "gdm.service", "gdm.service")
    assert not owners([protected, plain], "unit:gdm.service")
    assert not owners([plain, protected], "unit:gdm.service")


def test_desktops_are_never_stoppable() -> None:
    assert not owners([process(1, 5, "desktop", "Xorg")], "process:Xorg")


def test_bare_processes_are_owners_of_their_own() -> None:
    found = owners([process(1, 5, "process", "llama"), process(2, 7, "process", "llama")], "process:llama")
    assert sorted(owner.memory for owner in found) == [5, 7]


def test_unknown_memory_is_said() -> None:
    found = owners([process(1, None, "container", "a"), process(2, 3, "container", "a")], "container:a")
    assert (found[0].memory, found[0].known) == (3, False)


def test_facts_of_any_shape_are_survived() -> None:
    shapes: tuple[t.Any, ...] = (None, "text", 7, {}, [None], [7], [{}], [{"owner": "x"}], [{"pid": "x", "owner": {"kind": 7, "name": []}, "memory": "much"}])
    for facts in shapes:
        assert owners(facts, "process:x") == []


def owner(name: str, memory: int, order: int = 0) -> Owner:
    return Owner("container", name, None, memory, order=order)


def names(chosen: list[Owner] | None) -> list[str] | None:
    return None if chosen is None else [entry.name for entry in chosen]


def test_one_owner_rather_than_two_and_the_smaller_of_two() -> None:
    every = [owner("small", 3), owner("middle", 8), owner("large", 12)]
    assert names(cheapest(every, lambda freed: freed >= 1)) == ["small"]
    assert names(cheapest(every, lambda freed: freed >= 7)) == ["middle"]
    assert names(cheapest(every, lambda freed: freed >= 10)) == ["large"]
    assert names(cheapest(every, lambda freed: freed >= 15)) == ["small", "large"]
    assert names(cheapest(every, lambda freed: freed >= 23)) == ["small", "middle", "large"]
    assert cheapest(every, lambda freed: freed >= 24) is None


def test_equal_owners_go_by_the_order_of_the_selectors() -> None:
    assert names(cheapest([owner("a", 5, 1), owner("b", 5, 0)], lambda freed: freed >= 4)) == ["b"]


def test_nothing_to_stop() -> None:
    assert cheapest([], lambda freed: freed >= 0) == []
    assert cheapest([owner("unknown", 0)], lambda freed: freed >= 1) is None


def test_many_owners_take_no_time() -> None:
    every = [owner(f"o{index}", index + 1, index) for index in range(2000)]
    started = time.process_time()
    chosen = cheapest(every, lambda freed: freed >= 3000)
    assert time.process_time() - started < 20  # all combinations never end
    assert chosen is not None
    assert sum(entry.memory for entry in chosen) >= 3000
    assert len(chosen) == 2
