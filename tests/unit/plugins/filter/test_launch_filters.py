# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters of a launch: what they pass on, what they refuse, and that their documentation is what they take."""

from __future__ import annotations

import importlib
import inspect
import json
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.filter.engine_plan import engine_plan
from ansible_collections.unimem.dgx_spark.plugins.filter.fabric_of import fabric_of
from ansible_collections.unimem.dgx_spark.plugins.filter.kv_pool import kv_pool
from ansible_collections.unimem.dgx_spark.plugins.filter.rank_group import rank_group
from ansible_collections.unimem.dgx_spark.plugins.filter.rank_list import rank_list
from ansible_collections.unimem.dgx_spark.plugins.filter.rdma_doubts import rdma_doubts
from ansible_collections.unimem.dgx_spark.plugins.filter.refused_extras import refused_extras

PACKAGE = "ansible_collections.unimem.dgx_spark.plugins.filter"
NAMES = ["engine_plan", "fabric_of", "kv_pool", "rank_group", "rank_list", "rdma_doubts", "refused_extras"]

SETTINGS = {"engine": "vllm_mp", "model_path": "/models/m"}


def links(rank: int) -> list[dict[str, Any]]:
    """What `ip -j -d address` prints, as far as it is read."""
    return [
        {"ifname": "lo", "flags": ["LOOPBACK", "UP"], "operstate": "UNKNOWN", "addr_info": [{"family": "inet", "local": "127.0.0.1", "prefixlen": 8}]},
        {
            "ifname": f"enp1s0f{rank}np{rank}",
            "flags": ["UP"],
            "operstate": "UP",
            "mtu": 9000,
            "addr_info": [{"family": "inet", "local": f"192.168.100.{10 + rank}", "prefixlen": 24}],
        },
    ]


def chosen() -> list[dict[str, Any]]:
    return list(fabric_of({"spark-01": links(0), "spark-02": links(1)}).values())


def test_from_the_links_to_a_running_group() -> None:
    plan = engine_plan(SETTINGS, chosen(), {"image": "vllm:1"})
    assert [entry["environment"]["GLOO_SOCKET_IFNAME"] for entry in plan["ranks"].values()] == ["enp1s0f0np0", "enp1s0f1np1"]
    containers = {
        host: [
            {
                "Id": "1" * 64,
                "Names": ["/" + entry["container"]],
                "State": "running",
                "Status": "Up 1 minute (healthy)",
                "Labels": {
                    "io.unimem.deployment": "default",
                    "io.unimem.rank": str(entry["rank"]),
                    "io.unimem.launch-id": "launch-1",
                    "io.unimem.spec": plan["spec"],
                },
            }
        ]
        for host, entry in plan["ranks"].items()
    }
    assert rank_group(plan, {})["state"] == "absent"
    assert rank_group(plan, containers)["state"] == "current"
    assert rank_group(engine_plan(SETTINGS, chosen(), {"image": "vllm:2"}), containers)["state"] == "stale"
    assert [entry["host"] for entry in rank_list(containers)] == ["spark-01", "spark-02"]
    assert rank_list(containers, "other") == []


def test_links_as_text() -> None:
    assert fabric_of({"spark-01": json.dumps(links(0)), "spark-02": json.dumps(links(1))})["spark-02"]["address"] == "192.168.100.11"


def test_a_subnet_that_is_not_there_is_said() -> None:
    with pytest.raises(AnsibleFilterError, match=r"unimem\.dgx_spark\.fabric_of: no usable interface in 10\.0\.0\.0/24 on spark-01"):
        fabric_of({"spark-01": links(0)}, "10.0.0.0/24")
    with pytest.raises(AnsibleFilterError, match="no subnet is shared"):
        fabric_of({"spark-01": links(0)}, None, ["192.168.100.0/24"])


def test_all_problems_of_the_settings_in_one_error() -> None:
    with pytest.raises(AnsibleFilterError) as caught:
        engine_plan({**SETTINGS, "port": 0, "bind": "x", "tensor_parallel": 3, "deployment": "/"}, chosen())
    for named in ("unimem.dgx_spark.engine_plan: ", "port is '0'", "bind is 'x'", "tensor_parallel 3", "deployment is '/'"):
        assert named in str(caught.value)


@pytest.mark.parametrize(
    "extras",
    [
        {"extra_args": ["--headless", "-tp=2"]},
        {"extra_args": "--seed 7"},
        {"extra_args": [True]},
        {"env": {"VLLM_API_KEY": "hidden"}},
        {"extra_args": ["--api-key=hidden"], "env": {"A-B": "1"}},
        {"engine": "sglang", "extra_args": ["--dist-init-addr", "x"]},
        {"engine": "tgi"},
    ],
)
def test_the_plan_refuses_the_same_extras(extras: dict[str, Any]) -> None:
    refused = refused_extras({**SETTINGS, **extras})
    assert refused and "hidden" not in str(refused)
    with pytest.raises(AnsibleFilterError) as caught:
        engine_plan({**SETTINGS, **extras}, chosen())
    assert str(caught.value) == "unimem.dgx_spark.engine_plan: " + "; ".join(refused)


def test_nothing_else_is_looked_at() -> None:
    assert refused_extras({"engine": "vllm", "extra_args": ["--seed", 7], "env": {"A": 1}, "port": "x", "model_path": ""}) == []
    assert refused_extras({"engine": "sglang"}) == []


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"engine": "sglang", "kv_cache_memory": "10 GiB"}, "SGLang has no option for the KV cache in bytes"),
        ({"bind": "spark-01"}, "bind is 'spark-01', not an address of the head"),
        ({"port": 6379}, "must be four different ones, not 6379, 6379, 29501, 29400"),
        ({"port": "x", "env": {"VLLM_API_KEY": "hidden"}}, "port is 'x', not a whole number"),
    ],
)
def test_for_a_group_of_hosts_all_is_refused_that_the_plan_refuses(settings: dict[str, Any], says: str) -> None:
    refused = refused_extras({**SETTINGS, **settings}, ["spark-01", "spark-02"])
    assert any(says in text for text in refused), refused
    with pytest.raises(AnsibleFilterError) as caught:
        engine_plan({**SETTINGS, **settings}, chosen())
    assert str(caught.value) == "unimem.dgx_spark.engine_plan: " + "; ".join(refused)


def test_a_group_that_can_be_launched() -> None:
    assert refused_extras(SETTINGS, ["spark-01", "spark-02"]) == []
    assert "needs 2 GPUs, but the play has 1 node(s)" in refused_extras({**SETTINGS, "tensor_parallel": 2}, ["spark-01"])[0]


def test_a_pool() -> None:
    assert kv_pool('{"max_total_num_tokens": 5}', "sglang")["tokens"] == 5
    for arguments in (("", "tgi"), ("", "vllm", "long")):
        with pytest.raises(AnsibleFilterError, match=r"unimem\.dgx_spark\.kv_pool"):
            kv_pool(*arguments)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (engine_plan, (["x"], [])),
        (engine_plan, ({}, {"spark-01": {}})),
        (engine_plan, ({}, "spark-01")),
        (engine_plan, ({}, ["spark-01"])),
        (engine_plan, (SETTINGS, [])),
        (engine_plan, (SETTINGS, [{"name": "spark-01"}])),
        (rank_group, ([], {})),
        (rank_group, ({}, [])),
        (rank_group, ({}, {})),
        (rank_list, ([],)),
        (rdma_doubts, ([], {})),
        (rdma_doubts, ({}, [])),
        (refused_extras, ([],)),
        (refused_extras, ("--seed",)),
        (fabric_of, ([],)),
        (fabric_of, ({},)),
        (fabric_of, ({"spark-01": "not json"},)),
        (fabric_of, ({"spark-01": 7},)),
        (fabric_of, ({"spark-01": links(0)}, None, None, "fast")),
        (fabric_of, ({"spark-01": links(0)}, None, None, -1)),
    ],
)
def test_nonsense_is_refused_by_the_filters_name(function: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(AnsibleFilterError, match=rf"unimem\.dgx_spark\.{function.__name__}"):
        function(*arguments)


@pytest.mark.parametrize("name", NAMES)
def test_the_documentation_is_what_the_filter_takes(name: str) -> None:
    module = importlib.import_module(f"{PACKAGE}.{name}")
    filters = module.FilterModule().filters()
    assert list(filters) == [name]
    documentation = yaml.safe_load(module.DOCUMENTATION)
    assert documentation["name"] == name
    options = documentation["options"]
    parameters = list(inspect.signature(filters[name]).parameters.values())
    assert set(options) == {"_input", *(parameter.name for parameter in parameters[1:])}
    for parameter in parameters[1:]:
        option = options[parameter.name]
        assert bool(option.get("required")) == (parameter.default is inspect.Parameter.empty), parameter.name
        if parameter.default is not inspect.Parameter.empty and parameter.default is not None:
            assert option["default"] == parameter.default, parameter.name
    positional = [word.strip() for word in documentation["positional"].split(",")]
    assert positional == ["_input", *(parameter.name for parameter in parameters[1:])]
    for option in options.values():
        assert option["description"] and option["type"]
    assert yaml.safe_load(module.EXAMPLES) and yaml.safe_load(module.RETURN)["_value"]["description"]


def test_every_key_of_a_plan_is_documented() -> None:
    documented = importlib.import_module(f"{PACKAGE}.engine_plan").RETURN
    plan = engine_plan(SETTINGS, chosen())
    for key in (*plan, *plan["ranks"]["spark-01"]):
        assert f"C({key})" in documented, key


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("rank_group", rank_group({"deployment": "d", "spec": "s", "ranks": {}}, {})),
        ("kv_pool", kv_pool("", "vllm")),
        ("fabric_of", fabric_of({"spark-01": links(0)})["spark-01"]),
        ("rdma_doubts", rdma_doubts({}, {})),
    ],
)
def test_every_key_of_the_others_is_documented(name: str, result: dict[str, Any]) -> None:
    documented = importlib.import_module(f"{PACKAGE}.{name}").RETURN
    for key in result:
        assert f"C({key})" in documented, key
