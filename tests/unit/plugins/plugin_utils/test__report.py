# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import json
import typing as t

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._rank_log import RankLog
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils import _report

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


def test_without_ranks_at_best_all_is_free_but_for_what_others_have() -> None:
    read = facts(process(1, 2 * GIB, name="unimem-default-rank1"), process(2, GIB), process(3, None))
    result = _report.without_ranks(read, "default", at_best=True)
    assert result["memory"]["allocatable"] == result["memory"]["cuda_free"] == 5 * GIB
    assert [entry["pid"] for entry in result["processes"]] == [2, 3]
    # Of a pool of which the size is not known nothing more can be said than without.
    read["memory"]["total"] = None
    assert _report.without_ranks(read, "default", at_best=True) == _report.without_ranks(read, "default")


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


def test_what_is_doubtful_is_said_of_the_node() -> None:
    doubt = "NCCL on spark-01 uses sockets (NET/Socket)"
    nodes = {"spark-01": _report.node_report(host(tp_launch_doubts=[doubt])), "spark-02": _report.node_report(host())}
    report = _report.deploy_report(nodes, COMMON)
    assert report["lines"].count(f"  doubtful: {doubt}") == 1
    assert report["data"]["nodes"]["spark-01"]["doubts"] == [doubt]


def test_what_the_budget_doubts_is_said_with_its_prediction() -> None:
    doubted = {"verdict": "fits", "need": 5 * GIB, "problems": [{"code": "memory_fragmented", "message": "in pieces", "severity": "warning"}]}
    report = _report.deploy_report({"spark-01": _report.node_report(host(deploy_budget=doubted))}, COMMON)
    assert "  doubtful:  in pieces" in report["lines"]


def test_what_was_only_looked_at_is_not_said_to_have_been_measured() -> None:
    report = _report.deploy_report({"spark-01": _report.node_report(host())}, {**COMMON, "check": True, "result": {}})
    text = "\n".join(report["lines"])
    assert "m with vllm_mp on spark-01: looked at, nothing changed" in text
    assert "predicted: a rank needs 5.0 GiB" in text
    assert "measured" not in text and "after" not in text


def test_a_group_that_ran_already_has_one_reading_which_is_now() -> None:
    node = host()
    del node["deploy_at_launch"]
    result = _report.deploy_report({"a": _report.node_report(node)}, {"group": {"answers": True}, "model": "m", "engine": "e"})
    (head,) = (line for line in result["lines"] if "pool of" in line)
    assert head.split()[-1] == "now" and "it ran already as wanted" in result["lines"][0]
    assert not any("predicted" in line or "stopped" in line for line in result["lines"])
    assert "<td>3.0 GiB</td>" in result["html"], "what is available now is in the page too"


def test_nothing_but_what_is_reported_on_is_taken_over() -> None:
    assert "hunter2" not in str(_report.deploy_report({"a": _report.node_report(host())}, COMMON))


def test_a_host_of_which_nothing_is_known_is_reported_too() -> None:
    report = _report.deploy_report({"a": _report.node_report({})}, {"model": "m", "engine": "e", "failed": True, "unreachable": ["a"]})
    assert "its memory could not be read" in "\n".join(report["lines"])
    assert report["cause"].startswith("network: out of reach: a")


def readings(*lines: str) -> dict[str, t.Any]:
    """What rank_info returns for a host with one rank that ended."""
    log = RankLog(40)
    for line in lines:
        log.feed(line)
    rank = {"rank": 0, "container": "unimem-default-rank0", "status": "exited", "running": False, "exit_status": 1, "started": 0.0, "environment": {"A": "b"}}
    return {"ranks": [{**rank, "log": log.told()}], "journal": {"found": [], "lines": ["1.5 host kernel: x"], "reason": None}, "invocation": "hunter2"}


def test_a_failure_is_told_by_its_diagnosis_and_keeps_a_file_for_each_thing() -> None:
    nodes = {
        "head/../x": _report.node_report(host(tp_launch_readings=readings("2026-01-01T00:00:05Z [engine] torch.AcceleratorError: CUDA error: out of memory"))),
        "b": _report.node_report({"deploy_failure": {"task": "Start", "message": "Another host failed."}}),
    }
    report = _report.deploy_report(nodes, {"failed": True})
    assert report["cause"] == "memory: head/../x says: torch.AcceleratorError: CUDA error: out of memory"
    assert report["data"]["class"] == "memory" and report["data"]["diagnosis"]["cause"] == "cuda_context"
    files = report["files"]
    assert set(files) == {
        "00-cause.txt",
        "report.json",
        "report.html",
        "head_.._x/memory-before.json",
        "head_.._x/memory-at_launch.json",
        "head_.._x/memory-after.json",
        "head_.._x/unimem-default-rank0.log",
        "head_.._x/unimem-default-rank0.json",
        "head_.._x/journal.log",
    }
    assert files["00-cause.txt"].startswith("FAILED: memory: ") and "remedy" in files["00-cause.txt"]
    assert "CUDA error" in files["head_.._x/unimem-default-rank0.log"]
    assert json.loads(files["report.json"])["class"] == "memory"
    assert "hunter2" not in str(files)


def test_the_names_of_files_stay_below_their_directory() -> None:
    assert _report.file_name("../../etc/passwd") == "_.._etc_passwd"
    assert [_report.file_name(name) for name in ("", "..", ".x", "a/b", "é")] == ["_", "_", "x", "a_b", "_"]


def test_without_a_known_line_the_task_that_failed_is_the_cause() -> None:
    nodes = {"a": _report.node_report({"deploy_failure": {"task": "Copy", "message": "it is odd"}}), "b": _report.node_report({})}
    assert _report.deploy_report(nodes, {"failed": True})["cause"] == "unknown: a says: it is odd (in the task 'Copy')"


def found_rank(number: int, launch: str = "L1", **more: t.Any) -> dict[str, t.Any]:
    log = {"head": ["2026-01-01T00:00:00Z [rank] 2026-01-01T00:00:00Z rank 0 of 2 (head a), launch L1"], "tail": [], "found": []}
    return {
        "rank": number,
        "container": f"unimem-default-rank{number}",
        "status": "running",
        "running": True,
        "health": "healthy",
        "ready": True,
        "launch_id": launch,
        "log": log,
        **more,
    }


ENDED: dict[str, t.Any] = {"status": "exited", "running": False, "exit_status": 70, "health": "unhealthy"}


@pytest.mark.parametrize(
    ("ranks", "answer", "state"),
    [
        (([found_rank(0)], [found_rank(1)]), {"text": "Paris"}, "answers"),
        (([found_rank(0)], [found_rank(1)]), {"why": "timed out"}, "silent"),
        (([found_rank(0, ready=False)], [found_rank(1, ready=False)]), {"why": "refused"}, "starting"),
        (([found_rank(0)], []), {"text": "Paris"}, "incomplete"),
        (([found_rank(0)], [found_rank(1, launch="L0")]), {"text": "Paris"}, "incomplete"),
        (([found_rank(0)], [found_rank(1, **ENDED)]), {}, "incomplete"),
        (([], []), {}, "absent"),
    ],
)
def test_a_deployment_as_it_is_found(ranks: tuple[list[dict[str, t.Any]], ...], answer: dict[str, str], state: str) -> None:
    nodes = {name: _report.node_report({"tp_launch_readings": {"ranks": found}}) for name, found in zip(("a", "b"), ranks)}
    report = _report.diagnose_report(nodes, {"name": "default", "engine": "vllm_mp", "answer": answer})
    assert report["state"] == state and _report.STATES[state] in report["lines"][0]
    assert report["data"]["state"] == state and json.loads(report["files"]["report.json"])["state"] == state


def test_of_nodes_that_nobody_reached_nothing_is_known() -> None:
    nodes = {name: _report.node_report({}) for name in ("a", "b")}
    report = _report.diagnose_report(nodes, {"name": "default", "engine": "vllm_mp", "unreachable": ["a", "b"], "answer": {}})
    assert report["state"] == "unknown" and "not known" in report["lines"][0]
    assert _report.diagnose_report(nodes, {"name": "default", "engine": "vllm_mp", "unreachable": ["b"], "answer": {}})["state"] == "absent"


def test_a_node_that_cannot_be_asked_is_missing_from_the_group() -> None:
    nodes = {"a": _report.node_report({"tp_launch_readings": {"ranks": [found_rank(0)]}}), "b": _report.node_report({})}
    report = _report.diagnose_report(nodes, {"name": "default", "engine": "vllm_mp", "unreachable": ["b"], "answer": {"text": "x"}})
    assert report["state"] == "incomplete" and report["data"]["class"] == "network" and "b" in report["cause"]


def test_what_is_taken_full_or_down_is_said_of_each_node() -> None:
    told = {
        "engine": "no container engine answers",
        "ports": {"8000": {"why": "Address already in use", "users": ["LISTEN on 0.0.0.0:8000: python3 (7)"]}, "1": {"why": None, "users": []}},
        "disks": [{"path": "/data", "free": GIB, "total": 2 * GIB}],
        "links": [{"name": "f0", "up": False, "carrier": False}, {"name": "f1", "up": True, "carrier": True}],
    }
    text = "\n".join(_report.diagnose_report({"a": _report.node_report({"tp_launch_readings": told})}, {"name": "x", "engine": "sglang"})["lines"])
    for words in ("no container engine answers", "port 8000 is taken: LISTEN on 0.0.0.0:8000: python3 (7)", "/data has 1.0 GiB of 2.0 GiB left", "f0 is down"):
        assert words in text
    assert "f1" not in text and "port 1 " not in text
