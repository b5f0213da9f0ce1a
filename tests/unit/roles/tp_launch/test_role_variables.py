# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role's variables reach the ranks: none is described and then forgotten, and the hash covers what makes a container."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import pytest

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._launch_plan import engine_names, engine_plan
from ansible_collections.unimem.dgx_spark.tests.unit.roles import role_values

ROLE = role_values.ROLES / "tp_launch"

# They say when, how long and how much is told, not what runs: another value is no reason to start a running group anew.
NOT_LASTING = {
    "tp_launch_state",
    "tp_launch_fabric_subnet",  # decides the addresses, which are in the plan
    "tp_launch_fabric_strict",
    "tp_launch_fabric_min_speed",
    "tp_launch_rdma_strict",
    "tp_launch_fabric_probe_port",
    "tp_launch_directory",
    "tp_launch_poll_interval",
    "tp_launch_completion_prompt",
    "tp_launch_completion_tokens",
    "tp_launch_completion_timeout",
    "tp_launch_lease",
    "tp_launch_log_lines",
    "tp_launch_persist",
    "tp_launch_persist_tries",
    "tp_launch_persist_need",
    "tp_launch_persist_floor",
    "tp_launch_liveness",
    "tp_launch_liveness_interval",
    "tp_launch_liveness_failures",
}


load = functools.partial(role_values.load, "tp_launch")
value_of = functools.partial(role_values.value_of, "tp_launch")


def variables() -> set[str]:
    return set(load("meta/argument_specs.yml")["argument_specs"]["main"]["options"])


def mentioned(value: Any) -> set[str]:
    return set(re.findall(r"\btp_launch_\w+", str(value)))


def test_every_variable_is_in_the_plan_or_the_hash_or_known_not_to_matter() -> None:
    internal = load("vars/main.yml")
    hashed = mentioned(internal["__tp_launch_settings"]) | mentioned(internal["__tp_launch_container"])
    # tasks/model.yml and vars make the path out of it.
    hashed |= mentioned(internal["__tp_launch_model_path"]) | mentioned(internal["__tp_launch_image_id"])
    assert variables() - hashed == NOT_LASTING


def test_every_setting_is_passed_under_its_own_name() -> None:
    for name, value in load("vars/main.yml")["__tp_launch_settings"].items():
        assert re.fullmatch(rf"\{{\{{ (__)?tp_launch_{name} \}}\}}", value), name


def test_every_variable_of_the_role_is_used_by_it() -> None:
    text = "".join(path.read_text(encoding="utf-8") for folder in ("tasks", "vars") for path in sorted((ROLE / folder).glob("*.yml")))
    assert variables() - mentioned(text) == set()


def test_every_program_that_an_engine_needs_is_put_there_and_no_other_one() -> None:
    node = {"name": "spark-01", "interface": "enp1s0f0np0", "address": "192.168.100.10", "rdma_devices": [], "rdma_character_devices": [], "problems": []}
    needed = set()
    for engine in engine_names():
        plan = engine_plan({"engine": engine, "model_path": "/models/tiny", "tensor_parallel": 1, "api_key": "s3cret"}, [node], {})
        rank = plan["ranks"]["spark-01"]
        files = value_of("__tp_launch_program_files", __tp_launch_rank=rank)
        text = json.dumps(rank["file"])
        assert files[0] == "rank_supervisor.py" and len(files) == len(set(files))
        assert set(files[1:]) == set(re.findall(r"/opt/unimem/([a-z_]+\.py)", text))
        needed |= set(files)
    assert needed == {path.name for path in (ROLE / "files").iterdir() if path.is_file()}


CDI = [{"driver": "cdi", "device_ids": ["nvidia.com/gpu=all"]}]
HOOK = [{"count": -1, "capabilities": [["gpu"]]}]
KNOWN = {"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}, {"Source": "cdi", "ID": "nvidia.com/gpu=all"}]}


@pytest.mark.parametrize(
    ("host_info", "access", "requests"),
    [
        (KNOWN, "auto", CDI),
        (KNOWN, "hook", HOOK),
        ({}, "auto", HOOK),
        ({}, "cdi", CDI),
        ({"DiscoveredDevices": None, "CDISpecDirs": ["/etc/cdi"]}, "auto", HOOK),
        ({"DiscoveredDevices": [{"Source": "cdi", "ID": "amd.com/gpu=all"}, {}]}, "auto", HOOK),
    ],
)
def test_a_gpu_comes_by_cdi_where_docker_has_found_it(host_info: dict[str, Any], access: str, requests: list[dict[str, Any]]) -> None:
    listed = {"__tp_launch_ranks": {"host_info": host_info}, "tp_launch_gpu_access": access}
    assert value_of("__tp_launch_device_requests", **listed) == requests
    own = [{"device_ids": ["0"]}]
    assert value_of("__tp_launch_device_requests", **listed, tp_launch_device_requests=own) == own


def test_kernels_are_kept_for_each_image_apart() -> None:
    known = {"tp_launch_image_id": "sha256:0123456789abcdef0123", "tp_launch_plan": {"model_mount": "/models", "cache_mount": "/opt/unimem-cache"}}
    assert value_of("__tp_launch_directories", **known)[2:] == [
        {"path": "/var/lib/unimem/cache", "mode": "0700"},
        {"path": "/var/lib/unimem/cache/0123456789abcdef", "mode": "1777"},
    ]
    assert value_of("__tp_launch_mounts", **known)[2] == {
        "type": "bind", "source": "/var/lib/unimem/cache/0123456789abcdef", "target": "/opt/unimem-cache"
    }
    for name in ("__tp_launch_directories", "__tp_launch_mounts"):
        assert len(value_of(name, **known, tp_launch_cache_directory="")) == 2


def test_ranks_are_in_the_order_of_the_inventory_whoever_is_the_head() -> None:
    hosts = [f"spark-{number:02}" for number in range(1, 9)]
    workers = [host for host in hosts if host != "spark-03"]
    assert value_of("__tp_launch_hosts", tp_launch_head="spark-03", ansible_play_hosts_all=hosts) == ["spark-03", *workers]


def ranks(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    """What is listed of a group of two, with changes."""
    found = [{"host": f"spark-0{rank + 1}", "rank": rank, "launch_id": "L1", "running": True, "status": "Up"} for rank in range(2)]
    return [{**rank, **change} for rank, change in zip(found, changes)]


TOKENS = {"json": {"choices": [{"text": " Paris."}]}}


@pytest.mark.parametrize(
    ("answer", "listed", "says"),
    [
        (TOKENS, ranks({}, {}), ""),
        ({"json": {"choices": [{"text": " "}]}}, ranks({}, {}), "answered ' ', and its ranks are: 0 on spark-01 of launch L1, Up; 1 on spark-02"),
        ({"json": {"choices": []}}, ranks({}, {}), "answered ''"),
        ({"json": {"choices": [{"text": None}]}}, ranks({}, {}), "answered ''"),
        ({"json": {"error": "x"}}, ranks({}, {}), "answered ''"),
        ({"content": "<html>"}, ranks({}, {}), "answered ''"),
        (TOKENS, ranks({}), "answered ' Paris.', and its ranks are: 0 on spark-01 of launch L1, Up;"),
        (TOKENS, ranks({}, {"running": False, "status": "Exited (1)"}), "1 on spark-02 of launch L1, Exited (1);"),
        (TOKENS, ranks({}, {"launch_id": "L0"}), "1 on spark-02 of launch L0, Up;"),
        (TOKENS, [*ranks({}, {}), *ranks({})], "answered"),
    ],
)
def test_a_group_is_accepted_by_its_tokens_with_all_its_ranks_of_one_launch(answer: dict[str, Any], listed: list[dict[str, Any]], says: str) -> None:
    plan = {"endpoint": "http://192.168.100.10:8000/v1", "world": 2}
    found = value_of("__tp_launch_not_accepted", __tp_launch_answer=answer, __tp_launch_rank_list=listed, tp_launch_plan=plan)
    assert says in found and bool(found) == bool(says)
