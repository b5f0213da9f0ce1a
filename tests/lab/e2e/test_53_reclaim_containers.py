# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""Containers: restart policies, restart loops, projects, shared namespaces, those that would be lost, and engines that cannot be asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from stand_ins import StandIns, codes, outcomes, rows, wait_for

# Part of `make soak` for the time that it takes.
pytestmark = pytest.mark.soak

LABEL = "com.docker.compose"


def test_project_stops_and_starts_in_its_order(strangers: StandIns) -> None:
    """Compose is not on the hosts; its labels are all that is known of a project anyway."""
    labels = ["--label", f"{LABEL}.project=e2e-rag", "--label", f"{LABEL}.oneoff=False", "--restart", "unless-stopped"]
    strangers.container("e2e-rag-db-1", *labels, "--label", f"{LABEL}.service=db", "--label", f"{LABEL}.depends_on=")
    strangers.container("e2e-rag-web-1", *labels, "--label", f"{LABEL}.service=web", "--label", f"{LABEL}.depends_on=db:service_started:false")
    before, ids = strangers.state(), [strangers.inspect(name)["Id"] for name in strangers.containers]
    freed = strangers.reclaim(stop=["container:e2e-rag-*"])
    assert freed["verdict"] == "freed", freed["msg"]
    assert set(strangers.state().values()) == {"exited no"}
    for name in strangers.containers:
        assert rows(freed).index(("container", name, "set_restart_policy_no")) < rows(freed).index(("container", name, "stop"))
    back = strangers.restored()
    assert [target for _layer, target, action in rows(back) if action == "start"] == ["e2e-rag-db-1", "e2e-rag-web-1"]
    assert strangers.state() == before and [strangers.inspect(name)["Id"] for name in strangers.containers] == ids
    assert all(strangers.listens_in(name) for name in strangers.containers), "it waits until they answer"


def test_container_that_another_lives_in_takes_it_along(strangers: StandIns) -> None:
    strangers.container("e2e-gateway")
    gateway = strangers.inspect("e2e-gateway")["Id"]
    strangers.containers.append("e2e-sidecar")
    image = strangers.inspect("e2e-gateway")["Config"]["Image"]
    strangers.run("docker", "run", "--detach", "--name", "e2e-sidecar", "--network", f"container:{gateway}", "--gpus", "all", image,
                  "serve", "x", "--port", "8002", "--gpu-memory-utilization", "0.01")
    refused = strangers.reclaim(stop=["container:e2e-gateway"])
    assert refused["verdict"] == "not_permitted" and codes(refused) == {("e2e-sidecar", "takes_along")}
    freed = strangers.reclaim(stop=["container:e2e-sidecar", "container:e2e-gateway"])
    assert freed["verdict"] == "freed"
    back = strangers.reclaim("restored")
    assert [target for _layer, target, _action in rows(back)] == ["e2e-gateway", "e2e-sidecar"] and back["verdict"] == "restored"


def test_restart_loop_ends(strangers: StandIns) -> None:
    """It asks for more than there is, so that it ends and is started again and again."""
    strangers.container("e2e-loop", "--restart", "always", run=False, utilization="0.99")
    strangers.run("docker", "start", "e2e-loop", check=False)
    wait_for(lambda: strangers.inspect("e2e-loop")["RestartCount"] >= 2)
    freed = strangers.reclaim(stop=["container:e2e-loop"])
    assert freed["verdict"] == "freed", freed["msg"]
    count = strangers.inspect("e2e-loop")["RestartCount"]
    strangers.run("sleep", "1")
    assert strangers.inspect("e2e-loop")["RestartCount"] == count and strangers.state() == {"e2e-loop": "exited no"}
    # It ran, in its way, and so it is put back that way.
    assert strangers.reclaim("restored", timeout=3)["verdict"] in ("restored", "not_restored")
    assert strangers.inspect("e2e-loop")["HostConfig"]["RestartPolicy"]["Name"] == "always"


def test_stop_signal_that_is_ignored(strangers: StandIns) -> None:
    strangers.container("e2e-deaf", "--stop-signal", "SIGUSR1", "--restart", "always")
    stays = strangers.reclaim(stop=["container:e2e-deaf"], grace=1)
    assert stays["verdict"] == "still_held" and "SIGUSR1" in stays["msg"] and strangers.inspect("e2e-deaf")["State"]["Running"]
    killed = strangers.reclaim(stop=["container:e2e-deaf"], grace=1, kill_leftovers=True)
    assert killed["verdict"] == "freed" and outcomes(killed)[("e2e-deaf", "stop")] == "killed"
    strangers.restored()
    assert strangers.state() == {"e2e-deaf": "running always"}


def test_what_would_be_lost_and_what_cannot_act(strangers: StandIns) -> None:
    strangers.container("e2e-once", "--rm")
    strangers.container("e2e-paused")
    strangers.run("docker", "pause", "e2e-paused")
    refused = strangers.reclaim(stop=["container:e2e-once", "container:e2e-paused"])
    assert refused["verdict"] == "not_permitted" and codes(refused) == {("e2e-once", "lost"), ("e2e-paused", "refuses")}
    assert strangers.inspect("e2e-once")["State"]["Running"]
    rows_of = {row["target"]: row for row in refused["refused"]}
    line = "- {selector: 'container:e2e-once', policy: if_needed, restore: never}"
    assert rows_of["e2e-once"]["inventory"] == line and line in refused["msg"]
    assert (rows_of["e2e-paused"]["inventory"], rows_of["e2e-paused"]["missing"]) == (None, "it would have to be unpaused")
    lost = strangers.reclaim(stop=["container:e2e-once"], restore={"container:e2e-once": "never"})
    assert lost["verdict"] == "freed", lost["msg"]


@pytest.mark.parametrize("how", ["start", "run"])
def test_container_that_a_script_starts_again(strangers: StandIns, how: str) -> None:
    """No restart policy is left that could be turned off: who does it has to be stopped."""
    if how == "start":
        strangers.container("e2e-again")
        command = "docker start e2e-again > /dev/null"
    else:
        strangers.container("e2e-image-of")
        image = strangers.inspect("e2e-image-of")["Config"]["Image"]
        strangers.containers.append("e2e-again")
        command = f"docker run --rm --name e2e-again --gpus all {image} serve x --gpu-memory-utilization 0.01 > /dev/null 2>&1; sleep 0.5"
    strangers.scopes.append("e2e-loop.scope")
    script = f"while :; do {command}; done"
    strangers.run("sh", "-c", f"setsid systemd-run --scope --quiet --collect --unit e2e-loop.scope sh -c '{script}' > /dev/null 2>&1 < /dev/null &")
    wait_for(lambda: strangers.run("docker", "ps", "--quiet", "--filter", "name=e2e-again") and strangers.listens_in("e2e-again"))
    freed = strangers.reclaim(stop=["container:e2e-again"], restore={"container:e2e-again": "never"})
    assert freed["verdict"] == "respawning" and "container e2e-again" in freed["msg"], freed["msg"]
    if how == "run":
        assert "by sh (pid " in freed["msg"], freed["msg"]
    assert 1 <= len([row for row in freed["actions"] if row["action"] == "stop"]) <= 3
    strangers.run("systemctl", "kill", "--signal=KILL", "e2e-loop.scope")


def test_unit_that_starts_its_container_again_is_stopped_first(strangers: StandIns) -> None:
    strangers.container("e2e-wrapped", run=False)
    strangers.unit(
        "e2e-wrapper.service", "/usr/bin/docker start --attach e2e-wrapped", Service="Restart=always\nRestartSec=100ms\nSuccessExitStatus=137 143"
    )
    wait_for(lambda: strangers.listens_in("e2e-wrapped"))
    before = strangers.state()
    freed = strangers.reclaim(stop=["container:e2e-wrapped"])
    assert freed["verdict"] == "freed", freed["msg"]
    assert rows(freed) == [
        ("unit", "e2e-wrapper.service", "disable"),
        ("unit", "e2e-wrapper.service", "stop"),
        ("container", "e2e-wrapped", "stop"),
    ]
    assert strangers.state() == {"e2e-wrapper.service": "inactive disabled", "e2e-wrapped": "exited no"}
    strangers.restored()
    assert strangers.state() == before


def test_evicted_container_stays_down_when_its_engine_restarts(strangers: StandIns) -> None:
    strangers.container("e2e-always", "--restart", "always")
    assert strangers.reclaim(stop=["container:e2e-always"])["verdict"] == "freed"
    strangers.run("systemctl", "restart", "docker.service")
    assert strangers.state() == {"e2e-always": "exited no"}
    strangers.restored()
    assert strangers.state() == {"e2e-always": "running always"}
    wait_for(lambda: strangers.run("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "http://127.0.0.1:8001/health", check=False) == "200", 60)


@pytest.fixture
def second_engine(strangers: StandIns) -> Iterator[StandIns]:
    """Another Docker daemon on the same host, at a place of its own, that runs a GPU process in a container."""
    root = "/var/lib/docker/e2e-second"
    strangers.unit(
        "e2e-dockerd.service",
        f"/usr/sbin/dockerd --host unix:///run/e2e-second/docker.sock --data-root {root} --exec-root /run/e2e-second/exec --pidfile /run/e2e-second/pid"
        " --bridge none --iptables=false",
        install="",
        Type="notify",
        # In a network of its own: without a bridge to make, a daemon removes docker0, which is the first one's.
        Service="KillMode=process\nDelegate=yes\nPrivateNetwork=yes",
    )
    docker = ["docker", "--host", "unix:///run/e2e-second/docker.sock"]
    strangers.run("sh", "-c", f"docker save unimem-lab/vllm-embeddings:0.20.1 | {' '.join(docker)} load")
    strangers.run(*docker, "run", "--detach", "--name", "e2e-foreign", "--network", "none", "--gpus", "all", "unimem-lab/vllm-embeddings:0.20.1",
                  "serve", "foreign", "--gpu-memory-utilization", "0.01")
    yield strangers
    strangers.run(*docker, "rm", "--force", "e2e-foreign", check=False)
    strangers.run("systemctl", "stop", "e2e-dockerd.service", check=False)
    strangers.run("rm", "-rf", root, "/run/e2e-second", check=False)


@pytest.mark.soak
def test_container_of_an_engine_that_nobody_knows_is_left_alone(second_engine: StandIns) -> None:
    pid = int(second_engine.run("docker", "--host", "unix:///run/e2e-second/docker.sock", "inspect", "--format", "{{.State.Pid}}", "e2e-foreign"))
    engine = int(wait_for(lambda: second_engine.run("pgrep", "--parent", str(pid), check=False)))
    wait_for(lambda: engine in second_engine.listed())
    freed = second_engine.reclaim(stop=["process:VLLM::EngineC*", "container:e2e-foreign"], always=["process:VLLM::EngineCore"], kill_leftovers=True)
    assert freed["verdict"] == "not_permitted" and "no engine that can be asked knows it" in freed["msg"]
    assert second_engine.alive(engine) and freed["done"] == []
