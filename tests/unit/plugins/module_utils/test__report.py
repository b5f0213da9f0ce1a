# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _report

GIB = 1024**3


def process(pid: int, memory: int | None, kind: str = "container", name: str = "vllm_embeddings", command: str = "python3") -> dict[str, t.Any]:
    return {"pid": pid, "memory": memory, "name": command, "owner": {"kind": kind, "name": name, "unit": None}}


def facts(*processes: dict[str, t.Any], free: int = GIB, allocatable: int = 3 * GIB, total: int = 6 * GIB) -> dict[str, t.Any]:
    return {
        "class": "unified",
        "memory": {"total": total, "free": free, "available": allocatable, "cuda_free": free, "allocatable": allocatable, "page_cache": 2 * GIB},
        "processes": list(processes),
    }


def test_a_rank_is_known_by_its_whole_name() -> None:
    assert _report.is_rank_of(process(1, 1, name="unimem-default-rank0"), "default")
    for name in ("unimem-default-rank", "unimem-default-rank0x", "my-unimem-default-rank0", "unimem-other-rank0"):
        assert not _report.is_rank_of(process(1, 1, name=name), "default")
    assert not _report.is_rank_of(process(1, 1, kind="unit", name="unimem-default-rank0"), "default")


def test_without_ranks_gives_their_memory_back_and_leaves_the_facts_alone() -> None:
    read = facts(process(1, 2 * GIB, name="unimem-default-rank1"), process(2, GIB))
    before = copy.deepcopy(read)
    result = _report.without_ranks(read, "default")
    assert read == before
    assert [entry["pid"] for entry in result["processes"]] == [2]
    assert result["memory"]["allocatable"] == 5 * GIB
    assert result["memory"]["cuda_free"] == 3 * GIB


def test_without_ranks_never_gives_back_more_than_the_pool() -> None:
    result = _report.without_ranks(facts(process(1, 50 * GIB, name="unimem-default-rank1")), "default")
    assert result["memory"]["allocatable"] == 6 * GIB


def test_without_ranks_takes_what_the_driver_cannot_size() -> None:
    read = facts(process(1, None, name="unimem-default-rank0"))
    read["memory"]["cuda_free"] = None
    result = _report.without_ranks(read, "default")
    assert result["processes"] == [] and result["memory"]["cuda_free"] is None


def test_holders_add_up_by_owner_and_unknown_stays_unknown() -> None:
    sleep = process(4, 5, kind="process", name="", command="sleep")
    found = _report.holders(facts(process(1, GIB), process(2, GIB), process(3, None, kind="unit", name="x"), sleep))
    assert found == [
        {"kind": "container", "name": "vllm_embeddings", "memory": 2 * GIB},
        {"kind": "process", "name": "sleep (4)", "memory": 5},
        {"kind": "unit", "name": "x", "memory": None},
    ]


def host(**more: t.Any) -> dict[str, t.Any]:
    return {
        "ansible_facts": {"gpu_memory": facts(process(9, 4 * GIB, name="unimem-default-rank0"), allocatable=GIB)},
        "deploy_before": facts(process(1, GIB)),
        "deploy_at_launch": facts(allocatable=5 * GIB),
        "deploy_budget": {"verdict": "fits", "need": 5 * GIB, "will_take": 4 * GIB, "kv_tokens": 1000},
        "deploy_eviction": {
            "message": "freed",
            "actions": [{"action": "stop", "layer": "unit", "target": "e.service", "result": "stopped", "reason": "it holds 1.0 GiB"}],
        },
        "vault_secret": "hunter2",
        **more,
    }


COMMON = {
    "model": "m",
    "engine": "vllm_mp",
    "result": {
        "launch_id": "L1",
        "endpoint": "http://192.0.2.1:8000/v1",
        "ranks": [{}, {}],
        "completion": {"text": " a b", "tokens": 2, "prompt": "p"},
        "kv_pool": {"tokens": 1000},
    },
}


def test_a_deployment_is_told_whole() -> None:
    report = _report.deploy_report({"spark-01": _report.node_report(host())}, COMMON)
    text = "\n".join(report["lines"])
    for words in (
        "m with vllm_mp on spark-01: deployed",
        "held by container vllm_embeddings",
        "measured:  it took 4.0 GiB; predicted 4.0 GiB (+0.0 %)",
        "stop unit e.service: stopped (it holds 1.0 GiB)",
        "1,000 tokens, as the engine says; predicted 1,000",
        "http://192.0.2.1:8000/v1",
        "tokens    2: a b",
    ):
        assert words in text
    assert report["cause"] == "" and report["data"]["failed"] is False


def test_nothing_but_what_is_reported_on_is_taken_over() -> None:
    assert "hunter2" not in str(_report.deploy_report({"a": _report.node_report(host())}, COMMON))


def test_a_host_of_which_nothing_is_known_is_reported_too() -> None:
    report = _report.deploy_report({"a": _report.node_report({})}, {"model": "m", "engine": "e", "failed": True, "unreachable": ["a"]})
    assert "its memory could not be read" in "\n".join(report["lines"])
    assert report["cause"].startswith("out of reach: a")


def test_the_memory_line_wins_over_louder_and_earlier_ones() -> None:
    nodes = {
        "head": _report.node_report({"tp_launch_logs": ["2026-01-01T00:00:01Z NCCL error: unhandled"] * 200}),
        "worker": _report.node_report({"tp_launch_logs": ["2026-01-01T00:00:05Z torch.AcceleratorError: CUDA error: out of memory"]}),
    }
    report = _report.deploy_report(nodes, {"failed": True})
    assert report["cause"] == "memory: worker says: torch.AcceleratorError: CUDA error: out of memory"
    assert report["data"]["class"] == "memory"


def test_among_equals_the_earliest_line_is_the_cause() -> None:
    nodes = {
        "a": _report.node_report({"tp_launch_logs": ["2026-01-01T00:00:09Z Connection refused"]}),
        "b": _report.node_report({"tp_launch_logs": ["2026-01-01T00:00:02Z Address already in use"]}),
    }
    assert _report.classify(nodes) == {"class": "port", "node": "b", "line": "Address already in use"}


def test_without_a_known_line_the_task_that_failed_is_the_cause() -> None:
    nodes = {"a": _report.node_report({"deploy_failure": {"task": "Copy", "message": "no space left"}}), "b": _report.node_report({})}
    assert _report.deploy_report(nodes, {"failed": True})["cause"] == "a: no space left (in the task 'Copy')"
