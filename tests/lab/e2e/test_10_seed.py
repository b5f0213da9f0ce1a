# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the lab must be before anything is deployed: the seed's situation, by each of the figures that people look at."""

from __future__ import annotations

import json

import pytest
from harness import GIB, HOSTS, meminfo, on_host, run_module, unit


def test_the_second_host_is_reached_only_through_the_first() -> None:
    assert "192.168.200.13" in on_host("spark-02", "ip", "-o", "-4", "addr").stdout
    assert "10.1.230." not in on_host("spark-02", "ip", "-o", "-4", "addr").stdout


@pytest.mark.parametrize("host", HOSTS)
def test_each_host_is_a_machine_of_its_own(host: str) -> None:
    assert on_host(host, "systemctl", "is-system-running").stdout.strip() == "running"
    assert on_host(host, "docker", "info", "--format", "{{.Driver}}").stdout.strip() == "overlay2"
    assert meminfo(host)["MemTotal"] == 6 * GIB


def test_the_embeddings_service_runs_and_answers(full_page_cache: None) -> None:
    assert unit("spark-02", "vllm-embeddings.service")["ActiveState"] == "active"
    answer = on_host(
        "spark-02", "python3", "-c",
        "import json,urllib.request as u;"
        "body=json.dumps({'model':'BAAI/bge-m3','input':['one pool']}).encode();"
        "q=u.Request('http://127.0.0.1:8001/v1/embeddings',body,{'Content-Type':'application/json'});"
        "print(u.urlopen(q,timeout=20).read().decode())",
    ).stdout
    vector = json.loads(answer)["data"][0]["embedding"]
    assert len(vector) > 8 and any(vector)


def test_the_pool_is_the_seeds(full_page_cache: None) -> None:
    memory = meminfo("spark-02")
    assert memory["MemFree"] < 0.06 * memory["MemTotal"], "the page cache is not full"
    assert memory["MemAvailable"] > 0.6 * memory["MemTotal"]


def test_facts_ad_hoc_name_who_holds_the_pool() -> None:
    run = run_module("unimem.dgx_spark.gpu_memory_facts")
    assert run.rc == 0 and not run.changed
    for host in HOSTS:
        facts = run.fact("gpu_memory", host)
        assert facts["class"] == "unified"
        assert facts["gpus"][0]["name"] == "NVIDIA GB10" and facts["gpus"][0]["memory_total"] is None
        assert abs(facts["memory"]["total"] - 6 * GIB) < 2**20
        assert facts["memory"]["cuda_free"] == facts["memory"]["free"]
    held = {(process["owner"]["kind"], process["owner"]["name"]): process["memory"] for process in run.fact("gpu_memory", "spark-02")["processes"]}
    assert 500e6 < held[("container", "vllm_embeddings")] < 750e6
    strays = [size for (kind, _name), size in held.items() if kind not in ("container", "desktop")]
    assert any(300e6 < size < 500e6 for size in strays)
