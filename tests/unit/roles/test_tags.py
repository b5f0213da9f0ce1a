# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""`deploy_qwen.yml --tags model_sync,image_build` does all that the roles do: a task that a dynamic include brings has no tag but those of `apply`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
ROLES = ["image_build", "model_sync"]
LAUNCH = "launch"


def tasks(path: Path) -> Iterator[dict[str, Any]]:
    """Every task of a file, those in blocks too."""
    left = list(yaml.safe_load(path.read_text(encoding="utf-8")))
    while left:
        task = left.pop(0)
        if "block" in task:
            left = [*task["block"], *task.get("rescue", []), *task.get("always", []), *left]
        else:
            yield task


@pytest.mark.parametrize("role", ROLES)
def test_every_task_of_the_role_is_reached_by_its_tag(role: str) -> None:
    folder = ROOT / "roles" / role / "tasks"
    for task in tasks(folder / "main.yml"):
        assert task["tags"] == [role], task["name"]
    includes = [(path.name, task) for path in sorted(folder.glob("*.yml")) for task in tasks(path) if "ansible.builtin.include_tasks" in task]
    assert includes
    for name, task in includes:
        assert task.get("tags") == [role], f"{name}: {task['name']}"
        assert task["ansible.builtin.include_tasks"].get("apply") == {"tags": [role]}, f"{name}: {task['name']}"
    # A part of the other role is reached by the tag of the one that includes it.
    for path in sorted(folder.glob("*.yml")):
        for task in tasks(path):
            if "ansible.builtin.include_role" in task:
                assert task.get("tags") == [role] and task["ansible.builtin.include_role"].get("apply") == {"tags": [role]}, f"{path.name}: {task['name']}"


def test_without_the_launch_nothing_is_left_of_the_playbook_that_stops_anything() -> None:
    plays = yaml.safe_load((ROOT / "playbooks" / "deploy_qwen.yml").read_text(encoding="utf-8"))
    (deploy,) = [play for play in plays if play["name"] == "Deploy"]
    steps = deploy["tasks"][0]["block"]
    names = [step["name"] for step in steps if step.get("tags") == [LAUNCH]]
    assert {"Look whether the group runs already", "Record what came of it"} <= set(names)
    assert any("tasks/{{ 'keep' if" in str(step.get("ansible.builtin.include_tasks")) for step in steps if step.get("tags") == [LAUNCH])
    named = [(step, step.get(f"ansible.builtin.{way}_role")) for step in steps for way in ("import", "include")]
    others = [role["name"] for step, role in named if role and step.get("tags") != [LAUNCH]]
    assert others == ["unimem.dgx_spark.image_build", "unimem.dgx_spark.model_sync", "unimem.dgx_spark.image_build"]


def test_what_the_image_needs_is_looked_at_before_anything_takes_long() -> None:
    plays = yaml.safe_load((ROOT / "playbooks" / "deploy_qwen.yml").read_text(encoding="utf-8"))
    (deploy,) = [play for play in plays if play["name"] == "Deploy"]
    steps = deploy["tasks"][0]["block"]
    names = [step["name"] for step in steps]
    (look,) = [step for step in steps if step["name"] == "Look what the image needs"]
    assert look["ansible.builtin.import_role"] == {"name": "unimem.dgx_spark.image_build", "tasks_from": "look"}
    assert look["tags"] == ["image_build"]
    assert names.index(look["name"]) < names.index("Download the model where that is asked for") < names.index("Bring the model to all nodes")
