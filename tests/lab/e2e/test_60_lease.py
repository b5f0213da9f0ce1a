# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""The lease: whatever becomes of the controller and of the way to a node, the node ends as it was, by itself and in time."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from harness import HOSTS, INVENTORY, Controller, cut_off, meminfo, on_host, ranks, run_module, run_playbook, unit, wait_until

#: Longer than two looks at the loading ranks take on a busy machine.
TTL = 45
#: The timer looks every 10 s; then ranks have 2 x 5 s to end, and the service is started and has to answer.
BOUND = 90
SETTINGS: dict[str, Any] = {
    "tp_launch_engine": "vllm_mp",
    "tp_launch_kv_cache_memory": "4000 MiB",
    "tp_launch_stop_grace": 5,
    "service_eviction_timeout": 60,
    "service_eviction_grace": 5,
    "deploy_lease_ttl": TTL,
}
SERVICE = "vllm-embeddings.service"
DIRECTORY = "/var/lib/unimem/lease"


@pytest.fixture
def before() -> Iterator[dict[str, dict[str, int]]]:
    """The hosts' memory before. Undeployed first where something is there, and after a test that left something."""
    undeploy_if_needed()
    wait_until("the service answers", answers, 60)
    yield {host: meminfo(host) for host in HOSTS}
    undeploy_if_needed()


def undeploy_if_needed() -> None:
    if evicted() or any(ranks(host) or lease(host) for host in HOSTS):
        run = run_playbook("playbooks/undeploy_qwen.yml", extra={"deploy_take_over": True})
        assert run.rc == 0, run.failures


def answers() -> bool:
    """Whether the evicted service does its work again."""
    ask = "import urllib.request as u;print(u.urlopen('http://127.0.0.1:8001/health',timeout=5).status)"
    return on_host("spark-02", "python3", "-c", ask, check=False).stdout.strip() == "200"


def lease(host: str, name: str = "lease.json") -> dict[str, Any] | None:
    """What lies on the host, read past our own code."""
    text = on_host(host, "cat", f"{DIRECTORY}/{name}", check=False).stdout
    return json.loads(text) if text else None


def loading(host: str) -> bool:
    """Whether a rank runs there and the lease is renewed by those who wait for it."""
    held = lease(host)
    return any(entry["status"] == "running" for entry in ranks(host).values()) and held is not None and held["ttl"] == TTL


def evicted() -> bool:
    return unit("spark-02", SERVICE)["ActiveState"] == "inactive"


def launched(controller: Controller) -> None:
    """Wait until both hosts load the model."""
    wait_until("the ranks load", lambda: not controller.running() or all(loading(host) for host in HOSTS), 400)
    assert controller.running(), controller.output[-3000:]


def left(host: str) -> list[str]:
    """What of the lease is there."""
    units = on_host(host, "systemctl", "list-units", "--all", "--plain", "--no-legend", "unimem-lease*").stdout.splitlines()
    files = on_host(host, "find", DIRECTORY, "/etc/systemd/system", "-name", "*lease*", "-o", "-name", "agent*", check=False).stdout.splitlines()
    return [line.split()[0] for line in units if line.split()] + [name for name in files if name != DIRECTORY]


def as_before(before: dict[str, dict[str, int]]) -> None:
    """Ranks gone, memory back, the service running, enabled and answering, nothing left."""
    for host in HOSTS:
        assert ranks(host) == {}
        assert left(host) == []
        assert on_host(host, "ls", "-A", "/dev/shm").stdout.split() == []
        journal = json.loads(on_host(host, "cat", "/var/lib/unimem/default.json", check=False).stdout or '{"entries": []}')
        assert [entry for entry in journal["entries"] if entry["state"] in ("planned", "stopped")] == []
        missing = before[host]["MemAvailable"] - meminfo(host)["MemAvailable"]
        assert missing < 0.05 * before[host]["MemTotal"], f"{host} lacks {missing / 2**20:.0f} MiB"
    service = unit("spark-02", SERVICE)
    assert (service["ActiveState"], service["UnitFileState"]) == ("active", "enabled")
    assert answers()


def undone() -> bool:
    return all(lease(host) is None and ranks(host) == {} for host in HOSTS) and unit("spark-02", SERVICE)["ActiveState"] == "active" and answers()


def fired(host: str) -> dict[str, Any]:
    found = lease(host, "fired.json")
    assert found is not None, f"{host} says nothing of what it did"
    return found


def test_a_second_run_is_refused_and_what_a_killed_one_began_the_nodes_undo(before: dict[str, dict[str, int]]) -> None:
    with Controller("playbooks/deploy_qwen.yml", SETTINGS) as controller:
        launched(controller)
        running = {host: ranks(host) for host in HOSTS}
        # Each node holds a lease of its own, taken at its own moment.
        held = {host: lease(host) or {} for host in HOSTS}
        assert [held[host]["owner"]["pid"] for host in HOSTS] == [controller.pid] * len(HOSTS)
        second = run_playbook("playbooks/deploy_qwen.yml", extra=SETTINGS)
        assert second.rc != 0 and second.changed == []
        said = [(host, message) for host, task, message in second.failures if "another run is at work" in task]
        assert said
        for host, message in said:
            parts = (host, f"process {controller.pid}", held[host]["began_at"], f"until {held[host]['expires_at'][:10]}", "Nothing was touched")
            assert [part for part in parts if part not in message] == [], message
        assert controller.running() and {host: ranks(host) for host in HOSTS} == running
        controller.kill()
    took = wait_until("the nodes undo it by themselves", undone, TTL + BOUND)
    as_before(before)
    for host in HOSTS:
        record = fired(host)
        assert (record["reason"], record["verdict"]) == ("expired", "settled") and record["removed"], record
    print(f"undone {took:.0f} s after the controller's death, with a lease of {TTL} s")


@pytest.mark.soak
def test_killed_right_after_the_first_stop(before: dict[str, dict[str, int]]) -> None:
    with Controller("playbooks/deploy_qwen.yml", SETTINGS) as controller:
        wait_until("the service is stopped", lambda: not controller.running() or evicted(), 400, pause=0.2)
        assert controller.running(), controller.output[-3000:]
        controller.kill()
    held = lease("spark-02")
    assert held is not None
    wait_until("the nodes undo it by themselves", undone, held["ttl"] + BOUND)
    as_before(before)


@pytest.mark.soak
@pytest.mark.parametrize("controller_dies", [False, True], ids=["worker", "both"])
def test_a_worker_that_cannot_be_reached_undoes_it_by_itself(before: dict[str, dict[str, int]], controller_dies: bool) -> None:
    with Controller("playbooks/deploy_qwen.yml", SETTINGS) as controller:
        launched(controller)
        with cut_off():
            if controller_dies:
                controller.kill()
            else:
                assert controller.wait(400) != 0
                assert "unreachable=1" in controller.output
                # The head was reached and was undone by the play.
                assert ranks("spark-01") == {} and lease("spark-01") is None
            # Nobody can look: the time that it may take is what is waited.
            time.sleep(TTL + BOUND)
    wait_until("the worker is reached again", lambda: on_host("spark-02", "true", check=False).returncode == 0, 30)
    record = fired("spark-02")
    assert (record["reason"], record["verdict"]) == ("expired", "settled")
    assert undone()
    as_before(before)


@pytest.mark.soak
def test_below_the_floor_the_node_ends_the_launch_before_it_is_lost(before: dict[str, dict[str, int]]) -> None:
    extra = {**SETTINGS, "deploy_memory_floor": "1500 MiB", "deploy_memory_floor_seconds": 3}
    with Controller("playbooks/deploy_qwen.yml", extra) as controller:
        launched(controller)
        # Somebody else takes what was free, while the rank loads.
        hog = (
            "import time; free = next(line for line in open('/proc/meminfo') if 'MemAvailable' in line).split()[1]; "
            "taken = b'x' * (int(free) * 1024 - 900 * 2**20); time.sleep(60)"
        )
        on_host("spark-02", "systemd-run", "--quiet", "--collect", "--unit=hog", "python3", "-c", hog)
        try:
            took = wait_until("the node kills the rank", lambda: lease("spark-02", "fired.json") is not None, 30)
            assert controller.wait(400) != 0
        finally:
            on_host("spark-02", "systemctl", "stop", "hog", check=False)
        output = controller.output
    record = fired("spark-02")
    assert record["reason"] == "memory_floor" and record["lowest"] < 1500 * 2**20, record
    assert "MemAvailable stayed below" in output
    wait_until("undone", undone, BOUND)
    as_before(before)
    print(f"killed {took:.0f} s after the memory was gone")


@pytest.mark.soak
def test_a_guard_that_was_killed_comes_back_and_a_timer_needs_none(before: dict[str, dict[str, int]]) -> None:
    with Controller("playbooks/deploy_qwen.yml", SETTINGS) as controller:
        launched(controller)
        guard = unit("spark-02", "unimem-lease-guard.service")
        on_host("spark-02", "kill", "-9", guard["MainPID"])
        wait_until("another guard", lambda: unit("spark-02", "unimem-lease-guard.service")["MainPID"] not in ("0", guard["MainPID"]), 15)
        on_host("spark-02", "systemctl", "stop", "unimem-lease-guard.service")
        controller.kill()
    wait_until("the nodes undo it by themselves", undone, TTL + BOUND)
    as_before(before)


@pytest.mark.soak
def test_what_nobody_settled_the_next_run_settles_first(before: dict[str, dict[str, int]]) -> None:
    with Controller("playbooks/deploy_qwen.yml", SETTINGS) as controller:
        launched(controller)
        controller.kill()
    for host in HOSTS:
        on_host(host, "systemctl", "stop", "unimem-lease.timer", "unimem-lease-guard.service")
    wait_until("the leases have run out", lambda: run_module("unimem.dgx_spark.node_lease_info").results()[-1][2]["state"] == "expired", TTL + 15, pause=5)
    assert evicted() and all(ranks(host) for host in HOSTS)
    looked = run_playbook("playbooks/deploy_qwen.yml", "--check", extra=SETTINGS)
    assert evicted(), "settled under --check"
    assert [result for _host, _task, result in looked.results("Settle what a dead run has left") if result["changed"]]
    run = run_playbook("playbooks/deploy_qwen.yml", extra=SETTINGS)
    assert run.rc == 0, run.failures
    settled = {host: result["settled"] for host, _task, result in run.results("Settle what a dead run has left")}
    assert set(settled) == set(HOSTS) and all(entry["verdict"] == "settled" for entry in settled.values())
    assert settled["spark-02"]["restored"]["actions"]
    for host in HOSTS:
        assert left(host) == [], "released after success"
    again = run_playbook("playbooks/deploy_qwen.yml", extra=SETTINGS)
    assert again.rc == 0 and again.changed == []


@pytest.mark.soak
def test_a_dead_run_of_this_controller_needs_no_waiting(before: dict[str, dict[str, int]]) -> None:
    with Controller("playbooks/deploy_qwen.yml", {**SETTINGS, "deploy_lease_ttl": 600}) as controller:
        wait_until("the ranks load", lambda: not controller.running() or all(ranks(host) for host in HOSTS), 400)
        looked = run_playbook("playbooks/deploy_qwen.yml", "--check", extra=SETTINGS)
        assert looked.rc != 0 and "another run is at work" in looked.failures[0][1] and looked.changed == []
        refused = run_playbook("playbooks/undeploy_qwen.yml", extra=SETTINGS)
        assert refused.rc != 0 and refused.changed == []
        controller.kill()
    run = run_playbook("playbooks/undeploy_qwen.yml", extra=SETTINGS)
    assert run.rc == 0, run.failures
    as_before(before)


@pytest.mark.soak
def test_what_a_boot_interrupted_the_next_boot_undoes(before: dict[str, dict[str, int]]) -> None:
    with Controller("playbooks/deploy_qwen.yml", SETTINGS) as controller:
        launched(controller)
        controller.kill()
    # What a boot does, without one: transient units and running containers are gone, and the lease is of another boot.
    for host in HOSTS:
        on_host(host, "systemctl", "stop", "unimem-lease.timer", "unimem-lease-guard.service")
        # The second host's has ended by itself when it lost the first one's, or is about to.
        on_host(host, "docker", "kill", *ranks(host), check=False)
        assert not on_host(host, "docker", "ps", "--quiet", "--filter", "name=unimem-default-rank").stdout.split()
        held = lease(host)
        assert held is not None
        on_host(host, "sed", "-i", f"s/{held['boot_id']}/00000000-0000-0000-0000-000000000000/", f"{DIRECTORY}/lease.json")
        assert on_host(host, "systemctl", "is-enabled", "unimem-lease-boot.service", check=False).stdout.strip() == "enabled"
        on_host(host, "systemctl", "start", "unimem-lease-boot.service")
        assert fired(host)["reason"] == "reboot"
    assert undone()
    as_before(before)


@pytest.mark.soak
def test_ctrl_c_is_undone_by_the_nodes_too(before: dict[str, dict[str, int]]) -> None:
    """Ansible runs no rescue after Ctrl-C."""
    with Controller("playbooks/deploy_qwen.yml", SETTINGS) as controller:
        launched(controller)
        controller.interrupt()
        assert controller.wait(60) != 0
    wait_until("the nodes undo it by themselves", undone, TTL + BOUND)
    as_before(before)


@pytest.mark.soak
def test_a_role_alone_can_hold_a_lease(before: dict[str, dict[str, int]]) -> None:
    argv = ["ansible", "-i", str(INVENTORY), "sparks", "-m", "unimem.dgx_spark.node_lease", "-a"]
    options = {"state": "held", "owner": {"id": "by hand"}, "ttl": 15}
    for expected in ('"changed": true', '"changed": false'):
        done = subprocess.run([*argv, json.dumps(options)], text=True, capture_output=True, check=True)
        assert expected in done.stdout
    assert set(left("spark-01")) >= {"unimem-lease.timer"}
    wait_until("it ends", lambda: all(lease(host) is None for host in HOSTS), 45)
    as_before(before)
