# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""The main job, over Ray: deployed with tokens, left alone by a second run, undone without a trace."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from harness import HOSTS, INVENTORY, ROOT, Run, meminfo, on_host, ranks, run_playbook, unit


@pytest.fixture(scope="module")
def before(undeployed: None) -> dict[str, dict[str, int]]:
    """The hosts' memory with nothing of ours on them."""
    return {host: meminfo(host) for host in HOSTS}


@pytest.fixture(scope="module")
def deployed(before: dict[str, dict[str, int]]) -> Run:
    """The first deployment."""
    return run_playbook("playbooks/deploy_qwen.yml")


def test_tokens_come_out(deployed: Run) -> None:
    assert deployed.rc == 0, deployed.failures
    result = deployed.fact("tp_launch_result", "spark-01")
    assert result["completion"]["text"].strip() and result["completion"]["tokens"] >= 1


def test_all_ranks_are_of_this_launch(deployed: Run) -> None:
    launch = deployed.fact("tp_launch_result", "spark-01")["launch_id"]
    for host in HOSTS:
        found = ranks(host)
        assert len(found) == 1
        (rank,) = found.values()
        assert rank["labels"]["io.unimem.launch-id"] == launch
        assert rank["status"] == "running"


def test_the_budget_stopped_the_embeddings_service_and_nothing_else(deployed: Run) -> None:
    eviction = deployed.fact("service_eviction_result", "spark-02")
    assert {(action["layer"], action["target"]) for action in eviction["actions"]} <= {
        ("cache", "page cache"),
        ("unit", "vllm-embeddings.service"),
        ("container", "vllm_embeddings"),
    }
    assert unit("spark-02", "vllm-embeddings.service")["ActiveState"] == "inactive"
    assert on_host("spark-02", "pgrep", "--uid", "alice", "--exact", "llama-server").stdout.strip(), "the stray process is not ours to stop"


def test_the_engine_says_what_was_predicted(deployed: Run) -> None:
    pool = deployed.fact("tp_launch_result", "spark-01")["kv_pool"]
    predicted = [result["budget"]["kv_tokens"] for _host, _task, result in deployed.results() if "budget" in result][-1]
    assert pool["tokens"] == predicted


def test_ray_serves_nobody_without_the_launchs_token(deployed: Run) -> None:
    """Its servers listen on every address of the node, the management network's too."""
    text = "import ray; ray.init(address='192.168.200.12:6379'); print(len(ray.nodes()))"

    def ask(*variables: str) -> subprocess.CompletedProcess[str]:
        environment = [word for variable in variables for word in ("--env", variable)]
        return on_host("spark-01", "docker", "exec", *environment, "unimem-default-rank0", "python3", "-c", text, check=False)

    for other in (("RAY_AUTH_MODE=disabled", "RAY_AUTH_TOKEN="), ("RAY_AUTH_TOKEN=another",)):
        stranger = ask(*other)
        assert stranger.returncode != 0 and "uth" in stranger.stdout + stranger.stderr, stranger.stdout + stranger.stderr
    assert ask().stdout.split()[-1:] == ["2"]


def test_a_second_run_changes_nothing_and_restarts_nothing(deployed: Run) -> None:
    running = {host: ranks(host) for host in HOSTS}
    again = run_playbook("playbooks/deploy_qwen.yml")
    assert again.rc == 0, again.failures
    assert again.changed == []
    assert {host: ranks(host) for host in HOSTS} == running


def test_the_installed_collection_finds_the_same_deployment(deployed: Run, tmp_path: Path) -> None:
    running = {host: ranks(host) for host in HOSTS}
    subprocess.run(["ansible-galaxy", "collection", "build", str(ROOT), "--output-path", str(tmp_path)], check=True, capture_output=True)
    (tarball,) = tmp_path.glob("*.tar.gz")
    installed = tmp_path / "collections"
    subprocess.run(["ansible-galaxy", "collection", "install", str(tarball), "--no-deps", "--offline", "-p", str(installed)], check=True, capture_output=True)
    dependencies = ROOT / ".collections" / "ansible_collections"
    for namespace in ("ansible", "community"):
        os.symlink(dependencies / namespace, installed / "ansible_collections" / namespace)
    (tmp_path / "ansible.cfg").touch()
    again = run_playbook(
        "unimem.dgx_spark.deploy_qwen",
        inventory=INVENTORY,
        environment={"ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"), "ANSIBLE_COLLECTIONS_PATH": str(installed)},
    )
    assert again.rc == 0, again.failures or again.output
    assert again.changed == []
    assert {host: ranks(host) for host in HOSTS} == running


def test_undeploy_puts_everything_back(deployed: Run, before: dict[str, dict[str, int]]) -> None:
    run = run_playbook("playbooks/undeploy_qwen.yml")
    assert run.rc == 0, run.failures
    for host in HOSTS:
        assert ranks(host) == {}
        missing = before[host]["MemAvailable"] - meminfo(host)["MemAvailable"]
        assert missing < 0.05 * before[host]["MemTotal"], f"{host} lacks {missing / 2**20:.0f} MiB after undeploy"
    service = unit("spark-02", "vllm-embeddings.service")
    assert service["ActiveState"] == "active" and service["UnitFileState"] == "enabled"
    ask = "import urllib.request as u;print(u.urlopen('http://127.0.0.1:8001/health',timeout=20).status)"
    assert on_host("spark-02", "python3", "-c", ask).stdout.strip() == "200"


def test_a_second_undeploy_changes_nothing(deployed: Run) -> None:
    again = run_playbook("playbooks/undeploy_qwen.yml")
    assert again.rc == 0, again.failures
    assert again.changed == []
