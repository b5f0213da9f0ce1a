# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure

from ansible_collections.unimem.dgx_spark.plugins.action.model_push import ActionModule
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils import _followed_job
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._copy_progress import Share
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._followed_job import home_relative, share_from

JOB = {"ansible_job_id": "j1.2", "results_file": "/root/.ansible_async/j1.2", "started": 1}


class Task:
    """What the plugin reads of a task."""

    def __init__(self, args: dict[str, Any], check_mode: bool = False) -> None:
        self.args, self.check_mode, self.async_val, self._uuid = args, check_mode, 0, "0242ac11"


class Connection:
    has_native_async = False


class Action(ActionModule):
    """The plugin without Ansible around it: what the node answers is prepared."""

    def __init__(self, task: Task, progress: list[Any], statuses: list[dict[str, Any]]) -> None:
        self._task, self._connection = task, Connection()
        self.progress, self.statuses, self.commands, self.modules = progress, statuses, [], []

    def get_shell_option(self, option: str, default: str | None = None) -> str | None:
        return default

    def _execute_module(self, module_name: str = "", module_args: Any = None, task_vars: Any = None, wrap_async: bool = False, **_more: Any) -> dict[str, Any]:
        self.modules.append((module_name, dict(module_args), wrap_async, self._task.async_val))
        if wrap_async:
            return dict(JOB)
        if module_name == "ansible.legacy.async_status":
            return {} if module_args["mode"] == "cleanup" else self.statuses.pop(0)
        return {"changed": True}

    def _low_level_execute_command(self, command: str, **_more: Any) -> dict[str, Any]:
        self.commands.append(command)
        if command.startswith("rm "):
            return {"stdout": ""}
        told = self.progress.pop(0)
        if isinstance(told, Exception):
            raise told
        return {"stdout": told if isinstance(told, str) else json.dumps(told)}


def test_it_runs_as_a_job_and_shows_how_far_it_is(shown: list[str]) -> None:
    progress = ["", *({"sent": sent, "total": 100, "seconds": 1.0 + sent} for sent in range(0, 101, 5)), ""]
    finished = {"finished": 1, "changed": True, "seconds": 102.0, "ansible_job_id": "j1.2", "started": 1}
    action = Action(Task({"files": ["a"]}), progress, [{"finished": 0}, finished])
    result = action.run(task_vars={"inventory_hostname": "spark-02"})
    assert result == {"changed": True, "seconds": 102.0}
    assert len(shown) == 11 and "(10 %)" in shown[0] and "(100 %)" in shown[-1] and "spark-02" in shown[0]
    started = action.modules[0]
    assert started[2] and started[3] == _followed_job.LIMIT and started[1]["progress"].startswith("~/.ansible_async/unimem-model-push-")
    assert action._task.async_val == 0
    assert action.commands[-1].startswith("rm -f -- ~/.ansible_async/")
    assert action.modules[-1][1]["mode"] == "cleanup"


def test_a_copy_that_has_ended_before_it_was_looked_at_is_told_of(shown: list[str]) -> None:
    finished = {"finished": 1, "changed": True, "seconds": 0.4, "sent_bytes": 400}
    assert Action(Task({"files": ["a"]}), [""], [finished]).run(task_vars={"inventory_hostname": "spark-02"})["changed"]
    assert len(shown) == 1 and "(100 %)" in shown[0] and "spark-02" in shown[0]


def test_a_connection_that_breaks_and_comes_back_is_no_failure(shown: list[str]) -> None:
    progress = [AnsibleConnectionFailure("broken"), AnsibleConnectionFailure("broken"), ""]
    action = Action(Task({"files": ["a"]}), progress, [{"finished": 1, "changed": True}])
    assert action.run(task_vars={})["changed"]


def test_a_node_that_stays_away_is_given_up(shown: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_followed_job, "PATIENCE", -1.0)
    action = Action(Task({"files": ["a"]}), [AnsibleConnectionFailure("gone")], [])
    with pytest.raises(AnsibleConnectionFailure):
        action.run(task_vars={})


def test_a_job_that_fails_is_a_failure_and_says_no_hundred_percent(shown: list[str]) -> None:
    progress = [{"sent": 5, "total": 100, "seconds": 1.0}, ""]
    action = Action(Task({"files": ["a"]}), progress, [{"finished": 1, "failed": True, "msg": "the peer's disk is full"}])
    result = action.run(task_vars={"inventory_hostname": "spark-02"})
    assert result["failed"] and result["msg"] == "the peer's disk is full"
    assert not any("100 %" in line for line in shown)


@pytest.mark.parametrize("task", [Task({"files": ["a"]}, check_mode=True), Task({"files": []})])
def test_without_anything_to_wait_for_there_is_no_job(shown: list[str], task: Task) -> None:
    action = Action(task, [], [])
    assert action.run(task_vars={}) == {"changed": True}
    assert [wrap for _name, _args, wrap, _limit in action.modules] == [False]


@pytest.mark.parametrize(
    "told",
    [{}, {"sent": 5}, {"sent": -1, "total": 5, "seconds": 1}, {"sent": 6, "total": 5, "seconds": 1}, {"sent": True, "total": 5, "seconds": 1}],
)
def test_what_the_node_writes_is_not_believed(told: dict[str, Any]) -> None:
    assert share_from("spark-02", told) is None


def test_a_share() -> None:
    assert share_from("spark-02", {"sent": 1, "total": 2, "seconds": 3, "waiting": True}) == Share("spark-02", 1, 2, 3.0, waiting=True)


def test_paths_for_the_nodes_shell() -> None:
    assert home_relative("~/.ansible_async/a b") == "~/'.ansible_async/a b'" and home_relative("/x y") == "'/x y'"
