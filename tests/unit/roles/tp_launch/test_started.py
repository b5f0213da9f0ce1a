# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The order in which a group is brought up, and what follows where it fails; read from the tasks, for they need a container engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.unimem.dgx_spark.tests.unit.playbooks.running import ROOT, play, said

TASKS = ROOT / "roles" / "tp_launch" / "tasks"


def tasks(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load((TASKS / f"{name}.yml").read_text(encoding="utf-8")))


def bring_up() -> dict[str, Any]:
    (block,) = [task for task in tasks("started") if "rescue" in task]
    return block


def included(task: dict[str, Any]) -> str:
    return str(task.get("ansible.builtin.include_tasks", {}).get("file", ""))


def imported(task: dict[str, Any]) -> str:
    return str(task.get("ansible.builtin.import_tasks", {}).get("file", ""))


def test_who_answered_is_looked_at_after_the_tokens_came_and_before_the_group_counts_as_good() -> None:
    """A replacement that never got the port would be accepted for the tokens of the one that still has it."""
    steps = bring_up()["block"]
    files = [included(task) for task in steps]
    (look,) = [at for at, task in enumerate(steps) if "unimem.dgx_spark.rank_info" in task]
    (check,) = [at for at, task in enumerate(steps) if "ansible.builtin.assert" in task]
    assert files.index("start.yml") < files.index("complete.yml") < look < check < files.index("persist.yml")
    assert steps[look]["unimem.dgx_spark.rank_info"]["ports"] == ["{{ tp_launch_port }}"]
    assert steps[look]["when"] == steps[check]["when"] == "inventory_hostname == tp_launch_head and not ansible_check_mode"


@pytest.mark.parametrize("own", [True, False])
def test_tokens_of_somebody_else_are_a_failure(tmp_path: Path, own: bool) -> None:
    (check,) = [task for task in bring_up()["block"] if "ansible.builtin.assert" in task]
    answered = {"ports": {"8000": {"own": own, "why": "in use", "users": ["LISTEN on 0.0.0.0:8000: vllm (4711)"]}}}
    variables = {"tp_launch_port": 8000, "tp_launch_head": "here", "__tp_launch_answered": answered}
    (tmp_path / "hosts").write_text("here ansible_connection=local\n")
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "vars": variables, "tasks": [check]}]))
    done = play(str(tmp_path / "play.yml"), tmp_path, inventory=tmp_path / "hosts")
    assert (done.returncode == 0) is own, said(done)
    assert ("LISTEN on 0.0.0.0:8000: vllm (4711)" in said(done)) is not own


def test_where_one_host_fails_all_of_them_remove_every_rank_of_the_deployment() -> None:
    block = bring_up()
    assert block["any_errors_fatal"] is True, "the rescue is every host's"
    assert [included(task) for task in block["rescue"]] == ["failed.yml"]
    (undo,) = [task for task in tasks("failed") if any(included(inner) == "stop.yml" for inner in task.get("block", []))]
    assert undo["any_errors_fatal"] is False and "when" not in undo, "each host does it, whatever becomes of the others"
    (stop,) = [task for task in undo["block"] if included(task) == "stop.yml"]
    assert stop["when"] == "not ansible_check_mode"
    names = [task["name"] for task in tasks("stop")]
    (removing,) = [task for task in tasks("stop") if "community.docker.docker_container" in task]
    assert names.index("Stop | List the deployment's ranks") < names.index(removing["name"])
    assert [imported(task) for task in tasks("stop") if imported(task)] == ["ranks.yml"]
    (listing,) = tasks("ranks")
    listed = listing["community.docker.docker_host_info"]
    assert listed["containers_all"] is True, "those too that have ended, or were never started"
    assert listed["containers_filters"] == {"label": ["io.unimem.deployment={{ tp_launch_deployment }}"]}
    assert removing["community.docker.docker_container"]["state"] == "absent"


def test_no_restart_policy_starts_a_rank_again() -> None:
    (block,) = [task for task in tasks("start") if "block" in task]
    (start,) = [task["community.docker.docker_container"] for task in block["block"] if "community.docker.docker_container" in task]
    assert start["restart_policy"] == "no"
