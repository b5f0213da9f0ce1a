# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""diagnose.yml on whatever is there, and nothing of it is touched: nothing deployed, a node out of reach, a group that is broken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import HOSTS, ROOT, Run, on_host, run_playbook, state_of
from standin import launched

# Part of `make soak` for the time that it takes.
pytestmark = pytest.mark.soak


def diagnose(directory: Path, **extra: Any) -> tuple[Run, dict[str, Any]]:
    """The run, and the report that it wrote."""
    run = run_playbook("playbooks/diagnose.yml", extra={"deploy_reports": str(directory), **extra})
    name = extra.get("deploy_name", "default")
    return run, json.loads((directory / f"{name}-diagnosis" / "report.json").read_text(encoding="utf-8"))


def test_nothing_is_deployed_and_nothing_is_changed(undeployed: None, tmp_path: Path) -> None:
    before = {host: state_of(host) for host in HOSTS}
    run, report = diagnose(tmp_path)
    assert run.rc == 0, run.failures
    assert not run.changed
    assert report["state"] == "absent" and report["unreachable"] == []
    assert {host: state_of(host) for host in HOSTS} == before
    page = (tmp_path / "default-diagnosis" / "00-cause.txt").read_text(encoding="utf-8")
    for host in HOSTS:
        assert host in page
        facts = json.loads((tmp_path / "default-diagnosis" / host / "memory-after.json").read_text(encoding="utf-8"))
        assert facts["class"] == "unified"
    assert "held by container vllm_embeddings" in page


@pytest.fixture
def worker_out_of_reach(tmp_path: Path) -> Iterator[Path]:
    """An inventory in which the worker's address is one where nobody is."""
    inventory = tmp_path / "inventory.yml"
    text = (ROOT / "inventory" / "lab.yml").read_text(encoding="utf-8")
    inventory.write_text(text.replace("ansible_host: 192.168.200.13", "ansible_host: 192.168.200.99"), encoding="utf-8")
    yield inventory


def test_a_node_out_of_reach_is_said_to_be_so(undeployed: None, worker_out_of_reach: Path, tmp_path: Path) -> None:
    extra = {"deploy_reports": str(tmp_path), "lab_directory": str(ROOT / ".lab"), "image_build_context": "/nowhere", "ansible_ssh_timeout": 3}
    run = run_playbook("playbooks/diagnose.yml", extra=extra, inventory=worker_out_of_reach, environment={"ANSIBLE_SSH_RETRIES": "0"})
    assert run.rc == 0, run.failures
    report = json.loads((tmp_path / "default-diagnosis" / "report.json").read_text(encoding="utf-8"))
    assert report["unreachable"] == ["spark-02"]
    assert report["class"] == "network" and "spark-02" in report["cause"]
    assert report["nodes"]["spark-01"]["moments"]["after"]["memory"]["total"] > 0


def test_a_running_group_answers_and_a_broken_one_is_diagnosed(undeployed: None, tmp_path: Path) -> None:
    with launched() as group:
        before = {host: state_of(host) for host in HOSTS}
        run, report = diagnose(tmp_path, **group.settings)
        assert run.rc == 0, run.failures
        assert report["state"] == "answers" and report["cause"] == "" and report["answer"]["text"]
        assert not run.changed and {host: state_of(host) for host in HOSTS} == before
        described = json.loads((tmp_path / f"{group.name}-diagnosis" / "spark-01" / f"unimem-{group.name}-rank0.json").read_text(encoding="utf-8"))
        assert described["environment"]["STANDIN_API_TOKEN"] == "********"
        assert described["steps"][-1]["argv"][:2] == ["vllm", "serve"]

        on_host("spark-02", "docker", "exec", f"unimem-{group.name}-rank1", "pkill", "-KILL", "-f", "VLLM::Worker")
        group.wait_ended()
        run, report = diagnose(tmp_path, **group.settings)
        assert run.rc == 0, run.failures
        assert report["state"] == "incomplete"
        assert (report["class"], report["diagnosis"]["node"]) == ("killed", "spark-02")
        log = (tmp_path / f"{group.name}-diagnosis" / "spark-02" / f"unimem-{group.name}-rank1.log").read_text(encoding="utf-8")
        assert report["diagnosis"]["line"] in log, "what is named as the cause is in what was kept"
