# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How far a rank is, from the words of real engines."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._launch_plan import engine_names
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._load_progress import look, stage

T = "2026-11-30T09:12:29.123456789Z "
RANK = T + "[rank] 2026-11-30T09:12:29Z "
ENGINE = T + "[engine] (EngineCore pid=9) INFO 11-30 09:12:29 "


@pytest.mark.parametrize(
    ("engine", "line", "words"),
    [
        ("vllm_ray", RANK + "rank 0 of 2 (head spark-01), launch x", "has started"),
        ("vllm_ray", RANK + "ray-head: waiting for 192.168.200.12 port 6379", "waits for rank 0"),
        ("vllm_ray", RANK + "ray-nodes started, pid 7", "waits until all nodes have joined Ray"),
        ("vllm_mp", RANK + "engine started, pid 7", "starts the engine"),
        ("vllm_mp", ENGINE + "[gpu_model_runner.py:2392] Starting to load model /m...", "loads the weights"),
        ("vllm", T + "[engine] Loading safetensors checkpoint shards:  14% Completed | 1/7 [00:02<00:13,  2.24s/it]", "loads the weights, 14 %"),
        ("vllm", ENGINE + "[default_loader.py:268] Loading weights took 31.20 seconds", "has loaded the weights"),
        ("vllm", ENGINE + "[backends.py:548] Dynamo bytecode transform time: 8.11 s", "compiles"),
        ("vllm", ENGINE + "[kv_cache_utils.py:1087] GPU KV cache size: 838,860 tokens", "has its KV cache"),
        ("vllm", T + "[engine] Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  43%|####3     | 29/67 [00:01<00:02]", "captures CUDA graphs, 43 %"),
        ("vllm", T + "[engine] INFO:     Application startup complete.", "serves"),
        ("sglang", T + "[engine] [2026-11-30 09:12:29 TP0] Load weight begin. avail mem=100.02 GB", "loads the weights"),
        ("sglang", T + "[engine] [2026-11-30 09:12:29 TP0] Capture cuda graph begin. This can take up to several minutes.", "captures CUDA graphs"),
        ("sglang", T + "[engine] [2026-11-30 09:12:29] The server is fired up and ready to roll!", "serves"),
        ("sglang", RANK + "ending with status 70: rank 1", "ends"),
    ],
)
def test_a_stage_is_known_by_what_is_printed(engine: str, line: str, words: str) -> None:
    assert stage([RANK + "rank 0 of 2 (head a), launch x", line, T + "[engine] something else", RANK + "memory: 1 MiB available"], engine) == words


@pytest.mark.parametrize("engine", engine_names())
def test_nothing_known_is_no_stage(engine: str) -> None:
    assert stage([], engine) == "" and stage([T + "[engine] hello", "x"], engine) == ""


def rank(**more: t.Any) -> dict[str, t.Any]:
    log = {"head": [RANK + "engine started, pid 7"], "tail": [], "memory": [[1.0, 5 * 1024**3, 0, 0]], "end": None}
    return {"rank": 1, "launch_id": "L1", "status": "running", "running": True, "ready": False, "log": log, **more}


def test_who_waits_is_told_how_far_a_rank_is_and_what_is_left() -> None:
    state = look({"ranks": [rank(launch_id="L0", ready=True), rank()]}, "L1", "vllm_mp")
    assert (state["ready"], state["ended"], state["progress"]) == (False, False, "starts the engine")
    assert state["words"] == "rank 1 starts the engine; 5.0 GiB of memory available"
    assert look({"ranks": [rank(ready=True)]}, "L1", "vllm_mp")["ready"]


def test_who_waits_is_told_that_and_how_a_rank_ended() -> None:
    ended = rank(status="exited", running=False, exit_status=70, log={"end": {"reason": "rank 0 (head a): asked to stop by signal 15"}})
    state = look({"ranks": [ended]}, "L1", "vllm_mp")
    assert (state["ready"], state["ended"]) == (False, True)
    assert state["status"] == "exited, status 70: rank 0 (head a): asked to stop by signal 15"


def test_a_container_that_is_gone_has_ended_and_an_engine_that_does_not_answer_says_nothing() -> None:
    assert look({"ranks": []}, "L1", "vllm_mp")["ended"]
    assert not look({"ranks": [], "engine": "no container engine answers"}, "L1", "vllm_mp")["ended"]
