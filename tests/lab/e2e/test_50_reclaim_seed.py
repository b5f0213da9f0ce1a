# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""The seed's story of making room: unit, container, a process that shows up only on the second look, memory back; and all as it was before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from harness import Run, meminfo, on_host, run_module
from stand_ins import JOURNAL, MIB, StandIns, outcomes, rows, wait_for

HOST = "spark-02"
UNIT, CONTAINER = "vllm-embeddings.service", "vllm_embeddings"
STRAY = "stray-engine"


def reclaim(**parameters: Any) -> Run:
    return run_module("unimem.dgx_spark.gpu_process_reclaim", json.dumps({"journal": JOURNAL, **parameters}), HOST)


def result(run: Run) -> dict[str, Any]:
    return run.results(host=HOST)[-1][2]


def configuration(strangers: StandIns) -> dict[str, Any]:
    """All of a container that a restore must not have changed."""
    told = strangers.inspect(CONTAINER)
    return {name: told[name] for name in ("Id", "Created", "Image", "Config", "HostConfig", "Mounts", "Name", "Args")}


def loaded_units(host: str) -> str:
    """When systemd read its unit files last."""
    return on_host(host, "systemctl", "show", "--property=UnitsLoadFinishTimestampMonotonic").stdout


@pytest.fixture
def embeddings() -> Iterator[None]:
    """The seed's service, which runs again after the test however that ends."""
    yield
    bring_back = f"systemctl enable --quiet {UNIT} && docker update --restart unless-stopped {CONTAINER} && systemctl start {UNIT}"
    on_host(HOST, "sh", "-c", bring_back)
    wait_for(lambda: on_host(HOST, "curl", "--silent", "--fail", "http://127.0.0.1:8001/health", check=False).returncode == 0, 60)


@pytest.fixture
def bystander(strangers: StandIns) -> dict[str, Any]:
    """A GPU container that has nothing to do with it."""
    strangers.container("e2e-bystander")
    return strangers.inspect("e2e-bystander")


def test_room_is_made_as_in_the_seed_and_all_is_put_back(embeddings: None, strangers: StandIns, bystander: dict[str, Any]) -> None:
    before, links = configuration(strangers), on_host(HOST, "ls", "-l", "/etc/systemd/system/multi-user.target.wants").stdout
    engine = next(pid for pid, held in strangers.listed().items() if held > 500 * MIB)
    stray = strangers.process(STRAY, "--when-ended", str(engine), "--mib", "390")
    strangers.drop_in(UNIT, f"[Service]\nExecStopPost=timeout 20 sh -c 'until gb10-sim-ctl status | grep -q \"pid {stray} \"; do sleep 0.05; done'\n")
    started, available = loaded_units(HOST), meminfo(HOST)["MemAvailable"]

    wanted = {"state": "freed", "stop": [f"unit:{UNIT}", f"process:{STRAY}"]}
    first = reclaim(**wanted)
    freed = result(first)
    assert first.rc == 0, freed["msg"]
    assert freed["verdict"] == "freed" and freed["changed"]
    assert rows(freed, 1) == [
        ("unit", UNIT, "disable"),
        ("unit", UNIT, "stop"),
        ("container", CONTAINER, "set_restart_policy_no"),
        ("container", CONTAINER, "stop"),
    ]
    assert rows(freed, 2) == [("process", f"{STRAY} (pid {stray})", "terminate")]
    assert strangers.state(UNIT)[UNIT] == "inactive disabled"
    told = strangers.inspect(CONTAINER)
    assert told["State"]["Status"] == "exited" and told["HostConfig"]["RestartPolicy"]["Name"] == "no"
    # Measured, by the kernel's figures and not by the module's own.
    assert meminfo(HOST)["MemAvailable"] - available > 540 * MIB
    assert freed["freed"] > 540 * MIB and freed["after"]["allocatable"] - freed["before"]["allocatable"] == freed["freed"]
    assert freed["trajectory"][-1][1] - freed["trajectory"][0][1] > 540 * MIB
    assert any(UNIT in note and "next boot" in note for note in freed["notes"])
    assert {row["pid"] for row in freed["held_by"]} & {engine, stray} == set()
    assert strangers.run("stat", "--format", "%a %U", JOURNAL, "/var/lib/unimem").split() == ["600", "root", "700", "root"]

    again = reclaim(**wanted)
    assert again.rc == 0 and again.changed == [] and result(again)["verdict"] == "nothing_to_do"

    back = reclaim(state="restored")
    assert back.rc == 0 and result(back)["verdict"] == "restored", result(back)["msg"]
    # It answers as soon as the module says so.
    assert on_host(HOST, "curl", "--silent", "--fail", "--max-time", "5", "http://127.0.0.1:8001/health", check=False).returncode == 0
    assert configuration(strangers) == before
    assert strangers.state(UNIT)[UNIT] == "active enabled"
    assert [line.split()[-3:] for line in on_host(HOST, "ls", "-l", "/etc/systemd/system/multi-user.target.wants").stdout.splitlines()[1:]] == [
        line.split()[-3:] for line in links.splitlines()[1:]
    ]
    assert reclaim(state="restored").changed == []

    # systemd was never made to read its files again, which can take the GPU away from containers like this one.
    assert loaded_units(HOST) == started
    now = strangers.inspect("e2e-bystander")
    assert now["State"]["StartedAt"] == bystander["State"]["StartedAt"] and now["State"]["Running"]
    assert now["State"]["Pid"] in strangers.listed() or any(pid > now["State"]["Pid"] for pid in strangers.listed())


def test_check_mode_plans_what_the_run_then_does(strangers: StandIns) -> None:
    strangers.unit("e2e-a.service", "/usr/local/lib/unimem-e2e/hold.py --name e2e-a --mib 40")
    strangers.container("e2e-b", "--restart", "always")
    stray = strangers.process("e2e-stray", "--mib", "20")
    wanted: dict[str, Any] = {"stop": ["unit:e2e-a", "container:e2e-b", "process:e2e-stray"]}
    before, listed = strangers.state(), strangers.listed()
    plan = strangers.reclaim(check=True, **wanted)
    assert plan["changed"] and plan["verdict"] == "freed" and set(outcomes(plan).values()) == {"planned"}
    assert strangers.state() == before and strangers.listed() == listed and plan["done"] == []
    report = strangers.reclaim("report", **wanted)
    real = strangers.reclaim(**wanted)
    assert real["verdict"] == "freed", real["msg"]
    assert rows(plan) == rows(report) == rows(real, 1) and rows(real, 2) == []
    assert [row["freed"] for row in plan["actions"]] == pytest.approx([row["freed"] for row in real["actions"]], rel=0.1, abs=4 * MIB)
    assert plan["diff"] == real["diff"]
    assert not strangers.alive(stray)
    assert not strangers.reclaim(**wanted)["changed"]
    strangers.restored()
    wait_for(lambda: strangers.state() == before)
