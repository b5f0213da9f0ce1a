# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From a launch's settings to what each rank runs, and from a node's containers to what is there."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._ranks import container_name, group_state, rank_list
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._launch_plan import (
    PlanError,
    engine_names,
    engine_plan,
    find_engine,
    kv_pool,
    model_mount,
    model_name,
)

SNAPSHOT = "/home/spark/.cache/huggingface/hub/models--Qwen--Qwen3.5-122B-A10B-FP8/snapshots/0123abc"
KEY = "s3cret-key-of-the-api"
CONTAINER = {"image": "vllm:1", "image_id": "sha256:1", "ulimits": ["memlock:-1:-1"], "devices": []}


def nodes(count: int = 2) -> list[dict[str, Any]]:
    """What the filter fabric_of returns: each node's own interface name and address."""
    return [
        {
            "name": f"spark-{rank + 1:02}",
            "interface": f"enp1s0f{rank}np{rank}",
            "address": f"192.168.100.{10 + rank}",
            "rdma_devices": [f"rocep1s0f{rank}"],
            "rdma_character_devices": ["rdma_cm", "uverbs0"],
            "mtu": 9000,
            "problems": [],
        }
        for rank in range(count)
    ]


def settings(**changes: Any) -> dict[str, Any]:
    return {"engine": "vllm_ray", "model_path": SNAPSHOT, **changes}


def plan(count: int = 2, container: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return engine_plan(settings(**changes), nodes(count), CONTAINER if container is None else container)


def refused(count: int = 2, **changes: Any) -> str:
    with pytest.raises(PlanError) as caught:
        plan(count, **changes)
    return str(caught.value)


def argv(result: dict[str, Any], name: str, step: str = "engine") -> list[str]:
    (found,) = [entry["argv"] for entry in result["ranks"][name]["file"]["steps"] if entry["name"] == step]
    return list(found)


# --- names ---


def test_engines_are_one_list_everywhere() -> None:
    assert engine_names() == ["sglang", "vllm", "vllm_mp", "vllm_ray"]
    assert find_engine("vllm") is find_engine("vllm_mp")
    with pytest.raises(PlanError, match="no engine 'tgi'; known are sglang, vllm, vllm_mp, vllm_ray"):
        find_engine("tgi")


def test_the_alias_is_the_same_plan() -> None:
    assert plan(engine="vllm") == plan(engine="vllm_mp")
    assert plan(engine="vllm")["engine"] == "vllm_mp"


@pytest.mark.parametrize(
    ("path", "name", "mount"),
    [
        (SNAPSHOT, "Qwen/Qwen3.5-122B-A10B-FP8", "/home/spark/.cache/huggingface/hub"),
        (SNAPSHOT + "/", "Qwen/Qwen3.5-122B-A10B-FP8", "/home/spark/.cache/huggingface/hub"),
        ("/models/tiny", "tiny", "/models/tiny"),
        ("/models/tiny/", "tiny", "/models/tiny"),
    ],
)
def test_model_paths(path: str, name: str, mount: str) -> None:
    assert (model_name(path), model_mount(path)) == (name, mount)
    result = plan(model_path=path)
    assert (result["served_model_name"], result["model_mount"], result["model_path"]) == (name, mount, path.rstrip("/"))


# --- the plan ---


@pytest.mark.parametrize("engine", ["vllm_ray", "vllm_mp", "sglang"])
@pytest.mark.parametrize(("count", "tensor", "pipeline"), [(1, 1, 1), (2, 2, 1), (4, 4, 1), (4, 2, 2), (4, 1, 4)])
def test_every_engine_on_every_number_of_nodes(engine: str, count: int, tensor: int, pipeline: int) -> None:
    result = plan(count, engine=engine, tensor_parallel=tensor, pipeline_parallel=pipeline)
    assert result["world"] == count
    assert list(result["ranks"]) == [f"spark-{rank + 1:02}" for rank in range(count)]
    assert result["endpoint"] == "http://192.168.100.10:8000/v1"
    assert result["local_url"] == "http://127.0.0.1:8000"
    for rank, (name, entry) in enumerate(result["ranks"].items()):
        assert entry["rank"] == entry["file"]["rank"] == rank
        assert entry["role"] == ("head" if rank == 0 else "worker")
        assert entry["file"]["role"] == f"{entry['role']} {name}"
        assert entry["container"] == container_name("default", rank) == f"unimem-default-rank{rank}"
        # The address and the interface are the node's own.
        assert entry["address"] == f"192.168.100.{10 + rank}"
        assert entry["environment"]["NCCL_SOCKET_IFNAME"] == f"enp1s0f{rank}np{rank}"
        assert entry["environment"]["NCCL_IB_HCA"] == f"rocep1s0f{rank}"
        assert entry["devices"] == ["/dev/infiniband"]
        # The head is where all meet.
        assert entry["file"]["control"] == {"address": "192.168.100.10", "port": 29400}
        assert entry["file"]["world"] == count
        assert entry["file"]["steps"]
    sizes = {"vllm_ray": "--tensor-parallel-size", "vllm_mp": "--tensor-parallel-size", "sglang": "--tp-size"}
    words = argv(result, "spark-01")
    assert words[words.index(sizes[engine]) + 1] == str(tensor)
    json.dumps(result)  # plain types only


def test_tensor_parallel_is_what_the_nodes_leave_for_it() -> None:
    for count, changes, size in ((4, {"pipeline_parallel": 2}, "2"), (2, {"gpus_per_node": 4}, "8"), (2, {}, "2")):
        words = argv(plan(count, **changes), "spark-01")
        assert words[words.index("--tensor-parallel-size") + 1] == size


@pytest.mark.parametrize(("count", "tensor", "pipeline", "gpus"), [(1, 2, 1, 1), (2, 4, 1, 1), (2, 1, 1, 1), (4, 2, 1, 1), (2, 2, 2, 1), (2, 2, 1, 2)])
def test_a_world_of_another_size_is_refused(count: int, tensor: int, pipeline: int, gpus: int) -> None:
    text = refused(count, tensor_parallel=tensor, pipeline_parallel=pipeline, gpus_per_node=gpus)
    assert f"tensor_parallel {tensor} x pipeline_parallel {pipeline} needs {tensor * pipeline} GPUs" in text
    assert f"the play has {count} node(s) with {gpus} each" in text and "spark-01" in text and "limited" in text


def test_no_infiniband_where_there_is_none() -> None:
    bare = [{"name": node["name"], "interface": node["interface"], "address": node["address"]} for node in nodes()]
    entry = engine_plan(settings(), bare)["ranks"]["spark-01"]
    assert entry["devices"] == [] and "NCCL_IB_HCA" not in entry["environment"]


@pytest.mark.parametrize(
    ("bind", "endpoint", "local"),
    [
        ("0.0.0.0", "http://192.168.100.10:8000/v1", "http://127.0.0.1:8000"),
        ("127.0.0.1", "http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("10.1.2.3", "http://10.1.2.3:8000/v1", "http://10.1.2.3:8000"),
        ("fd00::5", "http://[fd00::5]:8000/v1", "http://[fd00::5]:8000"),
    ],
)
def test_endpoints(bind: str, endpoint: str, local: str) -> None:
    result = plan(bind=bind)
    assert (result["endpoint"], result["local_url"]) == (endpoint, local)


def test_text_of_templates_is_as_good_as_numbers() -> None:
    """Values from -e and from templates are text; empty text and null are nothing."""
    numbers = plan(port=8001, tensor_parallel=2, eager=True, gpu_memory_utilization=0.7, kv_cache_memory=2**30, prefix_caching=None, context_length=None)
    text = plan(
        port="8001",
        tensor_parallel="2",
        eager="yes",
        gpu_memory_utilization="0.7",
        kv_cache_memory="1GiB",
        prefix_caching="",
        context_length="",
        max_num_seqs=" ",
    )
    assert numbers == text
    assert "--max-model-len" not in argv(text, "spark-01")


def test_extra_words_stay_whole() -> None:
    words = argv(plan(extra_args=["--seed", 7, "--compilation-config", {"cudagraph_mode": "FULL", "sizes": [1, 2]}, "--x", "a b"]), "spark-01")
    at = words.index("--seed")
    assert words[at : at + 6] == ["--seed", "7", "--compilation-config", '{"cudagraph_mode": "FULL", "sizes": [1, 2]}', "--x", "a b"]


def test_own_environment_reaches_every_rank_and_wins() -> None:
    result = plan(env={"VLLM_LOGGING_LEVEL": "DEBUG", "OMP_NUM_THREADS": 4, "NCCL_IB_DISABLE": "1"})
    for entry in result["ranks"].values():
        assert entry["environment"]["VLLM_LOGGING_LEVEL"] == "DEBUG"
        assert entry["environment"]["OMP_NUM_THREADS"] == "4"
        assert entry["environment"]["NCCL_IB_DISABLE"] == "1"


# --- what is refused ---

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model_path": ""}, "model_path is ''"),
    ({"model_path": "models/x"}, "model_path is 'models/x'"),
    ({"model_path": "/"}, "model_path is '/'"),
    ({"port": 0}, "port is '0'"),
    ({"port": "http"}, "port is 'http'"),
    ({"port": 70000}, "port is '70000'"),
    ({"port": True}, "port is 'True'"),
    ({"port": 6379}, "must be four different ones"),
    ({"bind": "spark-01"}, "bind is 'spark-01'"),
    ({"context_length": 0}, "context_length is '0'"),
    ({"context_length": 2.5}, "context_length is '2.5'"),
    ({"kv_cache_dtype": "int3"}, "kv_cache_dtype is 'int3'"),
    ({"gpu_memory_utilization": 1.2}, "gpu_memory_utilization is '1.2'"),
    ({"gpu_memory_utilization": 0}, "gpu_memory_utilization is '0'"),
    ({"gpu_memory_utilization": "nan"}, "gpu_memory_utilization is 'nan'"),
    ({"gpu_memory_utilization": "most"}, "gpu_memory_utilization is 'most'"),
    ({"kv_cache_memory": "10G"}, "10G"),
    ({"kv_cache_memory": "lots"}, "lots"),
    ({"max_num_seqs": -1}, "max_num_seqs is '-1'"),
    ({"speculative_tokens": 65}, "speculative_tokens is '65'"),
    ({"prefix_caching": "maybe"}, "prefix_caching is 'maybe'"),
    ({"eager": 2}, "eager is '2'"),
    ({"extra_args": "--seed 7"}, "extra_args must be a list"),
    ({"extra_args": {"seed": 7}}, "extra_args must be a list"),
    ({"extra_args": ["--trust-remote-code", True]}, "extra_args has true"),
    ({"extra_args": ["--seed", None]}, "extra_args has null"),
    ({"env": ["A=1"]}, "env must be a dictionary"),
    ({"env": {"A-B": "1"}}, "env has 'A-B'"),
    ({"env": {"A": True}}, "env has no text for A"),
    ({"env": {"A": None}}, "env has no text for A"),
    ({"env": {"A": ["1"]}}, "env has no text for A"),
    ({"env": {"UNIMEM_GROUP_TOKEN": "x"}}, "env has UNIMEM_GROUP_TOKEN"),
    ({"env": {"VLLM_API_KEY": "x"}}, "env has VLLM_API_KEY"),
    ({"ray_object_store_memory": "10MiB"}, "ray_object_store_memory is 10485760 bytes"),
    ({"start_timeout": 0}, "start_timeout is '0'"),
    ({"stop_grace": "soon"}, "stop_grace is 'soon'"),
    ({"deployment": "../x"}, "deployment is '../x'"),
    ({"deployment": "Prod"}, "deployment is 'Prod'"),
    ({"mem_fraction_static": 0.6}, "mem_fraction_static is SGLang's"),
]


@pytest.mark.parametrize(("change", "named"), WRONG, ids=lambda value: json.dumps(value) if isinstance(value, dict) else None)
def test_what_is_wrong_is_said(change: dict[str, Any], named: str) -> None:
    assert named in refused(**change)


def test_all_that_is_wrong_is_said_at_once() -> None:
    text = refused(
        3, model_path="x", port=0, bind="y", tensor_parallel=2, kv_cache_memory="10G", extra_args=["--headless"], deployment="/", env={"1": "2"}, eager="z"
    )
    for named in ("model_path", "port", "bind", "tensor_parallel 2", "10G", "--headless", "deployment", "env has '1'", "eager"):
        assert named in text, named


@pytest.mark.parametrize(
    ("engine", "word", "option"),
    [
        ("vllm_ray", "--tensor-parallel-size", "--tensor-parallel-size"),
        ("vllm_ray", "--tensor-parallel-size=4", "--tensor-parallel-size"),
        ("vllm_ray", "--tensor_parallel_size=4", "--tensor-parallel-size"),
        ("vllm_ray", "--tensor-par", "--tensor-parallel-size"),
        ("vllm_mp", "-tp", "-tp"),
        ("vllm_mp", "-tp=4", "-tp"),
        ("vllm_mp", "-n4", "-n"),
        ("vllm_mp", "--nnode=4", "--nnodes"),
        ("vllm_mp", "--headless", "--headless"),
        ("vllm_mp", "--api_key", "--api-key"),
        ("sglang", "--tp", "--tp"),
        ("sglang", "--nccl-init-addr", "--nccl-init-addr"),
        ("sglang", "--dist-init", "--dist-init-addr"),
        ("sglang", "--api-key=x", "--api-key"),
    ],
)
def test_the_groups_shape_is_the_roles(engine: str, word: str, option: str) -> None:
    """In every spelling that the engines' parsers take: whole, begun, with underscores, with the value attached."""
    text = refused(engine=engine, extra_args=[word, "4"])
    assert f"extra_args has {option}, which the role sets itself" in text
    assert ("API key" in text) == ("api-key" in option)


@pytest.mark.parametrize(
    "word", ["--data-parallel-size-local", "--max-num-seqs", "--seed=7", "--no-enable-log-requests", "-O3", "--tool-call-parser", "-1", "x-tp"]
)
def test_other_words_are_the_users(word: str) -> None:
    assert word in argv(plan(extra_args=[word]), "spark-01")


def test_a_refused_key_is_not_repeated() -> None:
    assert KEY not in refused(extra_args=[f"--api-key={KEY}"])
    assert KEY not in refused(env={"VLLM_API_KEY": KEY})


def test_nodes_that_make_no_group() -> None:
    for change, named in (
        (lambda group: group.clear(), "no node"),
        (lambda group: group[1].update(name="spark-01"), "twice"),
        (lambda group: group[1].update(address="192.168.100.10"), "the same fabric address"),
        (lambda group: group[1].pop("interface"), "lacks 'interface'"),
        (lambda group: group[1].update(address="spark-02"), "which is no address"),
        (lambda group: group[1].update(interface="eth0,eth1"), "no name of an interface"),
    ):
        group = nodes()
        change(group)
        with pytest.raises(PlanError, match=named):
            engine_plan(settings(), group)


# --- secrets ---


@pytest.mark.parametrize(("engine", "variable"), [("vllm_ray", "VLLM_API_KEY"), ("vllm_mp", "VLLM_API_KEY"), ("sglang", "UNIMEM_API_KEY")])
def test_the_key_is_nowhere_in_the_plan(engine: str, variable: str) -> None:
    result = plan(engine=engine, api_key=KEY)
    assert KEY not in json.dumps(result)
    assert result["api_key_variable"] == variable
    assert all(entry["file"]["secrets"][0] == variable for entry in result["ranks"].values())
    assert plan(engine=engine)["api_key_variable"] is None
    assert plan(engine=engine, api_key="")["api_key_variable"] is None


@pytest.mark.parametrize(("engine", "variables"), [("vllm_ray", ["RAY_AUTH_TOKEN"]), ("vllm_mp", []), ("sglang", [])])
def test_what_gets_the_groups_secret_is_masked_and_nobody_elses(engine: str, variables: list[str]) -> None:
    result = plan(engine=engine)
    assert result["group_secret_variables"] == ["UNIMEM_GROUP_TOKEN", *variables]
    assert all(entry["file"]["secrets"][1:] == variables for entry in result["ranks"].values())
    for variable in result["group_secret_variables"]:
        assert f"env has {variable}" in refused(engine=engine, env={variable: "x"})


def test_ray_asks_for_a_token_on_every_node() -> None:
    assert all(entry["environment"]["RAY_AUTH_MODE"] == "token" for entry in plan(engine="vllm_ray")["ranks"].values())


def test_another_key_is_another_group() -> None:
    assert len({plan(api_key=key)["spec"] for key in (None, KEY, KEY + "x")}) == 3
    assert plan(api_key=KEY)["spec"] == plan(api_key=KEY)["spec"]


# --- the hash ---


def test_the_same_settings_are_the_same_group_whatever_their_order_and_type() -> None:
    one = engine_plan({"engine": "vllm_ray", "model_path": SNAPSHOT, "port": 8000, "env": {"A": "1", "B": "2"}}, nodes(), CONTAINER)
    other = engine_plan(
        {"env": {"B": 2, "A": 1}, "port": "8000", "model_path": SNAPSHOT + "/", "engine": "vllm_ray"}, nodes(), dict(reversed(CONTAINER.items()))
    )
    assert one == other
    assert len(one["spec"]) == 32 and set(one["spec"]) <= set("0123456789abcdef")


LASTING: list[dict[str, Any]] = [
    {"engine": "vllm_mp"},
    {"engine": "sglang"},
    {"model_path": "/models/other"},
    {"served_model_name": "other"},
    {"deployment": "other"},
    {"port": 8001},
    {"bind": "192.168.100.10"},
    {"ray_port": 6380},
    {"control_port": 29401},
    {"pipeline_parallel": 2, "tensor_parallel": 1},
    {"expert_parallel": True},
    {"context_length": 4096},
    {"kv_cache_dtype": "fp8"},
    {"kv_cache_memory": "1GiB"},
    {"gpu_memory_utilization": 0.7},
    {"max_num_seqs": 4},
    {"max_num_batched_tokens": 2048},
    {"speculative_tokens": 1},
    {"prefix_caching": True},
    {"prefix_caching": False},
    {"language_model_only": True},
    {"eager": True},
    {"extra_args": ["--seed", "7"]},
    {"env": {"A": "1"}},
    {"env": {"timeout": "1"}},
    {"env": {"timeout": "2"}},
    {"env": {"grace": "1"}},
    {"ray_object_store_memory": "2GiB"},
    {"shm_size": "1GiB"},
    {"container": {**CONTAINER, "image_id": "sha256:2"}},
    {"container": {**CONTAINER, "ulimits": []}},
    {"container": {**CONTAINER, "log_options": {"timeout": "1"}}},
    {"container": {**CONTAINER, "log_options": {"timeout": "2"}}},
]


def test_each_setting_makes_another_group() -> None:
    specs = [plan()["spec"], *(plan(**change)["spec"] for change in LASTING)]
    same = {spec: [change for change, own in zip([{}, *LASTING], specs) if own == spec] for spec in specs if specs.count(spec) > 1}
    assert same == {}


@pytest.mark.parametrize(
    "change",
    [{"engine": "vllm_mp", "rendezvous_port": 29502}, {"engine": "sglang", "rendezvous_port": 29502}, {"engine": "sglang", "mem_fraction_static": 0.6}],
)
def test_settings_that_only_some_engines_have(change: dict[str, Any]) -> None:
    assert plan(**change)["spec"] != plan(engine=change["engine"])["spec"]


@pytest.mark.parametrize("change", [{"start_timeout": 60}, {"join_timeout": 60}, {"stop_grace": 60}])
def test_patience_does_not_restart_a_group(change: dict[str, Any]) -> None:
    assert plan(**change)["spec"] == plan()["spec"]
    assert plan(**change) != plan()


@pytest.mark.parametrize(
    "change",
    [{"address": "192.168.100.12"}, {"interface": "enp1s0f9np9"}, {"rdma_devices": []}, {"rdma_devices": ["rocep1s0f0", "roceP2p1s0f0"]}, {"name": "spark-09"}],
)
def test_another_fabric_is_another_group(change: dict[str, Any]) -> None:
    group = nodes()
    group[1].update(change)
    assert engine_plan(settings(), group, CONTAINER)["spec"] != plan()["spec"]


def test_what_a_fabric_reading_says_besides_does_not_restart_a_group() -> None:
    group = nodes()
    group[1].update(mtu=1500, speed_mbps=100, problems=["x"])
    assert engine_plan(settings(), group, CONTAINER)["spec"] == plan()["spec"]


# --- what is there ---


def rank(number: int, wanted: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A rank's container, as the Docker API lists it."""
    labels = {
        "io.unimem.deployment": "default",
        "io.unimem.rank": str(number),
        "io.unimem.role": "head" if number == 0 else "worker",
        "io.unimem.launch-id": "launch-1",
        "io.unimem.spec": wanted["spec"],
        **changes.pop("labels", {}),
    }
    return {
        "Id": f"{number}" * 64,
        "Names": [f"/unimem-default-rank{number}"],
        "State": "running",
        "Status": "Up 2 minutes (healthy)",
        "Created": 1796033700,
        "Labels": labels,
        **changes,
    }


def group(**by_node: Any) -> dict[str, list[dict[str, Any]]]:
    wanted = plan()
    whole = {"spark-01": [rank(0, wanted)], "spark-02": [rank(1, wanted)]}
    return {**whole, **{name.replace("_", "-"): value for name, value in by_node.items()}}


def test_nothing_is_there() -> None:
    stranger = {"Id": "f" * 64, "Names": ["/vllm_embeddings"], "State": "running", "Labels": {}}
    for containers in ({}, {"spark-01": [], "spark-02": None}, {"spark-01": [stranger], "spark-02": [{"Id": "e" * 64, "Names": None, "Labels": None}]}):
        state = group_state(plan(), containers)
        assert (state["state"], state["why"], state["launch_id"], state["foreign"]) == ("absent", [], None, [])
        assert state["containers"] == {"spark-01": [], "spark-02": []}


def test_a_whole_group_is_current() -> None:
    state = group_state(plan(), group())
    assert (state["state"], state["why"], state["launch_id"]) == ("current", [], "launch-1")
    assert state["containers"] == {"spark-01": ["unimem-default-rank0"], "spark-02": ["unimem-default-rank1"]}


def test_another_deployment_is_none_of_this_one() -> None:
    other = rank(0, plan(), labels={"io.unimem.deployment": "other"}, Names=["/unimem-other-rank0"])
    assert group_state(plan(), {"spark-01": [other], "spark-02": []})["state"] == "absent"
    assert group_state(plan(), group(spark_01=[rank(0, plan()), other]))["state"] == "current"


@pytest.mark.parametrize(
    ("containers", "why"),
    [
        (group(spark_02=[]), "rank 1 is not there on spark-02"),
        (group(spark_01=[]), "rank 0 is not there on spark-01"),
        (group(spark_02=[rank(1, plan(), State="exited", Status="Exited (137) 1 minute ago")]), "rank 1 on spark-02 is exited"),
        (group(spark_02=[rank(1, plan(), State="created")]), "rank 1 on spark-02 is created"),
        (group(spark_02=[rank(1, plan(), State="paused")]), "rank 1 on spark-02 is paused"),
        (group(spark_02=[rank(1, plan(), labels={"io.unimem.spec": "0" * 32})]), "rank 1 on spark-02 was started with other settings"),
        (group(spark_02=[rank(1, plan(), labels={"io.unimem.launch-id": "launch-0"})]), "the ranks are of 2 launches: launch-0, launch-1"),
        (group(spark_02=[rank(0, plan())]), "spark-02 runs rank 0, not 1"),
        (group(spark_02=[rank(1, plan()), rank(1, plan(), Names=["/unimem-default-rank1-old"], State="exited")]), "spark-02 has 2 ranks of it"),
        ({"spark-01": [rank(1, plan())], "spark-02": [rank(0, plan())]}, "spark-01 runs rank 1, not 0"),
    ],
)
def test_whatever_is_missing_or_different_makes_a_group_stale(containers: dict[str, Any], why: str) -> None:
    state = group_state(plan(), containers)
    assert state["state"] == "stale" and state["launch_id"] is None
    assert any(why in sentence for sentence in state["why"]), state["why"]


def test_a_group_of_a_restarted_settings_is_stale_on_every_node() -> None:
    state = group_state(plan(port=8001), group())
    assert [sentence for sentence in state["why"] if "other settings" in sentence] == [
        "rank 0 on spark-01 was started with other settings",
        "rank 1 on spark-02 was started with other settings",
    ]


def test_a_stranger_with_a_ranks_name_is_nobodys_to_replace() -> None:
    stranger = {"Id": "f" * 64, "Names": ["/unimem-default-rank1"], "State": "running", "Labels": {}}
    state = group_state(plan(), {"spark-01": [], "spark-02": [stranger]})
    assert state["state"] == "absent"
    assert state["foreign"] == ["spark-02 has a container unimem-default-rank1 that is none of ours; rename or remove it"]
    linked = {"Id": "f" * 64, "Names": ["/web", "/web/unimem-default-rank1"], "State": "running", "Labels": {}}
    assert group_state(plan(), {"spark-01": [], "spark-02": [linked]})["foreign"] == []


def test_the_ranks_in_their_order() -> None:
    wanted = plan()
    containers = {
        "spark-02": [rank(1, wanted, State="exited", Status="Exited (3)")],
        "spark-01": [rank(0, wanted), rank(5, wanted, labels={"io.unimem.deployment": "b"})],
    }
    listed = rank_list(containers, "default")
    assert [(entry["host"], entry["rank"], entry["role"], entry["running"], entry["ready"]) for entry in listed] == [
        ("spark-01", 0, "head", True, True),
        ("spark-02", 1, "worker", False, False),
    ]
    assert listed[0]["container"] == "unimem-default-rank0" and listed[0]["id"] == "0" * 64
    assert listed[0]["launch_id"] == "launch-1" and listed[0]["created"] == 1796033700 and listed[1]["status"] == "Exited (3)"
    assert rank_list({"spark-01": None}, "default") == []


@pytest.mark.parametrize("label", ["", "x", "-1", "1.5", "²", "9" * 5000])
def test_a_label_that_anybody_wrote_breaks_nothing(label: str) -> None:
    strange = rank(0, plan(), labels={"io.unimem.rank": label})
    assert rank_list({"spark-01": [strange]}, "default")[0]["rank"] == -1
    assert group_state(plan(), group(spark_01=[strange]))["state"] == "stale"


def test_a_container_without_a_name_of_its_own_is_called_by_its_id() -> None:
    for names in (None, [], ["/other/alias"]):
        nameless = rank(0, plan(), Names=names)
        assert rank_list({"spark-01": [nameless]}, "default")[0]["container"] == "0" * 64
        assert group_state(plan(), group(spark_01=[nameless]))["containers"]["spark-01"] == ["0" * 64]


def test_nothing_given_is_changed() -> None:
    raw, given, containers = settings(extra_args=["--seed", 7], env={"A": 1}), nodes(), group()
    before = copy.deepcopy((raw, given, containers))
    result = engine_plan(raw, given, CONTAINER)
    group_state(result, containers)
    rank_list(containers, "default")
    assert (raw, given, containers) == before


# --- the pool ---


def test_the_pools_tokens_are_completed_from_the_concurrency() -> None:
    text = 'vllm:cache_config_info{block_size="2096",kv_cache_max_concurrency="1.98",num_gpu_blocks="416"} 1.0'
    assert kv_pool(text, "vllm", 262144)["tokens"] == int(1.98 * 262144)
    assert kv_pool(text, "vllm", "262144")["tokens"] == int(1.98 * 262144)
    for nothing in (None, ""):
        assert kv_pool(text, "vllm_ray", nothing)["tokens"] is None
    assert kv_pool(text.replace("1.98", "inf"), "vllm", 262144)["tokens"] is None
    for wrong in ("long", -1, True):
        with pytest.raises(PlanError, match="context_length"):
            kv_pool(text, "vllm", wrong)
    with pytest.raises(PlanError, match="no engine"):
        kv_pool(text, "tgi")


def environments(plan: dict[str, Any]) -> list[dict[str, str]]:
    return [rank["environment"] for rank in plan["ranks"].values()]


@pytest.mark.parametrize("engine", ["vllm_ray", "vllm_mp", "sglang"])
def test_nccl_says_what_it_uses_where_all_nodes_have_rdma(engine: str) -> None:
    found = plan(engine=engine)
    assert found["rdma"] is True
    for environment in environments(found):
        assert (environment["NCCL_DEBUG"], environment["NCCL_DEBUG_SUBSYS"]) == ("INFO", "INIT,NET")


def test_nothing_changes_where_a_node_has_no_rdma_or_there_is_only_one() -> None:
    members = nodes()
    members[1]["rdma_devices"] = []
    for found in (engine_plan(settings(), members, CONTAINER), plan(count=1)):
        assert found["rdma"] is False
        assert not any(name.startswith("NCCL_DEBUG") for environment in environments(found) for name in environment)


def test_what_the_user_says_of_nccl_wins() -> None:
    found = plan(env={"NCCL_DEBUG": "WARN"})
    assert found["rdma"] is True
    assert all(environment["NCCL_DEBUG"] == "WARN" and "NCCL_DEBUG_SUBSYS" not in environment for environment in environments(found))
    for env in ({"NCCL_IB_DISABLE": "1"}, {"NCCL_NET": "Socket"}):
        assert plan(env=env)["rdma"] is False, "sockets that somebody asks for are none that NCCL fell back to"


CACHES = {"TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "CUDA_CACHE_PATH"}


@pytest.mark.parametrize(("engine", "more"), [("vllm_ray", {"VLLM_CACHE_ROOT"}), ("vllm_mp", {"VLLM_CACHE_ROOT"}), ("sglang", set())])
def test_compiled_kernels_are_kept_where_there_is_a_directory(engine: str, more: set[str]) -> None:
    found = plan(engine=engine, cache_directory="/var/lib/unimem/cache")
    assert found["cache_mount"] == "/opt/unimem-cache"
    for environment in environments(found):
        assert {name for name, value in environment.items() if value.startswith("/opt/unimem-cache/")} == CACHES | more
    without = plan(engine=engine)
    assert without["cache_mount"] is None and not any(CACHES & set(environment) for environment in environments(without))
    assert "cache_directory" in refused(cache_directory="cache")


@pytest.mark.parametrize("engine", ["vllm_ray", "vllm_mp", "sglang"])
def test_what_keeps_a_rank_steady_is_there_and_the_user_wins(engine: str) -> None:
    for environment in environments(plan(engine=engine)):
        assert (environment["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"], environment["MAX_JOBS"], environment["NVCC_THREADS"]) == ("3600", "4", "1")
    own = {"MAX_JOBS": "1", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "480", "TRITON_CACHE_DIR": "/mine"}
    for environment in environments(plan(engine=engine, env=own, cache_directory="/var/lib/unimem/cache")):
        assert own.items() <= environment.items()


def test_vllm_waits_for_its_core_as_long_as_the_group_may_take_and_that_is_no_other_group() -> None:
    first, second = plan(start_timeout=1800), plan(start_timeout=7200)
    assert [environment["VLLM_ENGINE_READY_TIMEOUT_S"] for environment in environments(second)] == ["7200", "7200"]
    assert first["spec"] == second["spec"]
    assert plan(env={"MAX_JOBS": "1"})["spec"] != first["spec"]
