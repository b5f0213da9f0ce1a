# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.unimem.dgx_spark.plugins.action.model_download import ActionModule
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils import _followed_job
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.action.test_model_push import Action as PushAction
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.action.test_model_push import Task


class Action(ActionModule):
    """The plugin without Ansible around it, as the test of model_push has it."""

    __init__ = PushAction.__init__
    get_shell_option = PushAction.get_shell_option
    _execute_module = PushAction._execute_module
    _low_level_execute_command = PushAction._low_level_execute_command


def task(state: str, **more: Any) -> Task:
    made = Task({"state": state, "repository": "org/x"}, **more)
    made.delegate_to = "spark-01"
    return made


def test_a_download_is_a_job_that_is_told_of_on_the_host_that_has_it(shown: list[str]) -> None:
    progress = [{"sent": 0, "total": 0, "seconds": 0.0, "waiting": True}, *({"sent": sent, "total": 100, "seconds": 1.0} for sent in (40, 50)), ""]
    finished = {"finished": 1, "changed": True, "downloaded_bytes": 99, "seconds": 2.0}
    action = Action(task("downloaded"), progress, [finished])
    result = action.run(task_vars={"inventory_hostname": "spark-02"})
    assert result["changed"] and result["downloaded_bytes"] == 99
    assert action.modules[0][2] and action.modules[0][3] == _followed_job.LIMIT
    assert "unimem-model-download-" in action.modules[0][1]["progress"]
    assert shown[0] == "download: spark-01: an earlier download has to end first, on spark-01"
    assert "download: 50 B of 100 B (50 %)" in shown[1] and shown[-1].endswith("on spark-01") and "(100 %)" in shown[-1]


@pytest.mark.parametrize("asked", [task("report"), task("downloaded", check_mode=True)])
def test_to_look_at_the_disk_is_no_job(shown: list[str], asked: Task) -> None:
    action = Action(asked, [], [])
    assert action.run(task_vars={}) == {"changed": True}
    assert [wrap for _name, _args, wrap, _limit in action.modules] == [False]
