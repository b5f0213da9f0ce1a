# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The earliest cause over all ranks, from logs as they are read on the nodes: each story is one that people have reported."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._causes import find
from ansible_collections.unimem.dgx_spark.plugins.module_utils._rank_log import RankLog
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils import _diagnosis
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._diagnosis import ELSEWHERE, diagnose

GIB = 1024**3
START = 1796029920.0  # 2026-11-30T09:12:00Z


def stamp(seconds: float) -> str:
    return f"2026-11-30T09:{12 + int(seconds) // 60:02}:{seconds % 60:09.6f}Z"


def rank(number: int, *lines: tuple[float, str], status: str = "exited", exit_status: int | None = 1, **more: t.Any) -> dict[str, t.Any]:
    """A rank as rank_info describes it; lines are (seconds after the start, text)."""
    log = RankLog(400)
    for seconds, text in lines:
        log.feed(f"{stamp(seconds)} {text}")
    return {
        "rank": number,
        "container": f"unimem-default-rank{number}",
        "status": status,
        "running": status == "running",
        "exit_status": exit_status,
        "started": START,
        "finished": START + 100,
        "log": log.told(),
        **more,
    }


def end(seconds: float, status: int, reason: str) -> tuple[float, str]:
    return seconds, f"[rank] 2026-11-30T09:12:00Z ending with status {status}: {reason}"


def journal(*lines: tuple[float, str]) -> dict[str, t.Any]:
    found = []
    for seconds, text in lines:
        match = find(text)
        assert match is not None
        found.append({"time": START + seconds, "process": "journal", "cause": match.cause.name, "fields": match.fields, "line": text})
    return {"found": found, "lines": [], "reason": None}


CONTEXT = "[engine] torch.AcceleratorError: CUDA error: out of memory"
NOISE = [(20.0 + number / 100, "[engine] torch.distributed.DistBackendError: NCCL error in: x, unhandled system error") for number in range(50)]


def test_one_line_about_memory_is_not_drowned_by_the_others_noise() -> None:
    """M8: a healthy node was rebooted because its peers' errors drowned rank 0's single line."""
    nodes = {
        "spark-01": {"ranks": [rank(0, (19.0, CONTEXT), end(19.5, 1, "engine ended with exit status 1"))]},
        "spark-02": {"ranks": [rank(1, *NOISE, end(21.0, 70, "rank 0 (head spark-01): engine ended with exit status 1"))]},
    }
    found = diagnose(nodes)
    assert (found["class"], found["node"], found["rank"], found["cause"]) == ("memory", "spark-01", 0, "cuda_context")


def test_a_loud_rank_that_speaks_earlier_still_only_echoes() -> None:
    """The network complaint came first, since a traceback takes its time: what tells of a failure of its own wins."""
    nodes = {
        "a": {"ranks": [rank(0, (10.0, NOISE[0][1]), end(10.2, 1, "engine ended with exit status 1"))]},
        "b": {"ranks": [rank(1, (10.4, CONTEXT), end(11.0, 1, "engine ended with exit status 1"))]},
    }
    assert (diagnose(nodes)["class"], diagnose(nodes)["node"]) == ("memory", "b")


@pytest.mark.parametrize("offset", [0.0, 120.0, -120.0])
def test_the_earliest_is_the_earliest_by_one_clock(offset: float) -> None:
    """Both have a cause of their own; b's clock is wrong by two minutes, and the ranks have compared them when they met."""
    met = (1.0 - offset if offset <= 0 else 1.0, f"[rank] 2026-11-30T09:12:00Z met rank 0; its clock is {offset:+.3f} s from this one")
    shift = -offset if offset <= 0 else 0.0
    head = 0.0 if offset <= 0 else offset
    nodes = {
        "a": {"ranks": [rank(0, (head + 30.0, "[engine] OSError: [Errno 98] Address already in use"), end(head + 33.0, 1, "engine ended"))]},
        "b": {"ranks": [rank(1, met, (shift + 29.0, CONTEXT), end(shift + 33.5, 1, "engine ended"))]},
    }
    assert (diagnose(nodes)["node"], diagnose(nodes)["class"]) == ("b", "memory")
    late = {**nodes, "b": {"ranks": [rank(1, met, (shift + 31.0, CONTEXT), end(shift + 33.5, 1, "engine ended"))]}}
    assert (diagnose(late)["node"], diagnose(late)["class"]) == ("a", "port")


def test_clocks_that_were_never_compared_count_only_when_far_apart() -> None:
    nodes: dict[str, dict[str, t.Any]] = {"a": {"ranks": [rank(0)], "clock": 1000.0}, "b": {"ranks": [rank(1)], "clock": 997.0}}
    assert _diagnosis.clock_offsets(nodes)["b"][0] == 0.0
    nodes["b"]["clock"] = 400.0
    assert _diagnosis.clock_offsets(nodes)["b"][0] == 600.0


def test_what_others_say_after_the_first_end_is_no_cause() -> None:
    """Rank 1 ends for a reason that nobody knows; rank 0 then complains about the network."""
    nodes = {
        "a": {"ranks": [rank(0, (21.0, NOISE[0][1]), end(22.0, 70, "rank 1 (worker b): engine ended with exit status 3"))]},
        "b": {"ranks": [rank(1, (19.0, "[engine] something strange"), end(20.0, 3, "engine ended with exit status 3"))]},
    }
    found = diagnose(nodes)
    assert (found["class"], found["node"]) == ("unknown", "b")
    assert found["line"] == "engine ended with exit status 3"


def test_an_exception_that_nobody_knows_is_the_engines_own() -> None:
    nodes = {
        "a": {
            "ranks": [
                rank(0, (5.0, "[engine] WARNING: Connection refused, trying again"), (9.0, "[engine] KeyError: 'layers.0.x'"), end(9.5, 1, "engine ended"))
            ]
        },
        "b": {"ranks": [rank(1, end(9.8, 70, "rank 0 (head a): engine ended"))]},
    }
    found = diagnose(nodes)
    assert (found["class"], found["node"], found["line"]) == ("engine", "a", "KeyError: 'layers.0.x'")


def test_how_far_an_engine_was_that_was_never_ready() -> None:
    load = (
        (5.0, "[engine] INFO Starting to load model /models/x..."),
        (6.0, "[engine] \rLoading safetensors checkpoint shards:  25% Completed | 1/4 [00:00<00:00]"),
    )
    late = end(90.0, 75, "the engine was not ready within the time allowed, 20 s")
    found = diagnose({"a": {"ranks": [rank(0, *load, late)]}})
    assert (found["class"], found["cause"]) == ("timeout", "not_ready")
    assert "The engine was still busy: rank 0 loads the weights, 25 %." in found["remedy"]
    assert "nothing is known of its progress" in diagnose({"a": {"ranks": [rank(0, late)]}})["remedy"]


def test_of_ranks_that_were_not_ready_the_one_that_came_least_far_is_meant() -> None:
    late = end(90.0, 75, "the engine was not ready within the time allowed, 20 s")
    load, cache = (5.0, "[engine] INFO Starting to load model x"), (8.0, "[engine] INFO GPU KV cache size: 61,440 tokens")
    found = diagnose({"a": {"ranks": [rank(0, load, late)]}, "b": {"ranks": [rank(1, load, cache, late)]}})
    assert (found["class"], found["node"], found["rank"]) == ("timeout", "a", 0)
    assert "The engine was still busy: rank 0 loads the weights." in found["remedy"] and "slow on a" in found["remedy"]


def test_a_host_that_quotes_another_one_is_not_the_cause() -> None:
    """It sorts first, and its message repeats what the other one's disk said."""
    full = "Could not write /srv/x: [Errno 28] No space left on device"
    nodes = {"a": {"failure": {"task": "T", "message": f"{ELSEWHERE}\nThe cause: disk: b says: {full}"}}, "b": {"failure": {"task": "T", "message": full}}}
    assert (diagnose(nodes)["class"], diagnose(nodes)["node"]) == ("disk", "b")
    role = Path(__file__).resolve().parents[4] / "roles" / "tp_launch" / "tasks" / "failed.yml"
    assert f"default('{ELSEWHERE}', true)" in role.read_text(encoding="utf-8")


def test_a_rank_that_was_killed_is_called_killed() -> None:
    nodes = {
        "a": {"ranks": [rank(0, (30.2, NOISE[0][1]), end(30.5, 70, "rank 1 (worker b): engine was killed by signal 9"))]},
        "b": {"ranks": [rank(1, (2.0, "[engine] ConnectionError: Connection refused"), end(30.0, 137, "engine was killed by signal 9"))]},
    }
    found = diagnose(nodes)
    assert (found["class"], found["node"], found["rank"]) == ("killed", "b", 1)
    assert "signal 9" in found["remedy"]


def test_a_process_that_ends_without_a_word_was_killed() -> None:
    echo = "[engine] Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause."
    nodes = {"b": {"ranks": [rank(1, (20.0, echo), end(20.5, 1, "engine ended with exit status 1"))]}}
    found = diagnose(nodes)
    assert (found["class"], found["cause"], found["node"]) == ("killed", "silent_end", "b")


def test_an_exception_explains_a_worker_that_died_of_it() -> None:
    died = "[engine] ERROR Worker proc VllmWorker-0 died unexpectedly, shutting down executor."
    lines = [(9.0, "[engine] RuntimeError: shape '[2, 3]' is invalid for input of size 5"), (9.1, died), end(9.3, 1, "engine ended with exit status 1")]
    assert diagnose({"a": {"ranks": [rank(0, *lines)]}})["class"] == "engine"
    assert diagnose({"a": {"ranks": [rank(0, (2.0, "[engine] Connection refused"), *lines[1:])]}})["cause"] == "died_worker"


def test_unless_the_kernel_says_that_it_was_for_memory() -> None:
    killed = "kernel: Out of memory: Killed process 4711 (VLLM::Worker_TP) total-vm:1kB, anon-rss:5120304kB"
    nodes = {
        "a": {"ranks": [rank(0, end(30.5, 70, "rank 1 (worker b): engine was killed by signal 9"))]},
        "b": {"ranks": [rank(1, end(30.0, 137, "engine was killed by signal 9"))], "journal": journal((30.2, killed))},
    }
    found = diagnose(nodes)
    assert (found["class"], found["node"], found["cause"]) == ("memory", "b", "kernel_oom")
    assert "4711" in found["remedy"] and "5120304 kB" in found["remedy"]


def test_what_the_kernel_said_before_the_launch_is_not_about_it() -> None:
    nodes = {"b": {"ranks": [rank(1, end(30.0, 137, "engine was killed by signal 9"))], "journal": journal((-50.0, "kernel: NVRM: Xid (PCI:000f:01:00): 31"))}}
    assert diagnose(nodes)["class"] == "killed"


OLD = "kernel: Out of memory: Killed process 7 (python3) total-vm:1kB, anon-rss:2kB"


def test_without_a_rank_only_what_the_kernel_said_during_the_run_counts() -> None:
    message = "spark-02 does not have the image unimem/x:1, and it is never pulled at a launch."
    run = {"readings_at": START + 1000, "clock": START + 1000, "times": {"before": START}, "failure": {"task": "x", "message": message}}
    nodes: dict[str, dict[str, t.Any]] = {"b": {**run, "journal": journal((-500.0, OLD))}}
    assert diagnose(nodes)["class"] == "image"
    nodes["b"]["journal"] = journal((500.0, OLD))
    assert diagnose(nodes)["class"] == "memory"


def test_where_nothing_is_known_but_the_kernels_words_they_are_told() -> None:
    assert diagnose({"b": {"journal": journal((-500.0, OLD))}})["class"] == "memory"
    assert diagnose({"b": {"journal": journal((-500.0, OLD)), "links": [{"name": "f", "up": False}]}})["class"] == "network"


def test_a_node_that_saved_its_memory_says_so() -> None:
    fired = {"reason": "memory_floor", "detail": "MemAvailable stayed below 2.0 GiB for 5 s"}
    nodes: dict[str, dict[str, t.Any]] = {"b": {"ranks": [rank(1, end(30.0, 137, "engine was killed by signal 9"))], "fired": fired}}
    assert (diagnose(nodes)["class"], diagnose(nodes)["line"]) == ("memory", "MemAvailable stayed below 2.0 GiB for 5 s")
    nodes["b"] = {"fired": {"reason": "expired", "detail": "nobody renewed it"}}
    assert diagnose(nodes)["class"] == "network"


def test_a_container_that_was_killed_whole_says_nothing_itself() -> None:
    nodes = {
        "a": {"ranks": [rank(0, end(71.0, 71, "rank 1 is lost: its connection ended"))]},
        "b": {"ranks": [rank(1, (2.0, "[rank] 2026-11-30T09:12:00Z met rank 0"), exit_status=137, finished=START + 70.0)]},
    }
    found = diagnose(nodes)
    assert (found["class"], found["node"], found["cause"]) == ("killed", "b", "container_killed")
    nodes["b"]["ranks"][0]["oom_killed"] = True
    assert diagnose(nodes)["class"] == "memory"


def test_a_restarted_container_engine_is_recognised() -> None:
    nodes: dict[str, dict[str, t.Any]] = {
        "a": {"ranks": [rank(0, end(40.5, 70, "rank 1 (worker b): asked to stop by signal 15"))], "docker": {"since": START - 9000}},
        "b": {"ranks": [rank(1, end(40.0, 143, "asked to stop by signal 15"))], "docker": {"since": START + 47}},
    }
    found = diagnose(nodes)
    assert (found["class"], found["node"]) == ("docker", "b")
    nodes["b"]["docker"]["since"] = START - 9000
    assert diagnose(nodes)["class"] == "killed"


def test_ranks_that_only_lost_each_other_blame_the_link_that_is_down() -> None:
    nodes: dict[str, dict[str, t.Any]] = {
        "a": {"ranks": [rank(0, end(60.0, 71, "rank 1 is lost: nothing was heard from it for 30 s"))], "links": [{"name": "f0", "up": True, "carrier": False}]},
        "b": {
            "ranks": [rank(1, end(61.0, 71, "rank 0 is lost: nothing was heard from it for 30 s"))],
            "links": [{"name": "f1", "up": False, "carrier": False}],
        },
    }
    found = diagnose(nodes)
    assert (found["class"], found["node"], found["cause"]) == ("network", "b", "link_set_down")
    nodes["b"]["links"] = [{"name": "f1", "up": True, "carrier": True}]
    assert diagnose(nodes)["cause"] == "no_carrier" and diagnose(nodes)["node"] == "a"
    nodes["a"]["links"] = []
    assert diagnose(nodes)["class"] == "network" and diagnose(nodes)["cause"] == "rank_lost"


def test_a_task_that_failed_speaks_where_no_rank_does() -> None:
    message = "spark-02 does not have the image unimem/x:1, and it is never pulled at a launch. The role image_build brings it to all hosts."
    nodes: dict[str, dict[str, t.Any]] = {
        "spark-01": {"failure": {"task": "Preflight", "message": "Another host failed."}},
        "spark-02": {"failure": {"task": "Preflight", "message": message}},
    }
    found = diagnose(nodes)
    assert (found["class"], found["node"]) == ("image", "spark-02")


def test_an_unknown_task_is_told_with_its_name() -> None:
    nodes = {"a": {"failure": {"task": "", "message": ""}}, "b": {"failure": {"task": "Copy", "message": "it is odd\nmore"}}}
    found = diagnose(nodes)
    assert (found["class"], found["node"]) == ("unknown", "b")
    assert found["sentence"] == "unknown: b says: it is odd (in the task 'Copy')"


def test_a_log_quoted_in_a_tasks_message_is_not_read_as_the_tasks_own() -> None:
    nodes = {"a": {"failure": {"task": "x", "message": "it failed\nfor a reason\n\n" + CONTEXT}}}
    assert diagnose(nodes)["class"] == "unknown"


def test_a_completion_that_fails_is_the_engines_fault_and_its_exception_says_more() -> None:
    said = "Status code was 500 and not [200]: HTTP Error 500: Internal Server Error"
    running = rank(0, (50.0, "[engine] RuntimeError: head_dim 32 is not supported"), status="running", exit_status=None)
    nodes: dict[str, dict[str, t.Any]] = {"a": {"failure": {"task": "Complete", "message": said}, "ranks": [rank(0, status="running", exit_status=None)]}}
    assert (diagnose(nodes)["class"], diagnose(nodes)["cause"]) == ("engine", "completion_error")
    nodes["a"]["ranks"] = [running]
    assert diagnose(nodes)["line"] == "RuntimeError: head_dim 32 is not supported"


def test_who_cannot_be_reached_is_the_cause_unless_a_rank_knows_better() -> None:
    nodes: dict[str, dict[str, t.Any]] = {"a": {"ranks": [rank(0, end(60.0, 71, "rank 1 is lost: nothing was heard"))]}, "b": {}}
    assert diagnose(nodes, ["b"])["sentence"].startswith("network: out of reach: b")
    nodes["a"] = {"ranks": [rank(0, (10.0, CONTEXT), end(11.0, 1, "engine ended"))]}
    found = diagnose(nodes, ["b"])
    assert found["class"] == "memory" and found["unreachable"] == ["b"]


def test_nothing_wrong_is_nothing_found() -> None:
    found = diagnose({"a": {"ranks": [rank(0, (1.0, "[engine] fine"), status="running", exit_status=None)]}})
    assert found["class"] is None and found["sentence"] == ""
    assert _diagnosis.page(found, {}) == ["No cause was found: no rank has ended, and no known message was read."]


def test_remedies_have_the_nodes_figures_and_are_no_templates() -> None:
    memory = {"total": 6 * GIB, "free": GIB // 4, "available": 5 * GIB, "page_cache": 4 * GIB}
    holders = [{"kind": "container", "name": "{free} {{ 7*7 }}", "memory": GIB}]
    nodes = {
        "spark-02": {
            "ranks": [rank(1, (9.0, CONTEXT), end(9.5, 1, "engine ended"))],
            "moments": {"before": {"memory": {}, "holders": []}, "at_launch": {"memory": memory, "holders": holders}},
        }
    }
    remedy = diagnose(nodes)["remedy"]
    assert "spark-02 had 256.0 MiB free and 4.0 GiB of page cache, 5.0 GiB available" in remedy
    assert "container {free} {{ 7*7 }} 1.0 GiB" in remedy


@pytest.mark.parametrize(
    ("free", "told"),
    [
        ([900, 3, 800, 0], "/3 has 0 B of 1000 B left; /1 has 3 B of 1000 B left"),
        # Somebody has made room since: the fullest first.
        ([900, 300, 800], "/1 has 300 B of 1000 B left; /2 has 800 B of 1000 B left; /0 has 900 B of 1000 B left"),
        ([], "its file systems could not be read"),
    ],
)
def test_of_file_systems_those_are_told_of_that_are_full(free: list[int], told: str) -> None:
    node = {"disks": [{"path": f"/{number}", "total": 1000, "free": left} for number, left in enumerate(free)]}
    assert _diagnosis.numbers("a", node)["disks"] == told


def test_the_first_page_says_what_where_when_and_what_to_do() -> None:
    nodes = {
        "spark-01": {"ranks": [rank(0, (19.0, CONTEXT), end(19.5, 1, "engine ended with exit status 1"))], "journal": {"found": [], "reason": "not permitted"}},
        "spark-02": {"ranks": [rank(1, *NOISE, end(21.0, 70, "rank 0 (head spark-01): engine ended"))], "engine": "no container engine answers"},
    }
    text = "\n".join(_diagnosis.page(diagnose(nodes, ["spark-03"]), nodes))
    for words in (
        "class    memory",
        "node     spark-01, rank 0",
        "when     2026-11-30 09:12:19.000 UTC",
        "line     torch.Accel",
        "remedy   A CUDA context",
        "missing  spark-03",
    ):
        assert words in text
    assert "spark-02 rank 1: status 70" in text and "its journal could not be read: not permitted" in text and "no container engine answers" in text


@pytest.mark.parametrize(
    "node", [{}, {"ranks": None}, {"ranks": [{}]}, {"ranks": [{"log": None, "rank": -1}]}, {"journal": None, "failure": None, "links": None}]
)
def test_readings_with_holes_do_not_hinder_a_diagnosis(node: dict[str, t.Any]) -> None:
    assert isinstance(diagnose({"a": node, "b": {}}), dict)


def test_plain_lines_of_one_log() -> None:
    lines = ["2026-01-01T00:00:01Z [engine] Connection refused", "2026-01-01T00:00:05Z [engine] torch.AcceleratorError: CUDA error: out of memory"]
    assert _diagnosis.cause_of_lines(lines) == "memory: [engine] torch.AcceleratorError: CUDA error: out of memory"
    assert _diagnosis.cause_of_lines(lines[:1]) == "network: [engine] Connection refused"
    assert _diagnosis.cause_of_lines(["INFO all is well"]) == ""
