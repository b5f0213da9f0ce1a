# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role as somebody else's playbook would use it: its README's examples, each for real, and nothing stopped anywhere where one host cannot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from harness import HOSTS, ROOT, Run, run_playbook
from stand_ins import HOLD, IMAGE, MIB, StandIns, wait_for

HOST = "spark-02"
PLAYBOOK = "tests/lab/e2e/playbooks/evict.yml"


def documented_services() -> list[dict[str, Any]]:
    """The services of the role's README, in its own words."""
    text = (ROOT / "roles" / "service_eviction" / "README.md").read_text(encoding="utf-8")
    plays = [yaml.safe_load(block.split("```", 1)[0]) for block in text.split("```yaml\n")[1:]]
    roles = [role for play in plays for role in play[0].get("roles", []) if isinstance(role, dict)]
    (variables,) = [role["vars"] for role in roles if role["vars"].get("service_eviction_services")]
    return list(variables["service_eviction_services"])


def evict(state: str, services: list[dict[str, Any]], *arguments: str, hosts: str = HOST, **variables: Any) -> Run:
    extra = {"eviction_hosts": hosts, "service_eviction_state": state, "service_eviction_services": services, "service_eviction_deployment": "e2e", **variables}
    return run_playbook(PLAYBOOK, *arguments, extra=extra)


@pytest.fixture
def documented(strangers: StandIns) -> Iterator[StandIns]:
    """Stand-ins for all that the README names."""
    strangers.unit("ollama.service", f"{HOLD} --name ollama --mib 300", Service="Restart=always")
    strangers.container("comfyui", "--restart", "always", utilization="0.05")
    for name in ("rag-db-1", "rag-web-1"):
        service = name.split("-")[1]
        needs = "db:service_started:false" if service == "web" else ""
        labels = [f"com.docker.compose.{key}" for key in ("project=rag", f"service={service}", f"depends_on={needs}")]
        strangers.container(name, "--restart", "unless-stopped", *[word for label in labels for word in ("--label", label)], utilization="0.05")
    strangers.containers.append("trial")
    strangers.units.append("trial.service")
    strangers.run(
        "systemd-run",
        "--quiet",
        "--unit",
        "trial",
        "docker",
        "run",
        "--rm",
        "--name",
        "trial",
        "--gpus",
        "all",
        IMAGE,
        "serve",
        "trial",
        "--gpu-memory-utilization",
        "0.05",
    )
    strangers.process("llama-server", "--mib", "300")
    wait_for(lambda: strangers.run("docker", "ps", "--quiet", "--filter", "name=trial") and strangers.listens_in("trial"))
    yield strangers
    strangers.run("rm", "-f", "/var/lib/unimem/e2e.json")


def names(strangers: StandIns) -> dict[str, str]:
    """States of all but the transient unit and its container, which are gone once they have been stopped."""
    found = strangers.state("ollama.service", "vllm-embeddings.service")
    return {name: state for name, state in found.items() if name != "trial"}


def test_examples_of_the_readme(documented: StandIns) -> None:
    services = documented_services()
    assert [entry["selector"] for entry in services] == [
        "unit:ollama.service",
        "container:comfyui",
        "container:rag-*",
        "unit:trial.service",
        "process:llama-server",
        "unit:vllm-embeddings.service",
    ]
    # alice has a llama-server of her own, which is in the seed of other tests.
    services.append({"selector": "user:alice", "policy": "never"})
    before, mine = names(documented), documented.pids[-1]
    # Six hold 300 MiB each; all of them are needed, and Ansible's own processes have room to come and go.
    need = documented.available() + 5 * 300 * MIB + 150 * MIB
    planned = evict("evicted", services, "--check", service_eviction_need=need)
    assert planned.rc == 0, planned.failures
    assert names(documented) == before, "check mode has touched something"
    plan = planned.fact("service_eviction_result", HOST)

    run = evict("evicted", services, service_eviction_need=need)
    assert run.rc == 0, run.failures
    done = run.fact("service_eviction_result", HOST)
    assert done["verdict"] == "freed", (done["message"], plan["message"], plan["actions"])
    assert documented.available() > need - 150 * MIB
    assert [(row["target"], row["action"]) for row in plan["actions"]] == [(row["target"], row["action"]) for row in done["actions"] if row["round"] == 1]
    assert names(documented) == {
        "ollama.service": "inactive disabled",
        "vllm-embeddings.service": "active enabled",
        **{name: "exited no" for name in ("comfyui", "rag-db-1", "rag-web-1")},
    }
    assert documented.run("docker", "ps", "--all", "--quiet", "--filter", "name=trial") == ""
    assert not documented.alive(mine) and documented.run("pgrep", "--uid", "alice", "llama-server")

    again = evict("evicted", services, service_eviction_need=need)
    assert again.rc == 0 and again.changed == []

    # After a failure comfyui stays down, since it is restored only when the deployment is undone.
    failed = evict("restored", services, service_eviction_reason="failure")
    assert failed.rc == 0, failed.failures
    assert names(documented) == {**before, "comfyui": "exited no"}
    undone = evict("restored", services, service_eviction_reason="undeploy")
    assert undone.rc == 0 and names(documented) == before
    assert evict("restored", services).changed == []


@pytest.fixture
def on_both() -> Iterator[dict[str, StandIns]]:
    """The same service on both hosts."""
    found = {host: StandIns(host) for host in HOSTS}
    try:
        for one in found.values():
            one.prepare()
            one.unit("e2e-model.service", f"{HOLD} --name e2e-model --mib 100")
        yield found
    finally:
        for one in found.values():
            one.remove()


def test_one_host_without_room_and_nothing_is_stopped_on_any(on_both: dict[str, StandIns]) -> None:
    """The second host would need the embeddings service, which must stay."""
    before = {host: one.state() for host, one in on_both.items()}
    services = [{"selector": "unit:e2e-model.service", "policy": "if_needed"}, {"selector": "unit:vllm-embeddings.service", "policy": "never"}]
    need = {"spark-01": on_both["spark-01"].available() + 80 * MIB, "spark-02": on_both["spark-02"].available() + 500 * MIB}
    run = evict("evicted", services, hosts="all", service_eviction_need="{{ need_of[inventory_hostname] }}", need_of=need)
    assert run.rc != 0
    said = "\n".join(message for host, _task, message in run.failures if host == HOST)
    for words in ("vllm_embeddings", "protects it", "0.59 GiB", "Nothing has been stopped", "lower memory fraction", "process:llama-server"):
        assert words in said, said
    assert {host: one.state() for host, one in on_both.items()} == before
    unlisted = evict("evicted", services[:1], hosts="all", service_eviction_need="{{ need_of[inventory_hostname] }}", need_of=need)
    said = "\n".join(message for host, _task, message in unlisted.failures if host == HOST)
    assert unlisted.rc != 0 and "- {selector: 'unit:vllm-embeddings.service', policy: if_needed, restore: on_failure}" in said, said
    assert {host: one.state() for host, one in on_both.items()} == before
