# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""The facts kept: as a recording that replays to the same, as a plan's input, as gathered facts and in a fact cache."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import HOSTS, ROOT, empty_page_cache, on_host, run_module, run_playbook, wait_until

# Part of `make soak` for the time that it takes.
pytestmark = pytest.mark.soak

MODULE = "unimem.dgx_spark.gpu_memory_facts"
PLAYBOOKS = "tests/lab/e2e/playbooks"
#: What people put on command lines and into the environment of containers.
SECRETS = ("hf_0123456789abcdefghij", "sk-9876543210abcdefghij", "correct-horse-battery", "staple-in-the-environment")
PROGRAM = "import sys,time;sys.path.insert(0,'/usr/lib/gb10-sim');import gb10_cuda as c;c.create_context();print(1,flush=True);time.sleep(600)"


@pytest.fixture(scope="module")
def careless() -> Iterator[None]:
    """On the worker a GPU process and a container that show their secrets to everybody."""
    empty_page_cache("spark-02")
    words = ["--token", SECRETS[0], f"--api-key={SECRETS[1]}", f"https://alice:{SECRETS[2]}@example.org/model"]
    on_host("spark-02", "systemd-run", "--quiet", "--unit=unimem-e2e-careless", f"--setenv=API_TOKEN={SECRETS[3]}", "python3", "-c", PROGRAM, *words)
    try:
        wait_until("the process has its context", lambda: len(_holders()) == 3, 20, pause=0.2)
        yield
    finally:
        on_host("spark-02", "systemctl", "stop", "unimem-e2e-careless")


def _holders() -> set[int]:
    """The worker's processes that hold GPU memory, as the driver itself says."""
    return {one["pid"] for one in json.loads(on_host("spark-02", "gb10-sim-ctl", "status", "--json").stdout)["allocations"]}


@pytest.fixture(scope="module")
def recorded(careless: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    """Where both hosts were recorded, and the facts that the very same reading gave."""
    directory = tmp_path_factory.mktemp("recorded")
    run = run_playbook("playbooks/record.yml", extra={"record_output": str(directory), "record_hosts": "sparks"})
    assert run.rc == 0, run.failures
    return directory, {host: run.fact("gpu_memory", host) for host in HOSTS}


@pytest.mark.parametrize("host", HOSTS)
def test_a_recording_replays_to_the_facts_that_it_was_made_with(recorded: tuple[Path, dict[str, dict[str, Any]]], host: str) -> None:
    directory, live = recorded
    replay = run_module(MODULE, f"replay={directory / host}", "localhost", "--connection", "local", inventory=Path("localhost,"))
    assert replay.rc == 0, replay.failures
    assert replay.fact("gpu_memory", "localhost") == {name: value for name, value in live[host].items() if name != "raw"}
    assert live[host]["class"] == "unified"


def test_a_recording_holds_no_secret(recorded: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    directory, live = recorded
    for host in HOSTS:
        text = (directory / host / "node.json").read_text(encoding="utf-8")
        assert not [secret for secret in SECRETS if secret in text]
    assert "example.org" in text, "the command line is there, its secrets are not"
    assert not [secret for secret in SECRETS if secret in json.dumps(live)]


def test_check_mode_records_nothing(recorded: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    directory, _live = recorded
    before = {host: (directory / host / "node.json").read_bytes() for host in HOSTS}
    run = run_playbook("playbooks/record.yml", "--check", extra={"record_output": str(directory), "record_hosts": "sparks"})
    assert run.rc == 0, run.failures
    assert before == {host: (directory / host / "node.json").read_bytes() for host in HOSTS}


def test_a_plan_is_made_of_recordings(recorded: tuple[Path, dict[str, dict[str, Any]]], tmp_path: Path) -> None:
    directory, live = recorded
    inventory = tmp_path / "hosts.yml"
    settings = "ansible_connection: local, ansible_python_interpreter: '{{ ansible_playbook_python }}'"
    inventory.write_text(f"sparks: {{hosts: {{spark-01: , spark-02: }}, vars: {{{settings}}}}}\n", encoding="utf-8")
    output = tmp_path / "plan.json"
    extra = {
        "plan_facts": str(directory),
        "plan_output": str(output),
        "deploy_config": str(ROOT / "playbooks/files/qwen3.5-122b-a10b-fp8.config.json"),
        "deploy_weight_bytes": 127150000000,
    }
    run = run_playbook("playbooks/plan.yml", extra=extra, inventory=inventory)
    assert run.rc == 0, run.failures
    plan = json.loads(output.read_text(encoding="utf-8"))
    assert plan["verdict"] == "does_not_fit", "118 GiB of weights do not fit into two pools of 6 GiB"
    for host in HOSTS:
        assert plan["nodes"][host]["memory"] == live[host]["memory"]


def test_gathering_facts_gathers_these_too_and_a_cache_keeps_them(careless: None, tmp_path: Path) -> None:
    cache = {"ANSIBLE_CACHE_PLUGIN": "ansible.builtin.jsonfile", "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(tmp_path), "ANSIBLE_GATHERING": "smart"}
    gathered = run_playbook(f"{PLAYBOOKS}/gathered_facts.yml", environment=cache)
    assert gathered.rc == 0 and not gathered.changed, gathered.failures
    for host in HOSTS:
        ((_host, _task, result),) = gathered.results("Say what was gathered", host)
        assert result["msg"]["class"] == "unified" and result["msg"]["distribution"] == "Debian"
        assert result["msg"]["total"] == 6 * 1024**3
        assert (result["msg"]["held"] > 0) == (host == "spark-02")
    remembered = run_playbook(f"{PLAYBOOKS}/cached_facts.yml", environment=cache)
    assert remembered.rc == 0, remembered.failures
    boots = {host: on_host(host, "cat", "/proc/sys/kernel/random/boot_id").stdout.strip() for host in HOSTS}
    for host in HOSTS:
        ((_host, _task, result),) = remembered.results("Say what is remembered", host)
        assert result["msg"] == {"class": "unified", "boot_id": boots[host]}


def test_check_mode_gathers_the_same(careless: None) -> None:
    run = run_playbook(f"{PLAYBOOKS}/gathered_facts.yml", "--check", "--diff")
    assert run.rc == 0 and not run.changed, run.failures
    assert [result["msg"]["class"] for _host, _task, result in run.results("Say what was gathered")] == ["unified", "unified"]
