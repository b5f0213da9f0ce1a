# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Waiting for a rank: what is said, when it ends, and that a lost connection is no lost rank."""

from __future__ import annotations

import typing as t
from unittest import mock

import pytest
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.playbook.task import Task

from ansible_collections.unimem.dgx_spark.plugins.action import rank_wait

RANK: dict[str, t.Any] = {"rank": 1, "launch_id": "L1", "status": "running", "running": True, "ready": False, "log": {"memory": []}}


def log(*lines: str) -> dict[str, t.Any]:
    return {"log": {"head": [f"2026-11-30T09:12:29Z [engine] {line}" for line in lines], "tail": [], "memory": []}}


renewals: list[dict[str, t.Any]] = []
slept: list[float] = []
waits: list[float] = []
kept: dict[str, t.Any] = {}


def wait(answers: list[t.Any], monkeypatch: pytest.MonkeyPatch, **arguments: t.Any) -> tuple[dict[str, t.Any], list[str]]:
    """The action's result and what it printed, while rank_info answers so; each question of the time takes a second of a clock of its own."""
    said: list[str] = []
    clock = iter(range(10_000))
    monkeypatch.setattr(rank_wait.display, "display", lambda text, *_rest, **_more: said.append(text))
    slept.clear()
    waits.clear()
    monkeypatch.setattr(rank_wait.time, "sleep", slept.append)
    monkeypatch.setattr(rank_wait.time, "monotonic", lambda: float(next(clock)))
    task = mock.MagicMock(Task)
    task.args = {"deployment": "default", "launch_id": "L1", "engine": "vllm_mp", **arguments}
    task.async_val = 0
    task.check_mode = task.diff = False
    action = rank_wait.ActionModule(task, mock.MagicMock(), mock.MagicMock(), mock.MagicMock(), mock.MagicMock(), mock.MagicMock())
    queue = list(answers)

    def answer(**call: t.Any) -> dict[str, t.Any]:
        if call["module_name"] == "unimem.dgx_spark.node_lease":
            renewals.append(call["module_args"])
            return kept
        assert call["module_name"] == "unimem.dgx_spark.rank_info" and call["module_args"]["around"] is False
        waits.append(call["module_args"]["wait"])
        told = queue.pop(0) if len(queue) > 1 else queue[0]
        if isinstance(told, Exception):
            raise told
        return t.cast("dict[str, t.Any]", told)

    monkeypatch.setattr(action, "_execute_module", answer)
    return action.run(task_vars={"inventory_hostname": "spark-02"}), said


def test_it_says_what_has_changed_and_ends_when_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    loading = {"ranks": [{**RANK, **log("Loading safetensors checkpoint shards:  14% Completed | 1/7")}]}
    later = {"ranks": [{**RANK, **log("Loading safetensors checkpoint shards:  86% Completed | 6/7")}]}
    result, said = wait([loading, loading, later, {"ranks": [{**RANK, "ready": True}]}], monkeypatch)
    assert (result["ready"], result["ended"], result["changed"]) == (True, False, False)
    assert said[:2] == ["spark-02: rank 1 loads the weights, 14 %", "spark-02: rank 1 loads the weights, 86 %"]


def test_it_ends_when_the_rank_does(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = {**RANK, "running": False, "status": "exited", "exit_status": 1, "log": {"end": {"reason": "engine ended with exit status 1"}}}
    result, _said = wait([{"ranks": [RANK]}, {"ranks": [ended]}], monkeypatch)
    assert (result["ready"], result["ended"]) == (False, True)
    assert result["status"] == "exited, status 1: engine ended with exit status 1"


def test_what_nccl_uses_comes_with_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    used = [{"name": "IB", "address": ""}]
    ready = {**RANK, "ready": True, "log": {"transports": used, "memory": []}}
    result, _said = wait([{"ranks": [RANK]}, {"ranks": [ready]}], monkeypatch)
    assert result["transports"] == used


def test_it_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    result, _said = wait([{"ranks": [RANK]}], monkeypatch, timeout=20)
    assert (result["ready"], result["ended"]) == (False, False) and result["seconds"] >= 20


def test_a_connection_that_comes_back_has_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = AnsibleConnectionFailure("no route")
    result, said = wait([{"ranks": [RANK]}, lost, lost, {"ranks": [{**RANK, "ready": True}]}], monkeypatch)
    assert result["ready"] and any("out of reach" in line for line in said)


def test_a_connection_that_stays_away_is_an_unreachable_host(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AnsibleConnectionFailure):
        wait([{"ranks": [RANK]}, AnsibleConnectionFailure("no route")], monkeypatch, patience=10)


def test_a_failed_look_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    result, _said = wait([{"failed": True, "msg": "no python"}], monkeypatch)
    assert result["failed"] and result["msg"] == "no python"


def test_the_node_waits_and_the_controller_only_where_it_came_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wait([{"ranks": [RANK]}, {"ranks": [RANK]}, {"ranks": [{**RANK, "ready": True}]}], monkeypatch, interval=30)
    # Never past the end of the time, and never so long that a lost connection would not be noticed.
    assert waits == [30.0] * 3 and all(0 < seconds < 30 for seconds in slept) and len(slept) == 2
    wait([{"ranks": [RANK]}], monkeypatch, interval=3600, timeout=20)
    assert all(seconds <= 20 for seconds in waits)
    wait([{"ranks": [{**RANK, "ready": True}]}], monkeypatch, interval=3600)
    assert waits == [rank_wait.LONGEST]


@pytest.mark.parametrize(("interval", "ttl"), [(5, 300), (60, 60), (200, 300), (3600, 90)])
def test_whatever_the_interval_the_lease_is_renewed_in_time_and_ready_is_noticed_at_once(interval: int, ttl: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that goes on while the node waits, as it does."""
    now, at, slept_for = [0.0], [0.0], [0.0]
    renewed: list[float] = []
    task = mock.MagicMock(Task)
    task.args = {"deployment": "default", "launch_id": "L1", "engine": "vllm_mp", "interval": interval, "lease": {"owner": {}, "ttl": ttl}}
    task.async_val, task.check_mode, task.diff = 0, False, False
    action = rank_wait.ActionModule(task, mock.MagicMock(), mock.MagicMock(), mock.MagicMock(), mock.MagicMock(), mock.MagicMock())

    def sleep(seconds: float) -> None:
        slept_for[0] += seconds
        now[0] += seconds

    def answer(**call: t.Any) -> dict[str, t.Any]:
        if call["module_name"] == "unimem.dgx_spark.node_lease":
            renewed.append(now[0])
            return {}
        now[0] = min(now[0] + call["module_args"]["wait"], max(now[0], 500.0))
        at[0] = now[0]
        return {"ranks": [{**RANK, "ready": now[0] >= 500.0}]}

    monkeypatch.setattr(rank_wait.display, "display", lambda *_rest, **_more: None)
    monkeypatch.setattr(rank_wait.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(rank_wait.time, "sleep", sleep)
    monkeypatch.setattr(action, "_execute_module", answer)
    assert action.run(task_vars={"inventory_hostname": "spark-02"})["ready"]
    assert now[0] == 500.0 and slept_for[0] == 0.0
    assert max(later - before for before, later in zip(renewed, renewed[1:])) <= ttl * rank_wait.RENEW * 2


@pytest.mark.parametrize(("ttl", "times"), [(300, 1), (5, 3)])
def test_the_lease_is_renewed_in_time_and_its_loss_ends_the_wait(ttl: int, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = {"owner": {"id": "o"}, "ttl": ttl}
    renewals.clear()
    kept.clear()
    result, _said = wait([{"ranks": [RANK]}, {"ranks": [RANK]}, {"ranks": [{**RANK, "ready": True}]}], monkeypatch, lease=lease)
    assert result["ready"] and len(renewals) == times
    assert waits[0] <= ttl * rank_wait.RENEW
    assert renewals[0] == {"state": "renewed", "owner": {"id": "o"}, "ttl": ttl, "deployment": "default", "launch_id": "L1"}
    kept.update({"failed": True, "msg": "the lease is lost"})
    result, _said = wait([{"ranks": [RANK]}], monkeypatch, lease=lease)
    kept.clear()
    assert result["failed"] and result["msg"] == "the lease is lost"


def test_an_engine_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AnsibleActionFail, match="there is no engine 'x'"):
        wait([{"ranks": [RANK]}], monkeypatch, engine="x")
