# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""More than two nodes: one head and two workers on a switch, a stage of the pipeline on each.

Three divides neither the heads of the lab's model nor, since vLLM wants attention of the same kinds in every stage, its four layers. So the model is a
longer one, made on the lab's source like the lab's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import INVENTORY, ROOT, Run, lab, meminfo, on_host, ranks, run_playbook, unit, wait_until

# Three engines on one machine; and the lab is taken down and brought up twice for it.
pytestmark = pytest.mark.soak

SPARKS = ("spark-01", "spark-02", "spark-03")
HUB = "/root/.cache/huggingface/hub"
REPOSITORY = "models--unimem--tiny-hybrid-12"
BASE_IMAGE = "unimem-lab/vllm-cpu-base:0.32.0"
SETTINGS: dict[str, Any] = {
    "model_sync_path": f"{HUB}/{REPOSITORY}",
    "tp_launch_tensor_parallel": 1,
    "tp_launch_pipeline_parallel": 3,
    # Three engines are on one machine.
    "tp_launch_kv_cache_memory": "2000 MiB",
    "tp_launch_gpu_memory_utilization": 0.5,
}


@pytest.fixture(scope="module")
def three() -> Iterator[None]:
    """The lab with a third host; the next tests have two again."""
    run = run_playbook("playbooks/undeploy_qwen.yml")
    assert run.rc == 0, run.failures
    lab("up", hosts=3, timeout=1200).check_returncode()
    try:
        yield
    finally:
        lab("up", timeout=1200).check_returncode()


@pytest.fixture(scope="module")
def model(three: None) -> Iterator[None]:
    """The same pattern of layers once for each stage."""
    program = (ROOT / "tests" / "lab" / "engine" / "make_model.py").read_text(encoding="utf-8")
    command = ["docker", "run", "--rm", "--interactive", "--network", "none", "--volume", f"{HUB}:{HUB}", "--entrypoint", "python3", BASE_IMAGE]
    on_host("spark-01", *command, "-", HUB, "--repository", REPOSITORY, "--repeat", str(len(SPARKS)), stdin=program, timeout=300)
    try:
        yield
    finally:
        for host in ("spark-01", "spark-02"):
            on_host(host, "rm", "-rf", f"{HUB}/{REPOSITORY}")


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory is an inventory of all that is in it."""
    folder = tmp_path_factory.mktemp("inventory")
    for path in (INVENTORY, ROOT / "tests" / "lab" / "e2e" / "three_sparks.yml"):
        (folder / path.name).write_text(path.read_text(encoding="utf-8").replace("{{ inventory_dir }}/..", str(ROOT)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def deployed(model: None, inventory: Path) -> Run:
    """The group of three."""
    return run_playbook("playbooks/deploy_qwen.yml", inventory=inventory, extra=SETTINGS, environment={"LAB_DIR": str(ROOT / ".lab")})


def test_tokens_come_out_of_three_ranks(deployed: Run) -> None:
    assert deployed.rc == 0, deployed.failures
    result = deployed.fact("tp_launch_result", "spark-01")
    assert result["completion"]["text"].strip()
    assert [(rank["host"], rank["rank"], rank["role"]) for rank in result["ranks"]] == [
        ("spark-01", 0, "head"), ("spark-02", 1, "worker"), ("spark-03", 2, "worker"),
    ]  # fmt: skip
    assert {rank["launch_id"] for rank in result["ranks"]} == {result["launch_id"]}


def test_the_model_and_the_image_came_to_both_workers(deployed: Run) -> None:
    for host in SPARKS[1:]:
        assert deployed.fact("model_sync_result", host)["verified"] == "content"
        assert deployed.fact("image_build_result", host)["identity"] == deployed.fact("image_build_result", "spark-01")["identity"]


def test_a_second_run_changes_nothing(deployed: Run, inventory: Path) -> None:
    running = {host: ranks(host) for host in SPARKS}
    again = run_playbook("playbooks/deploy_qwen.yml", inventory=inventory, extra=SETTINGS, environment={"LAB_DIR": str(ROOT / ".lab")})
    assert again.rc == 0, again.failures
    assert again.changed == [] and {host: ranks(host) for host in SPARKS} == running


def test_a_worker_that_dies_takes_the_group_with_it(deployed: Run, inventory: Path) -> None:
    on_host("spark-03", "docker", "kill", *ranks("spark-03"))
    wait_until("no rank runs", lambda: all(rank["status"] == "exited" for host in SPARKS for rank in ranks(host).values()), 120)
    run = run_playbook("playbooks/undeploy_qwen.yml", inventory=inventory, extra=SETTINGS, environment={"LAB_DIR": str(ROOT / ".lab")})
    assert run.rc == 0, run.failures
    assert all(ranks(host) == {} for host in SPARKS)
    assert unit("spark-02", "vllm-embeddings.service")["ActiveState"] == "active"
    assert all(meminfo(host)["MemAvailable"] > 0.7 * meminfo(host)["MemTotal"] for host in SPARKS)
