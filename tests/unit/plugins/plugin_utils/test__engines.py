# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The engines' files: command lines, checked against the engines' own option parsers as recorded below."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable
from typing import Any

import pytest

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._engines import _vllm, sglang, vllm_mp, vllm_ray
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._engines._base import (
    Node,
    Settings,
    common_environment,
    local_address,
    prometheus,
    real,
    url_host,
    whole,
)

ENGINES = [vllm_ray, vllm_mp, sglang]

# What SGLang's ServerArgs takes, of what is passed to it: option -> type, a list of choices, or None for a flag.
# Read from the packages 0.5.3 and 0.5.23; what only the newer one has is in the second table. test__sglang_parser.py asks those themselves.
SGLANG_0_5_3: dict[str, Any] = {
    "--model-path": str,
    "--served-model-name": str,
    "--tp-size": int,
    "--pp-size": int,
    "--ep-size": int,
    "--nnodes": int,
    "--node-rank": int,
    "--dist-init-addr": str,
    "--host": str,
    "--port": int,
    "--context-length": int,
    "--mem-fraction-static": float,
    "--kv-cache-dtype": ["auto", "fp8_e5m2", "fp8_e4m3"],
    "--max-running-requests": int,
    "--chunked-prefill-size": int,
    "--disable-radix-cache": None,
    "--disable-cuda-graph": None,
    "--speculative-algorithm": ["EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"],
    "--speculative-num-steps": int,
    "--speculative-eagle-topk": int,
    "--speculative-num-draft-tokens": int,
    "--api-key": str,
}
SGLANG_0_5_23: dict[str, Any] = {
    **SGLANG_0_5_3,
    "--kv-cache-dtype": ["auto", "fp8_e5m2", "fp8_e4m3", "mxfp8", "bf16", "bfloat16", "nvfp4", "fp4_mx_block16"],
    "--speculative-algorithm": str,
    "--language-model-only": None,
}
# The same of `vllm serve` 0.32.
VLLM_0_32: dict[str, Any] = {
    "--tensor-parallel-size": int,
    "--pipeline-parallel-size": int,
    "--enable-expert-parallel": None,
    "--max-model-len": int,
    "--kv-cache-dtype": ["auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"],
    "--gpu-memory-utilization": float,
    "--kv-cache-memory-bytes": int,
    "--max-num-seqs": int,
    "--max-num-batched-tokens": int,
    "--enable-prefix-caching": None,
    "--no-enable-prefix-caching": None,
    "--language-model-only": None,
    "--enforce-eager": None,
    "--speculative-config": json.loads,
    "--served-model-name": str,
    "--host": str,
    "--port": int,
    "--nnodes": int,
    "--node-rank": int,
    "--master-addr": str,
    "--master-port": int,
    "--headless": None,
    "--distributed-executor-backend": ["ray", "mp", "uni", "external_launcher"],
}


def parse(options: dict[str, Any], words: Iterable[str]) -> dict[str, Any]:
    """Read a command line as the engine would; every option at most once, every one known in full, nothing left over."""
    # An argparse error is a SystemExit, which fails the test as well.
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for option, what in options.items():
        if what is None:
            parser.add_argument(option, action="store_true", default=None)
        elif isinstance(what, list):
            parser.add_argument(option, choices=what)
        else:
            parser.add_argument(option, type=what)
    listed = list(words)
    names = [word for word in listed if word.startswith("--")]
    assert len(names) == len(set(names)), names
    return {key: value for key, value in vars(parser.parse_args(listed)).items() if value is not None}


def node(rank: int, **changes: Any) -> Node:
    return Node(name=f"spark-{rank + 1:02}", rank=rank, interface=f"enp1s0f{rank % 2}np{rank % 2}", address=f"192.168.100.{10 + rank}", **changes)


def nodes(count: int) -> list[Node]:
    return [node(rank) for rank in range(count)]


def settings(**changes: Any) -> Settings:
    values: dict[str, Any] = {"engine": "x", "model_path": "/models/m", "served_model_name": "m", "tensor_parallel": 2, **changes}
    return Settings(**values)


FULL = settings(
    expert_parallel=True,
    context_length=262144,
    kv_cache_dtype="fp8",
    max_num_seqs=16,
    max_num_batched_tokens=2048,
    speculative_tokens=2,
    prefix_caching=False,
    language_model_only=True,
    eager=True,
    bind="192.168.100.10",
    port=8080,
)


def engine_argv(engine: Any, chosen: Settings, members: list[Node], member: Node) -> list[str]:
    last = engine.steps(chosen, members, member)[-1]
    assert (last["name"], last["kind"]) == ("engine", "service")
    return list(last["argv"])


# --- SGLang ---


def sglang_words(chosen: Settings, members: list[Node], member: Node) -> list[str]:
    argv = engine_argv(sglang, chosen, members, member)
    assert argv[:3] == ["python3", "-m", "sglang.launch_server"]
    return argv[3:]


@pytest.mark.parametrize("options", [SGLANG_0_5_3, SGLANG_0_5_23], ids=["0.5.3", "0.5.23"])
@pytest.mark.parametrize("count", [2, 4])
def test_sglang_parses_what_every_rank_runs(options: dict[str, Any], count: int) -> None:
    members = nodes(count)
    chosen = settings(tensor_parallel=2, pipeline_parallel=count // 2, mem_fraction_static=0.6, context_length=4096)
    for member in members:
        read = parse(options, sglang_words(chosen, members, member))
        assert read.pop("pp_size", 1) == count // 2
        assert read == {
            "model_path": "/models/m",
            "served_model_name": "m",
            "tp_size": 2,
            "nnodes": count,
            "node_rank": member.rank,
            "dist_init_addr": "192.168.100.10:29501",
            # Only rank 0 is reached; the others' servers say 200 whatever happens.
            "host": "0.0.0.0" if member.rank == 0 else "127.0.0.1",
            "port": 8000,
            "context_length": 4096,
            "mem_fraction_static": 0.6,
        }


def test_sglang_with_every_setting() -> None:
    members = nodes(2)
    read = parse(SGLANG_0_5_23, sglang_words(dataclasses.replace(FULL, mem_fraction_static=0.55), members, members[0]))
    assert read == {
        "model_path": "/models/m",
        "served_model_name": "m",
        "tp_size": 2,
        "ep_size": 2,
        "nnodes": 2,
        "node_rank": 0,
        "dist_init_addr": "192.168.100.10:29501",
        "host": "192.168.100.10",
        "port": 8080,
        "context_length": 262144,
        "mem_fraction_static": 0.55,
        "kv_cache_dtype": "fp8_e4m3",  # it knows no "fp8"
        "max_running_requests": 16,
        "chunked_prefill_size": 2048,
        "disable_radix_cache": True,
        "language_model_only": True,
        "disable_cuda_graph": True,
        "speculative_algorithm": "EAGLE",
        "speculative_num_steps": 2,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 3,
    }


@pytest.mark.parametrize(
    ("given", "passed"),
    [("auto", None), ("bf16", "bfloat16"), ("bfloat16", "bfloat16"), ("fp8", "fp8_e4m3"), ("fp8_e4m3", "fp8_e4m3"), ("fp8_e5m2", "fp8_e5m2")],
)
def test_sglang_kv_types(given: str, passed: str | None) -> None:
    chosen = settings(kv_cache_dtype=given)
    assert sglang.check(chosen, nodes(2)) == []
    assert parse(SGLANG_0_5_23, sglang_words(chosen, nodes(2), node(0))).get("kv_cache_dtype") == passed


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kv_cache_memory": 2**30}, "mem_fraction_static instead of kv_cache_memory"),
        ({"gpu_memory_utilization": 0.8}, "gpu_memory_utilization is vLLM's"),
        ({"kv_cache_dtype": "fp16"}, "no KV cache of type fp16"),
        ({"kv_cache_dtype": "float16"}, "no KV cache of type float16"),
    ],
)
def test_sglang_refuses_what_it_cannot_serve(change: dict[str, Any], named: str) -> None:
    (problem,) = sglang.check(settings(**change), nodes(2))
    assert named in problem


def test_sglang_takes_its_key_from_the_environment_on_rank_0_only() -> None:
    chosen, members = settings(has_api_key=True), nodes(2)
    head = engine_argv(sglang, chosen, members, members[0])
    assert head[:5] == ["python3", "/opt/unimem/run_module.py", "--api-key", "UNIMEM_API_KEY", "sglang.launch_server"]
    parse(SGLANG_0_5_3, head[5:])
    assert engine_argv(sglang, chosen, members, members[1])[:3] == ["python3", "-m", "sglang.launch_server"]


def test_sglang_on_one_node_meets_nobody() -> None:
    read = parse(SGLANG_0_5_3, sglang_words(settings(tensor_parallel=1), nodes(1), node(0)))
    assert not {"nnodes", "node_rank", "dist_init_addr"} & set(read)


def test_sglang_with_ipv6() -> None:
    members = [Node("a", 0, "eth0", "fd00::1"), Node("b", 1, "eth0", "fd00::2")]
    assert parse(SGLANG_0_5_3, sglang_words(settings(), members, members[1]))["dist_init_addr"] == "[fd00::1]:29501"


# --- vLLM ---


def vllm_read(argv: list[str]) -> dict[str, Any]:
    assert argv[:3] == ["vllm", "serve", "/models/m"]
    return parse(VLLM_0_32, argv[3:])


@pytest.mark.parametrize("count", [2, 4])
def test_vllm_mp_on_every_rank(count: int) -> None:
    members = nodes(count)
    chosen = settings(tensor_parallel=2, pipeline_parallel=count // 2, rendezvous_port=29777)
    for member in members:
        (step,) = vllm_mp.steps(chosen, members, member)
        read = vllm_read(step["argv"])
        assert read.pop("pipeline_parallel_size", 1) == count // 2
        served = {"served_model_name": "m", "host": "0.0.0.0", "port": 8000} if member.rank == 0 else {"headless": True}
        assert read == {
            "tensor_parallel_size": 2,
            "distributed_executor_backend": "mp",
            "nnodes": count,
            "node_rank": member.rank,
            "master_addr": "192.168.100.10",
            "master_port": 29777,
            **served,
        }


def test_vllm_mp_on_one_node_meets_nobody() -> None:
    read = vllm_read(engine_argv(vllm_mp, settings(tensor_parallel=1), nodes(1), node(0)))
    assert read == {"tensor_parallel_size": 1, "served_model_name": "m", "host": "0.0.0.0", "port": 8000}


def test_vllm_with_every_setting() -> None:
    chosen = dataclasses.replace(FULL, gpu_memory_utilization=0.7, kv_cache_memory=10 * 2**30)
    read = vllm_read(engine_argv(vllm_mp, chosen, nodes(2), node(0)))
    for key, value in {
        "enable_expert_parallel": True,
        "max_model_len": 262144,
        "kv_cache_dtype": "fp8",
        "gpu_memory_utilization": 0.7,
        "kv_cache_memory_bytes": 10737418240,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 2048,
        "no_enable_prefix_caching": True,
        "language_model_only": True,
        "enforce_eager": True,
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
        "host": "192.168.100.10",
        "port": 8080,
    }.items():
        assert read.pop(key) == value, key
    assert vllm_read(engine_argv(vllm_mp, settings(prefix_caching=True), nodes(2), node(0)))["enable_prefix_caching"] is True
    assert not {"enable_prefix_caching", "no_enable_prefix_caching"} & set(vllm_read(engine_argv(vllm_mp, settings(), nodes(2), node(0))))


@pytest.mark.parametrize(("given", "passed"), [("auto", None), ("bf16", "bfloat16"), ("fp16", "float16"), ("fp8", "fp8"), ("fp8_e5m2", "fp8_e5m2")])
def test_vllm_kv_types(given: str, passed: str | None) -> None:
    assert vllm_read(_vllm.arguments(settings(kv_cache_dtype=given))).get("kv_cache_dtype") == passed


def test_vllm_refuses_what_is_another_engines() -> None:
    (problem,) = _vllm.check(settings(mem_fraction_static=0.6), nodes(2))
    assert "gpu_memory_utilization or kv_cache_memory" in problem


@pytest.mark.parametrize("count", [2, 4])
def test_vllm_ray_brings_ray_up_first_and_the_engine_on_the_head_only(count: int) -> None:
    members = nodes(count)
    chosen = settings(tensor_parallel=2, pipeline_parallel=count // 2, ray_port=6380, join_timeout=77, ray_object_store_memory=104857600)
    head = vllm_ray.steps(chosen, members, members[0])
    assert [(step["name"], step["kind"]) for step in head] == [("ray", "service"), ("ray-head", "tcp"), ("ray-nodes", "gate"), ("engine", "service")]
    assert "--port=6380" in head[0]["argv"] and "--head" in head[0]["argv"] and "--block" in head[0]["argv"]
    assert head[2]["argv"] == ["python3", "/opt/unimem/ray_gate.py", "192.168.100.10:6380", "1", *(member.address for member in members)]
    assert head[2]["timeout"] == 77
    read = vllm_read(head[3]["argv"])
    assert read["distributed_executor_backend"] == "ray" and read["tensor_parallel_size"] == 2
    assert not {"nnodes", "node_rank", "headless"} & set(read)
    assert head[3]["env"] == {"RAY_ADDRESS": "192.168.100.10:6380"}
    for member in members[1:]:
        port, ray = vllm_ray.steps(chosen, members, member)
        assert port == {"name": "ray-head", "kind": "tcp", "address": "192.168.100.10", "port": 6380, "timeout": 77}
        assert "--address=192.168.100.10:6380" in ray["argv"] and "--head" not in ray["argv"]
        assert f"--node-ip-address={member.address}" in ray["argv"]
        assert "--object-store-memory=104857600" in ray["argv"] and "--num-gpus=1" in ray["argv"]


def test_ray_does_not_kill_at_95_percent_on_any_node() -> None:
    members = nodes(2)
    for member in members:
        assert vllm_ray.environment(settings(), members, member)["RAY_memory_monitor_refresh_ms"] == "0"


def test_ray_with_ipv6() -> None:
    members = [Node("a", 0, "eth0", "fd00::1"), Node("b", 1, "eth0", "fd00::2")]
    head = vllm_ray.steps(settings(), members, members[0])
    assert head[2]["argv"][2] == "[fd00::1]:6379" and head[2]["argv"][4:] == ["fd00::1", "fd00::2"]
    assert head[1]["address"] == "fd00::1"


# --- all engines ---


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.NAMES[0])
def test_extra_words_come_last_of_the_engines_own_and_whole(engine: Any) -> None:
    words = ("--json", '{"a": "b c"}', "--seed", "7")
    argv = engine_argv(engine, settings(extra_args=words), nodes(2), node(0))
    at = argv.index("--json")
    assert argv[at : at + 4] == list(words)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.NAMES[0])
def test_each_node_has_its_own_interface_and_address(engine: Any) -> None:
    members = nodes(2)
    for member in members:
        environment = engine.environment(settings(), members, member)
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES"):
            assert environment[name] == member.interface
        own = {"vllm_ray": "VLLM_HOST_IP", "vllm_mp": "VLLM_HOST_IP", "sglang": "SGLANG_HOST_IP"}[engine.NAMES[0]]
        assert environment[own] == member.address
        assert environment["MASTER_ADDR"] == "192.168.100.10"
        assert environment["NO_PROXY"] == environment["no_proxy"] == "localhost,127.0.0.1,192.168.100.10,192.168.100.11"
        assert all(isinstance(value, str) for value in environment.values())


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.NAMES[0])
def test_what_an_engine_sets_itself_is_what_extra_words_may_not(engine: Any) -> None:
    """STRUCTURAL covers every option of the group's shape that the engine's own command lines hold."""
    members = nodes(4)
    shape = ("tensor", "tp-", "pipeline", "pp-", "nnodes", "node-rank", "master", "dist-init", "host", "port", "served", "model-path", "headless", "executor")
    for member in members:
        for step in engine.steps(settings(pipeline_parallel=2), members, member):
            for word in step.get("argv", []) if step["name"] == "engine" else []:
                if any(word.startswith(f"--{part}") or (word.startswith("--") and word.endswith(part)) for part in shape):
                    assert word in engine.STRUCTURAL, word


def test_rdma_only_where_the_devices_can_be_opened() -> None:
    with_rdma = node(0, rdma_devices=("rocep1s0f0", "roceP2p1s0f0"), rdma_character_devices=("uverbs0",))
    assert common_environment([with_rdma], with_rdma)["NCCL_IB_HCA"] == "rocep1s0f0,roceP2p1s0f0"
    closed = node(0, rdma_devices=("rocep1s0f0",))
    assert "NCCL_IB_HCA" not in common_environment([closed], closed)


def test_ports_of_the_ranks() -> None:
    members = nodes(2)
    assert set(vllm_ray.ports(settings(), members, members[0])) == {8000, 6379, 29400}
    assert set(vllm_mp.ports(settings(), members, members[0])) == {8000, 29501, 29400}
    assert set(sglang.ports(settings(), members, members[0])) == {8000, 29501, 29400}
    assert vllm_ray.ports(settings(), members, members[1]) == vllm_mp.ports(settings(), members, members[1]) == {}
    assert set(sglang.ports(settings(), members, members[1])) == {8000}  # its dummy server


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.NAMES[0])
@pytest.mark.parametrize(
    ("bind", "url"),
    [("0.0.0.0", "http://127.0.0.1:8000/health"), ("192.168.100.10", "http://192.168.100.10:8000/health"), ("::", "http://[::1]:8000/health")],
)
def test_where_rank_0_is_asked(engine: Any, bind: str, url: str) -> None:
    assert engine.ready_url(settings(bind=bind)) == url


def test_addresses_in_urls() -> None:
    assert local_address("fd00::1") == "[fd00::1]" and local_address("127.0.0.1") == "127.0.0.1"
    assert url_host("fd00::1") == "[fd00::1]" and url_host("10.0.0.1") == "10.0.0.1"


# --- the KV pool ---

METRICS = (
    "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n"
    "# TYPE vllm:cache_config_info gauge\n"
    'vllm:cache_config_info{block_size="2096",cache_dtype="auto",engine="0",kv_cache_max_concurrency="3.2",kv_cache_size_tokens="838860",'
    'num_gpu_blocks="416",note="a \\"quoted\\", {braced} thing"} 1.0\n'
)


def test_vllm_pool() -> None:
    assert _vllm.pool(METRICS) == {"tokens": 838860, "max_concurrency": 3.2, "blocks": 416, "block_size": 2096}
    old = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="1250",kv_cache_max_concurrency="None"} 1.0'
    assert _vllm.pool(old) == {"tokens": None, "max_concurrency": None, "blocks": 1250, "block_size": 16}
    for nothing in ("", "vllm:cache_config_info 1.0", "<html>", 'vllm:cache_config_info{num_gpu_blocks="nan"} 1'):
        assert set(_vllm.pool(nothing).values()) == {None}
    assert prometheus(METRICS, "vllm:cache_config_info")["note"] == 'a "quoted", {braced} thing'


def test_sglang_pool() -> None:
    assert sglang.pool('{"max_total_num_tokens": 1557709, "version": "0.5.23"}')["tokens"] == 1557709
    for nothing in ("", "{", "[]", '"x"', "{}", '{"max_total_num_tokens": "many"}'):
        assert set(sglang.pool(nothing).values()) == {None}


def test_numbers_of_labels() -> None:
    assert (whole("1250"), whole("1250.0"), whole("None"), whole(""), whole(None), whole("inf"), whole("nan")) == (1250, 1250, None, None, None, None, None)
    assert (real("3.5"), real("None"), real(None), real("inf"), real("nan")) == (3.5, None, None, None, None)
