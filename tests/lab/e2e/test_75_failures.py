# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""Failures injected one by one, with the stand-in engine: the right class and node are named, all ranks are gone, memory and services are back.

Those that are not marked as long run in `make test`, all in `make soak`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import HOSTS, meminfo, on_host, ranks, run_playbook, unit
from standin import LARGE, NAME, Failed, deploy, deploy_failing, embeddings_answer, kill, left_behind, meanwhile, rank_says, settings, until

soak = pytest.mark.soak

#: Seconds within which everything is as before, counted from the end of the play.
BOUND = 20.0


@pytest.fixture(scope="module", autouse=True)
def nothing_deployed(undeployed: None) -> None:
    """The module starts and ends undeployed."""


@pytest.fixture
def as_before() -> Iterator[None]:
    """Whatever the test does: within a bound after it nothing is left of it, and the embeddings service answers."""
    before = {host: meminfo(host)["MemAvailable"] for host in HOSTS}
    yield
    until(lambda: not any(left_behind(host) for host in HOSTS), f"nothing is left: {[left_behind(host) for host in HOSTS]}", BOUND)
    until(embeddings_answer, "the embeddings service answers", BOUND)
    until(lambda: all(before[host] - meminfo(host)["MemAvailable"] < 0.04 * meminfo(host)["MemTotal"] for host in HOSTS), "the memory is back", BOUND)


def page(failed: Failed) -> str:
    return (failed.directory / "00-cause.txt").read_text(encoding="utf-8")


# --- memory ---------------------------------------------------------------------------------------------------------------


def test_no_memory_for_the_workers_context(as_before: None, wary_driver: None, tmp_path: Path) -> None:
    """The seed's failure after everything was done right: the driver wants more than is free. The evicted service comes back."""
    on_host("spark-02", "gb10-sim-ctl", "set", f"context_margin={8 * 1024**3}")
    # The service that comes back makes a context, too.
    with meanwhile(rank_says("spark-02", 1, "CUDA error: out of memory"), lambda: on_host("spark-02", "gb10-sim-ctl", "reset")):
        failed = deploy_failing(tmp_path, **LARGE)
    assert failed.verdict == ("memory", "spark-02")
    assert failed.report["diagnosis"]["cause"] == "cuda_context"
    text = page(failed)
    assert "CUDA error: out of memory" in text and "GiB" in failed.report["diagnosis"]["remedy"]
    assert "s3cret-of-the-users" not in "".join(path.read_text(encoding="utf-8") for path in failed.directory.rglob("*") if path.is_file())


# --- a rank dies ----------------------------------------------------------------------------------------------------------


@soak
def test_a_rank_is_killed_while_it_loads(as_before: None, tmp_path: Path) -> None:
    with meanwhile(rank_says("spark-02", 1, "Starting to load model"), lambda: kill("spark-02", 1, "VLLM::EngineCore")):
        failed = deploy_failing(tmp_path, fault="1:load:stay", **LARGE)
    class_, node = failed.verdict
    assert node == "spark-02" and class_ == "killed", page(failed)


@soak
def test_the_engines_main_process_is_killed_and_its_core_is_orphaned(as_before: None, tmp_path: Path) -> None:
    with meanwhile(rank_says("spark-01", 0, "Starting to load model"), lambda: kill("spark-01", 0, "^/usr/bin/python3 /opt/standin/vllm serve")):
        failed = deploy_failing(tmp_path, fault="0:load:stay", **LARGE)
    assert failed.verdict == ("killed", "spark-01"), page(failed)
    assert "signal 9" in failed.report["cause"]


@soak
def test_the_whole_container_is_killed(as_before: None, tmp_path: Path) -> None:
    container = f"unimem-{NAME}-rank1"
    with meanwhile(rank_says("spark-02", 1, "Starting to load model"), lambda: on_host("spark-02", "docker", "kill", container)):
        failed = deploy_failing(tmp_path, fault="1:load:stay", **LARGE)
    assert failed.verdict == ("killed", "spark-02"), page(failed)


@soak
def test_a_rank_that_is_killed_after_it_was_accepted_takes_the_group_with_it_and_is_replaced(as_before: None, tmp_path: Path) -> None:
    try:
        assert deploy().rc == 0
        first = {host: list(ranks(host).values())[0]["id"] for host in HOSTS}
        kill("spark-02", 1, "VLLM::Worker_TP1")
        until(lambda: not any(rank["status"] == "running" for host in HOSTS for rank in ranks(host).values()), "both ranks have ended", 20)
        assert deploy().rc == 0
        assert all(list(ranks(host).values())[0]["id"] != first[host] for host in HOSTS)
    finally:
        _undeploy()


@soak
def test_an_engine_that_fails_for_a_reason_that_nobody_knows(as_before: None, tmp_path: Path) -> None:
    failed = deploy_failing(tmp_path, fault="0:kv:raise")
    assert failed.verdict == ("engine", "spark-01"), page(failed)
    assert "shape '[2, 3]' is invalid" in failed.report["cause"]


# --- it says that it is healthy and is not --------------------------------------------------------------------------------


@soak
def test_health_is_200_and_the_first_completion_fails(as_before: None, tmp_path: Path) -> None:
    failed = deploy_failing(tmp_path, fault="0:complete:raise", **LARGE)
    assert failed.verdict == ("engine", "spark-01"), page(failed)
    assert "shape '[2, 3]' is invalid" in failed.report["cause"]


@soak
def test_health_is_200_and_no_token_ever_comes(as_before: None, tmp_path: Path) -> None:
    failed = deploy_failing(tmp_path, fault="0:complete:hang")
    assert failed.verdict == ("timeout", "spark-01"), page(failed)


@soak
def test_an_engine_that_is_never_ready(as_before: None, tmp_path: Path) -> None:
    failed = deploy_failing(tmp_path, fault="0:load:hang", tp_launch_start_timeout=20)
    assert failed.verdict[0] == "timeout", page(failed)
    assert "loads the weights" in failed.report["diagnosis"]["remedy"]


# --- ports ----------------------------------------------------------------------------------------------------------------

#: Connections of an earlier launch are in TIME-WAIT for a minute, in which nobody can bind like this. What it prints is not in its command line,
#: which systemd writes into the journal.
HOLD = """
import socket, sys, time
s = socket.socket()
while True:
    try:
        s.bind((sys.argv[1], int(sys.argv[2])))
        break
    except OSError:
        time.sleep(0.5)
{listen}
print("bound".upper(), flush=True)
time.sleep(600)
"""


@pytest.fixture(
    params=[("127.0.0.1", "s.listen()", "LISTEN on 127.0.0.1:29501: python3"), ("192.168.200.12", "", "somebody has bound it and does not listen on it")],
    ids=["listening on another address", "bound and not listening"],
)
def port_held(request: pytest.FixtureRequest) -> Iterator[str]:
    """The rendezvous port of the head is somebody's, in a way that is easily overlooked; what is to be said of it."""
    address, listen, words = request.param
    unit_name = f"test-port-{address}"
    on_host("spark-01", "systemd-run", "--quiet", "--collect", f"--unit={unit_name}", "python3", "-c", HOLD.format(listen=listen), address, "29501")
    try:
        until(lambda: "BOUND" in on_host("spark-01", "journalctl", "--quiet", f"--unit={unit_name}", "--output=cat").stdout, "the port is held", 90)
        yield words
    finally:
        on_host("spark-01", "systemctl", "stop", unit_name)


def test_a_port_is_taken(as_before: None, port_held: str, tmp_path: Path) -> None:
    invocation = unit("spark-02", "vllm-embeddings.service")["InvocationID"]
    failed = deploy_failing(tmp_path, **LARGE)
    assert failed.verdict == ("port", "spark-01"), page(failed)
    assert "29501" in failed.report["cause"] and port_held in page(failed)
    assert unit("spark-02", "vllm-embeddings.service")["InvocationID"] == invocation, "nothing is stopped for a launch that cannot be"


@soak
def test_connections_in_time_wait_hinder_nothing(as_before: None) -> None:
    script = (
        "import socket; s=socket.socket(); s.setsockopt(1,2,1); s.bind(('192.168.200.12',29501)); s.listen();"
        "c=socket.create_connection(('192.168.200.12',29501)); a=s.accept()[0]; a.close(); c.recv(1); c.close(); s.close()"
    )
    on_host("spark-01", "python3", "-c", script)
    assert "TIME-WAIT" in on_host("spark-01", "ss", "-Htan", "sport", "=", ":29501").stdout
    try:
        run = deploy()
        assert run.rc == 0, run.failures
    finally:
        _undeploy()


# --- images ---------------------------------------------------------------------------------------------------------------


def launch_only(reference: str) -> tuple[str, str]:
    """The role tp_launch alone, as in anybody's playbook, where nothing brings the image to the nodes: the class and the node of its failure."""
    with settings() as extra:
        role = {name: value for name, value in extra.items() if name.startswith("tp_launch_")}
        run = run_playbook("tests/lab/e2e/playbooks/launch_only.yml", extra={**role, "tp_launch_image": reference})
    assert run.rc != 0
    said = re.search(r"^The cause: (\w+): (\S+) says: ", "\n".join(message for _host, _task, message in run.failures), re.MULTILINE)
    assert said is not None, run.failures
    return said[1], said[2]


@pytest.fixture
def image() -> str:
    """The stand-in's image, on both hosts."""
    assert deploy().rc == 0
    reference = on_host("spark-02", "docker", "inspect", "--format", "{{.Config.Image}}", f"unimem-{NAME}-rank1").stdout.strip()
    _undeploy()
    return reference


@soak
def test_the_image_is_missing_or_another_one_on_the_worker(as_before: None, image: str) -> None:
    """Another one under the same name: another version of Ray, say. Both are found before anything is started."""
    build = f"printf 'FROM {image}\\nENV RAY_VERSION=2.40.0\\n' | docker build --quiet --tag {image} -"
    on_host("spark-02", "sh", "-c", build)
    assert launch_only(image) == ("image", "spark-02")
    on_host("spark-02", "docker", "image", "rm", "--force", image)
    assert launch_only(image) == ("image", "spark-02")


# --- what must not be a failure -------------------------------------------------------------------------------------------


@soak
def test_a_stale_worker_of_an_older_launch_is_replaced(as_before: None) -> None:
    try:
        assert deploy().rc == 0
        launch = ranks("spark-01")[f"unimem-{NAME}-rank0"]["labels"]["io.unimem.launch-id"]
        on_host("spark-01", "docker", "rm", "--force", f"unimem-{NAME}-rank0")
        run = deploy()
        assert run.rc == 0, run.failures
        found = {rank["labels"]["io.unimem.launch-id"] for host in HOSTS for rank in ranks(host).values()}
        assert len(found) == 1 and launch not in found
    finally:
        _undeploy()


@soak
def test_another_default_route_and_a_loopback_name_change_nothing(as_before: None) -> None:
    """The worker's way out is a second card, its own name is 127.0.1.1, and the cards have other names than the head's."""
    assert on_host("spark-02", "getent", "ahostsv4", "spark-02").stdout.startswith("127.0.1.1")
    names = {host: on_host(host, "ip", "-o", "-4", "addr", "show", "to", "192.168.200.0/24").stdout.split()[1] for host in HOSTS}
    assert names["spark-01"] != names["spark-02"]
    # A pair, since not every kernel has dummy links; both ends stay here.
    on_host("spark-02", "ip", "link", "add", "test-wifi", "type", "veth", "peer", "name", "test-air")
    try:
        on_host("spark-02", "ip", "addr", "add", "10.99.0.2/24", "dev", "test-wifi")
        for link in ("test-wifi", "test-air"):
            on_host("spark-02", "ip", "link", "set", link, "up")
        on_host("spark-02", "ip", "route", "add", "default", "via", "10.99.0.1", "dev", "test-wifi")
        run = deploy()
        assert run.rc == 0, run.failures
        environment = json.loads(on_host("spark-02", "docker", "inspect", "--format", "{{json .Config.Env}}", f"unimem-{NAME}-rank1").stdout)
        assert f"GLOO_SOCKET_IFNAME={names['spark-02']}" in environment and "VLLM_HOST_IP=192.168.200.13" in environment
    finally:
        on_host("spark-02", "ip", "link", "del", "test-wifi")
        _undeploy()


# --- the node itself ------------------------------------------------------------------------------------------------------


@soak
def test_the_disk_is_full(as_before: None, tmp_path: Path) -> None:
    directory = "/var/lib/unimem/launch"
    on_host("spark-02", "mkdir", "-p", directory)
    on_host("spark-02", "mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", directory)
    try:
        failed = deploy_failing(tmp_path, **LARGE)
        assert failed.verdict == ("disk", "spark-02"), page(failed)
        assert directory in failed.report["diagnosis"]["remedy"]
    finally:
        on_host("spark-02", "umount", directory)


@soak
def test_docker_is_restarted(as_before: None, tmp_path: Path) -> None:
    with meanwhile(rank_says("spark-02", 1, "Starting to load model"), lambda: on_host("spark-02", "systemctl", "restart", "docker")):
        failed = deploy_failing(tmp_path, fault="1:load:stay", **LARGE)
    assert failed.verdict == ("docker", "spark-02"), page(failed)


@soak
def test_the_fabric_goes_down_half_way(as_before: None, tmp_path: Path) -> None:
    """For the ranks only: the lab's worker is reached over the same cable. Each hears nothing of the other any more."""
    rules = [("INPUT", "--dport"), ("INPUT", "--sport"), ("OUTPUT", "--dport"), ("OUTPUT", "--sport")]

    def change(what: str) -> None:
        for chain, side in rules:
            on_host("spark-02", "iptables", what, chain, "-p", "tcp", side, "29400", "-j", "DROP")

    try:
        with meanwhile(rank_says("spark-02", 1, "Starting to load model"), lambda: change("-I")):
            failed = deploy_failing(tmp_path, fault="1:load:stay", **LARGE)
    finally:
        change("-D")
    assert failed.verdict[0] == "network", page(failed)


def _undeploy() -> None:
    run = run_playbook("playbooks/undeploy_qwen.yml")
    assert run.rc == 0, run.failures
